"""Errors from calls to a driver: their meanings and messages.

```
CsiError                      a gRPC status, from the driver or from the transport
  UndecodableAnswerError      the driver returned OK, but the response cannot be decoded
    UnusableAnswerError       the response identifies no object, or cannot be stored
  NoStatusError               there is no status: the request never became a call
``` The messages have the same form as in the Go client, because they appear in events that users
search for (P-411); P-904 lists the numbers and spellings. No message contains a secret: `scrub`
removes the request's secret values from the driver's message.
"""

from __future__ import annotations

import re
from typing import Final

CODE_NAMES: Final = {
    0: "OK",
    1: "Canceled",
    2: "Unknown",
    3: "InvalidArgument",
    4: "DeadlineExceeded",
    5: "NotFound",
    6: "AlreadyExists",
    7: "PermissionDenied",
    8: "ResourceExhausted",
    9: "FailedPrecondition",
    10: "Aborted",
    11: "OutOfRange",
    12: "Unimplemented",
    13: "Internal",
    14: "Unavailable",
    15: "DataLoss",
    16: "Unauthenticated",
}
OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = range(6)
ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = range(6, 10)
ABORTED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = range(10, 16)
UNAUTHENTICATED: Final = 16

NO_STATUS_NAME: Final = "unknown-non-grpc"
"""The value of the metric label `grpc_status_code` for a call without a status (P-011)."""

_BACKGROUND_CODES: Final = frozenset({CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED})

# gRPC's C core has two other messages for an exceeded deadline, but events must show the Go
# client's.
_OWN_DEADLINE: Final = re.compile(r"(stream removed \()?deadline exceeded\)?", re.IGNORECASE)
_GO_DEADLINE_TEXT: Final = "context deadline exceeded"

# The stream broke during the call, so there is no response from the driver. The C core reports this
# as UNKNOWN or INTERNAL, or as UNAVAILABLE if the server is stopping. According to P-410, UNKNOWN
# and INTERNAL would be final, but the driver may still be working.
_BROKEN_STREAM: Final = re.compile(
    r"stream removed( \(.*\))?|received rst_stream with error code \d+.*", re.IGNORECASE
)

# Messages of UNAVAILABLE errors from the C core: the connection broke, or there is none.
# UNAVAILABLE errors from a driver have different messages.
_NO_CONNECTION: Final = re.compile(
    r"socket closed|failed to connect to .*|connections to all backends failing.*|recvmsg:.*"
    r"|.*connection (reset|refused|closed|broken|attempt).*|broken pipe|goaway.*"
    r"|.*cancelling all calls|.*handshake.*|transport closed|endpoint closing|channel shutdown",
    re.IGNORECASE | re.DOTALL,
)

# "CANCELLED" comes from a C core server that drops a new call because it is stopping. The other
# messages come from our own library, if we close the connection during the call.
_NOT_TAKEN: Final = frozenset({"CANCELLED", "Channel closed!", "Stream removed (Channel closed!)"})

# The transport on either side reports a message above a size limit with the same code that drivers
# use for a full storage pool (D-024). The messages are those of the gRPC C core (`CLIENT: Received
# message larger than max (..)`, `SERVER: Sent ..`), of grpc-go (`grpc: received message larger than
# max`, `trying to send message larger than max`) and of the C core's metadata limits.
_TOO_LARGE: Final = re.compile(
    r"(?P<side>CLIENT: |SERVER: |grpc: )?(?P<verb>received|sent|trying to send) "
    r"message larger than max|(?P<metadata>received (initial|trailing) metadata size exceeds)",
    re.IGNORECASE,
)

# The Python client turns an unknown status code into UNKNOWN with this message.
_UNKNOWN_CODE: Final = re.compile(
    r'Server sent unknown code (?P<code>\d+) and details "(?P<details>.*)"', re.DOTALL
)


def code_name(code: int | None) -> str:
    """Return a status code in Go's spelling, such as `DeadlineExceeded` (P-904).

    For an unknown number, return `Code(<n>)`. For None (no status), return the value of the metric
    label of P-011.
    """
    if code is None:
        return NO_STATUS_NAME
    return CODE_NAMES.get(code, f"Code({code})")


