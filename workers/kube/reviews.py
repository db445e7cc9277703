"""Asks the API server who a token belongs to and what its owner may do.

`PathReaders` decides with these reviews who may read the metrics; `workers.changedblocks` decides
who may read block metadata.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from workers.errors import ApiError
from workers.kube import paths
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.kube.client import KubeClient

_log = get_logger(__name__)

TOKEN_REVIEWS: Final = paths.Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS: Final = paths.Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)
# Results are cached for this long, because Prometheus scrapes every few seconds. A revoked token is
# therefore refused within this time.
_REMEMBERED_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 100


def review(client: KubeClient, resource: paths.Resource, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a review of this `spec`.

    Raises:
        ApiError: the API server did not perform the review.
    """
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
    return dict(client.create(resource.path(), body).get("status") or {})


class PathReaders:
    """Authorizes readers of one path; caches each result for a minute. Thread-safe.

    Args:
        client: the client of an account that is allowed to create both kinds of review.
        path: the nonResourceURL on which the token's owner needs the verb `get`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, client: KubeClient, path: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._path = path
        self._clock = clock
        self._known: dict[bytes, tuple[float, bool]] = {}
        self._lock = threading.Lock()

    def allows(self, token: str) -> bool:
        """Return True if the token's owner may read the path; False if a review fails."""
        if not token:
            return False
        digest, now = hashlib.sha256(token.encode()).digest(), self._clock()
        with self._lock:
            until, is_allowed = self._known.get(digest, (0.0, False))
            if now < until:
                return is_allowed
        try:
            is_allowed = self._ask(token)
        except ApiError as error:
            _log.warning("could not check the token of a client that reads the metrics", err=error)
            return False
        with self._lock:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[digest] = (now + _REMEMBERED_SECONDS, is_allowed)
        return is_allowed

    def _ask(self, token: str) -> bool:
        status = review(self._client, TOKEN_REVIEWS, {"token": token})
        if not status.get("authenticated"):
            return False
        user = status.get("user") or {}
        spec = {
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        return bool(review(self._client, ACCESS_REVIEWS, spec).get("allowed"))
