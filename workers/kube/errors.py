"""Errors of API requests: one class per meaning of an HTTP status.

```
ApiError(status, reason, message)
  RefusedError: the server rejected this request; also every status without its own class
    UnauthorizedError 401   ForbiddenError 403, and 400 or 422 by admission   NotFoundError 404
    AlreadyExistsError 409 reason AlreadyExists   ConflictError 409 otherwise
    GoneError 410 (also reason Expired)   InvalidError 422 and 400
  AwayError: the server did not process the request, so the caller retries and counts no failure
    TooManyRequestsError 429   ServerError 5xx
    Unreachable 0: no response; a write may have happened
``` `str()` gives the Status object's message, as client-go prints it, for example `secrets "x" not
found`. The messages for a response without a Status body are from apimachinery, pkg/api/errors
NewGenericServerResponse.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from workers.errors import ApiError

__all__ = [
    "AlreadyExistsError",
    "ApiError",
    "AwayError",
    "ConflictError",
    "ForbiddenError",
    "GoneError",
    "InvalidError",
    "NotFoundError",
    "RefusedError",
    "ServerError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "Unreachable",
    "error_from_response",
    "error_from_status",
]


class RefusedError(ApiError):
    """The server examined the request and rejected it."""


class AwayError(ApiError):
    """The server did not process the request, or its response was lost."""


class UnauthorizedError(RefusedError):
    """The credentials were refused, even after they were reloaded."""


class ForbiddenError(RefusedError):
    """RBAC or an admission plugin refused the request; RBAC's message names the permission."""


class NotFoundError(RefusedError):
    """The object or its whole kind does not exist."""

    def is_about(self, name: str) -> bool:
        """Return True if only the object is missing, not its whole kind."""
        return f'"{name}" not found' in str(self)


class AlreadyExistsError(RefusedError):
    """An object with this name already exists."""


class ConflictError(RefusedError):
    """The object changed since it was read, or a precondition failed."""


class GoneError(RefusedError):
    """The resourceVersion or the continue token is too old; the caller has to list again."""


class InvalidError(RefusedError):
    """The request itself is wrong; retrying it cannot help."""


class TooManyRequestsError(AwayError):
    """The API server sheds load: it refused the request before doing anything."""


class ServerError(AwayError):
    """The API server failed; a write may have happened."""


class Unreachable(AwayError):  # noqa: N818 - the word the rest of the system uses
    """No response arrived; a write may have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


_BY_REASON: Final[dict[str, type[ApiError]]] = {
    "AlreadyExists": AlreadyExistsError,
    "Conflict": ConflictError,
    "Expired": GoneError,
    "Gone": GoneError,
    "NotFound": NotFoundError,
}
_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}
# A ValidatingAdmissionPolicy without a reason refuses with 422, and a webhook without a code with
# 400. The same statuses mean that an object is invalid.
_OF_ADMISSION_TOO: Final = frozenset({400, 422})
# Reasons and messages for a response whose body is not a Status object.
_GENERIC: Final[dict[int, tuple[str, str]]] = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    403: ("Forbidden", "{body}"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    406: (
        "NotAcceptable",
        "the server was unable to respond with a content type that the client supports",
    ),
    409: ("Conflict", "the server reported a conflict"),
    415: (
        "UnsupportedMediaType",
        "the server was unable to understand the content type of the request",
    ),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: (
        "TooManyRequests",
        "the server has received too many requests and has asked us to try again later",
    ),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        (
            "the server was unable to return a response in the time allotted, "
            "but may still be processing the request"
        ),
    ),
}
_RESOURCE_PATH: Final = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/[^/]+(?=/))?/(?P<plural>[^/?]+)"
    r"(?:/(?P<name>[^/?]+))?"
)


def error_from_response(
    status: int, body: bytes, *, method: str = "GET", path: str = ""
) -> ApiError:
    """Return the error, with client-go's message, for an HTTP response with status 300 or higher.

    A Status body contains its own message; for any other body the message is the generic one,
    followed by `(verb resource name)`.
    """
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if isinstance(decoded, dict) and decoded.get("kind") == "Status":
        return error_from_status(decoded, default_status=status)
    reason, message = _generic(status, method, body)
    suffix = _RESOURCE_PATH.match(path)
    if suffix:
        words = [method.lower(), ".".join(filter(None, suffix.group("plural", "group")))]
        words += filter(None, [suffix["name"]])
        message = f"{message} ({' '.join(words)})"
    return _class_of(status, reason)(status, reason, message)


def error_from_status(status_object: dict[str, Any], *, default_status: int = 500) -> ApiError:
    """Return the error for a decoded Status; fields of the wrong type count as absent."""
    code = status_object.get("code")
    reason = status_object.get("reason")
    message = status_object.get("message")
    status = code if isinstance(code, int) and code else default_status
    reason = reason if isinstance(reason, str) else ""
    message = message if isinstance(message, str) and message else "unknown"
    if status in _OF_ADMISSION_TOO and _is_by_admission(message, status_object.get("details")):
        return ForbiddenError(status, reason, message)
    return _class_of(status, reason)(status, reason, message)


def _is_by_admission(message: str, details: object) -> bool:
    """Return True if a webhook or a ValidatingAdmissionPolicy refused, not the object's validation.

    Each cause of an invalid object names its field, whereas a policy's cause is only a message. A
    webhook is recognized only by the words that the API server puts before the webhook's own
    message.
    """
    if message.startswith('admission webhook "'):
        return True
    causes = details.get("causes") if isinstance(details, dict) else None
    found = [one for one in causes if isinstance(one, dict)] if isinstance(causes, list) else []
    return bool(found) and not any({"field", "reason"} & set(one) for one in found)


def _class_of(status: int, reason: str) -> type[ApiError]:
    default = ServerError if status >= 500 else RefusedError
    return _BY_REASON.get(reason) or _BY_STATUS.get(status, default)


def _generic(status: int, method: str, body: bytes) -> tuple[str, str]:
    if status == 409 and method == "POST":
        return "AlreadyExists", "the server reported a conflict"
    text = body[:2048].decode("utf-8", "replace").strip()
    if status in _GENERIC:
        reason, message = _GENERIC[status]
        return reason, message.format(body=text) if message == "{body}" else message
    if status >= 500:
        cause = f'an error on the server ("{text or "unknown"}")'
        return "InternalError", f"{cause} has prevented the request from succeeding"
    return (
        "",
        f"the server responded with the status code {status} but did not return more information",
    )