class CsiError(Exception):
    """A call ended with a gRPC status other than OK.

    Attributes:
        code: the status code; None if there is no status (`NoStatusError`).
        code_name: the code in Go's spelling; also the value of the metric label.
        details: the status message, without the secrets of the request.
        rpc: the full method name, `/csi.v1.Controller/CreateVolume`; empty outside a call.
        from_transport: True if the status comes from gRPC itself and therefore does not describe
            the storage system. RESOURCE_EXHAUSTED then means that a message was above a size limit,
            not that a pool is full (D-024).
        is_final: True if the driver has finished and created nothing (P-410, column
            "otherwise"). False if the driver may still be working, or may have created a
            volume.
    """

    code: int | None

    def __init__(
        self,
        code: int | None,
        details: str,
        *,
        rpc: str = "",
        from_transport: bool = False,
        is_final: bool | None = None,
    ) -> None:
        super().__init__()  # no args: they would keep the message from before `scrub`
        self.code = code
        self.code_name = code_name(code)
        self.details = details
        self.rpc = rpc
        self.from_transport = from_transport
        by_table = code is not None and code not in _BACKGROUND_CODES
        self.is_final = by_table if is_final is None else is_final

    def __str__(self) -> str:
        return f"rpc error: code = {self.code_name} desc = {self.details}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r}, rpc={self.rpc!r})"


class UndecodableAnswerError(CsiError):
    """The driver returned OK with bytes that cannot be decoded (bad UTF-8 in a string, garbage).

    The code is INTERNAL, as in the Go client. Unlike in the Go client, the error is not final,
    because the driver did the work and a volume may exist.
    """

    def __init__(self, details: str, *, rpc: str) -> None:
        super().__init__(INTERNAL, details, rpc=rpc, from_transport=True, is_final=False)


class UnusableAnswerError(UndecodableAnswerError):
    """The driver returned OK, but `csi_client.answers` found an unusable field.

    Attributes:
        made: the id of the object that the driver created; "" if the response does not contain it.
        members: the ids of the members of a created group.
    """

    def __init__(
        self, details: str, *, rpc: str, made: str = "", members: tuple[str, ...] = ()
    ) -> None:
        super().__init__(details, rpc=rpc)
        self.made = made
        self.members = members


class NoStatusError(CsiError):
    """No gRPC status exists: the request could not be encoded, or the client is closed.

    `str()` gives only the message, as for a plain Go error. According to the last row of P-410, the
    error is not final.
    """

    def __init__(self, details: str, *, rpc: str = "") -> None:
        super().__init__(None, details, rpc=rpc)

    def __str__(self) -> str:
        return self.details


def from_status(code: int, details: str, *, rpc: str) -> CsiError:
    """Build the error for a status as the Python gRPC library reports it.

    The library's own messages are translated: exceeded deadlines (P-411), broken streams, messages
    above a size limit (D-024) and status codes that gRPC does not know (P-904). A driver's own
    message is kept.
    """
    if code == DEADLINE_EXCEEDED and _OWN_DEADLINE.fullmatch(details):
        return CsiError(code, _GO_DEADLINE_TEXT, rpc=rpc, from_transport=True)
    if code in {UNKNOWN, INTERNAL, UNAVAILABLE} and _BROKEN_STREAM.fullmatch(details):
        return CsiError(code, details, rpc=rpc, from_transport=True, is_final=False)
    is_gone = code == UNAVAILABLE and _NO_CONNECTION.fullmatch(details)
    if is_gone or (code == CANCELLED and details in _NOT_TAKEN):
        return CsiError(code, details, rpc=rpc, from_transport=True)
    if code == RESOURCE_EXHAUSTED and (match := _TOO_LARGE.search(details)):
        return CsiError(
            code, details, rpc=rpc, from_transport=True, is_final=not _answer_was_lost(match)
        )
    if code == UNKNOWN and (match := _UNKNOWN_CODE.fullmatch(details)):
        return CsiError(int(match["code"]), match["details"], rpc=rpc)
    return CsiError(code, details, rpc=rpc)


def _answer_was_lost(match: re.Match[str]) -> bool:
    """Return True if the response was too large, False if the request was.

    A request that is too large never reaches the driver. The message was the response if the client
    was receiving it or the server was sending it, whichever side reports the error.
    """
    if match["metadata"]:
        return True
    side, verb = (match["side"] or "").casefold(), match["verb"].casefold()
    if verb == "received":
        return side == "client: "
    return side != "client: "
