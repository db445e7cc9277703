"""Names the person or program that can resolve each cause that `explain` reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.explain.facts import Cause

USER: Final = "the claim's owner"
ADMIN: Final = "the cluster's administrator"
STORAGE: Final = "the driver's operator"
FLEET: Final = "csi-fleet's operator"
ITSELF: Final = "nobody. csi-fleet continues automatically"
CLUSTER: Final = "nobody. Another controller continues automatically"
NOBODY: Final = "nobody. Everything is as it should be"

_MOVES: Final = {
    USER: (
        *("no-class", "static-class", "selector", "waits-for-consumer", "volume-missing"),
        *("volume-of-another", "lost", "infeasible", "attempt-failed", "class-of-another-driver"),
        *("class-infeasible", "size-infeasible", "not-found", "deleted-by-hand", "quota"),
        *("in-group", "being-restored", "still-bound", "source-missing", "source-not-ready"),
        *("used-by-pod", "content-missing", "source-terminating", "claim-terminating"),
        "source-unsupported",
        *("volume-mismatch", "not-created"),
    ),
    ADMIN: (
        *("class-missing", "unknown-provisioner", "secret-missing", "secret", "save-refused"),
        "no-populator",
        *("refused", "foreign-finalizer", "node-gone", "rescheduled", "kept", "class-invalid"),
        *("not-scheduled", "deleted-failing", "stranded", "namespace-terminating"),
        "topology-dropped",
        *("crd-missing", "no-permission"),
    ),
    STORAGE: (
        *("driver-error", "driver-slow", "driver-lost", "storage-full", "driver-not-registered"),
        *("node-lacks-driver", "node-lacks-label", "no-topology", "driver-not-on-node"),
        *("attach-failed", "detach-failed", "change-failed", "delete-failed", "failed"),
        *("node-failed", "last-error", "volume-unhealthy", "not-attached", "not-mounted"),
    ),
    FLEET: (
        *("no-worker", "no-watcher", "not-served", "no-controller", "paused", "class-paused"),
        *("lease-elsewhere", "no-free-worker", "no-limits", "internal-error", "not-queued"),
        *("limit-reached", "rate-limited", "change-unseen", "redis-away"),
    ),
    ITSELF: (
        *("queued", "running", "volume-busy", "back-off", "change-waits", "deleting"),
        *("being-created", "size-pinned", "class-pinned", "class-taken-back", "not-made"),
        *("not-copied", "no-content", "no-finalizer", "waits-for-content", "uploading"),
    ),
    CLUSTER: (
        *("binding", "not-requested", "waiting", "waits-for-node", "waits-for-populator"),
        *("still-attached", "not-bound"),
    ),
    NOBODY: (
        *("bound", "in-use", "as-wanted", "ready", "nothing-to-do", "attached", "not-ours", "gone"),
        "available",
    ),
}
_BY_CODE: Final = {code: who for who, codes in _MOVES.items() for code in codes}
# The causes of objects that are not waiting for anything; `pending` leaves these objects out.
SETTLED: Final = frozenset(_MOVES[NOBODY]) | {
    *("kept", "not-found", "quota", "not-created", "crd-missing"),
}


def move_of(cause: Cause) -> str:
    """Return who can resolve this cause."""
    return cause.move or _BY_CODE.get(cause.code, FLEET)


def is_known(code: str) -> bool:
    """Return True if the table contains the cause."""
    return code in _BY_CODE
