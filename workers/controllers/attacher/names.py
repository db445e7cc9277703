"""The names that csi-attacher uses, so that either program can replace the other (MA-050).

Source: kubernetes-csi/external-attacher, pkg/controller/util.go.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from workers.engine.leasename import sanitize_name
from workers.queue.keys import Key

NODE_ID: Final = "csi.alpha.kubernetes.io/node-id"
"""The annotation of an attachment that holds the node id of its last publish (A-021)."""

EARLIER_IDS: Final = "csi-fleet.io/earlier-node-ids"
"""csi-fleet's own annotation: a JSON list of the node ids of the publishes before the last one.

It is written only if there are such ids (MA-032).
"""


class Reason(StrEnum):
    """The reason why an attach or detach failed, for `explain`; it is stored with the key."""

    VOLUME_MISSING = "volume-missing"
    DRIVER_NOT_ON_NODE = "driver-not-on-node"
    SECRET = "secret"  # noqa: S105 - a word
    SECRET_MISSING = "secret-missing"  # noqa: S105
    DRIVER_ERROR = "driver-error"
    OTHER = ""


ATTACHMENTS: Final = "attachments"

DETACHMENTS: Final = "detachments"
"""Deleted attachments; their own queue keeps detaches from delaying attaches (DA-023)."""

FORCED: Final = "forced-attachments"
"""Attachments whose publication differs from their status (A-095).

The key itself is the request for a call, so it is kept until a call succeeds or the attachment is
gone.
"""

FINALIZERS: Final = "attach-finalizers"
RECONCILE: Final = "reconcile-attachments"


def finalizer(driver_name: str) -> str:
    """Return the finalizer for an attachment and its PV while a publish may exist (A-020, A-023).

    `csi/test` -> `external-attacher/csi-test`, `a.b.` -> `external-attacher/a-b-X`. Two drivers can
    therefore share one finalizer name (DA-019). csi-attacher derives the name in the same way, and
    both programs must agree.
    """
    return f"external-attacher/{sanitize_name(driver_name)}"


def lease_name(driver_name: str) -> str:
    """Return the name of csi-attacher's Kubernetes Lease for one driver (A-007)."""
    return sanitize_name(f"external-attacher-leader-{driver_name}")


def attachment_key(queue_name: str, node: str, name: str, uid: str, kind: str = ATTACHMENTS) -> Key:
    """Return an attachment's key; it contains the node where other keys have a namespace.

    The queue therefore shares its capacity fairly between nodes (MA-015). The uid gives an
    attachment that was recreated under the same name its own counters and state (DA-004, DA-005).
    """
    return Key(kind, queue_name, f"{node}/{name}", uid)


def finalizer_key(queue_name: str, volume: str) -> Key:
    """Return the key of a PV whose finalizer may have to be removed (A-067)."""
    return Key(FINALIZERS, queue_name, volume)


def reconcile_key(queue_name: str) -> Key:
    """Return the key of the comparison with ListVolumes (A-090)."""
    return Key(RECONCILE, queue_name, "volumes")


def keys_of(queue_name: str, node: str, name: str, uid: str) -> list[Key]:
    """Return every key that an attachment can have."""
    kinds = (ATTACHMENTS, DETACHMENTS, FORCED)
    return [attachment_key(queue_name, node, name, uid, kind) for kind in kinds]
