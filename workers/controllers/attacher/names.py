"""The names on csi-attacher's objects; byte-identical, so that either may take over (MA-050).

Source: kubernetes-csi/external-attacher, pkg/controller/util.go.
"""

from __future__ import annotations

from typing import Final

from workers.engine.leasename import sanitize_name
from workers.queue.keys import Key

NODE_ID: Final = "csi.alpha.kubernetes.io/node-id"
"""Annotation of an attachment: the node id of its last publish (A-021)."""

EARLIER_IDS: Final = "csi-fleet.io/earlier-node-ids"
"""Annotation of our own, only where there are any: ids that publishes before the last one were sent
with, a JSON list (MA-032)."""

ATTACHMENTS: Final = "attachments"
DETACHMENTS: Final = "detachments"
FORCED: Final = "forced-attachments"
FINALIZERS: Final = "attach-finalizers"
RECONCILE: Final = "reconcile-attachments"


def finalizer(driver_name: str) -> str:
    """What an attachment and its PV carry while a publish may have happened (A-020, A-023).

    `csi/test` -> `external-attacher/csi-test`, `a.b.` -> `external-attacher/a-b-X`. Two drivers can
    meet in one name (DA-019), which is upstream's and part of the contract.
    """
    return f"external-attacher/{sanitize_name(driver_name)}"


def lease_name(driver_name: str) -> str:
    """Name of the Lease of csi-attacher for one driver (A-007)."""
    return sanitize_name(f"external-attacher-leader-{driver_name}")


def attachment_key(queue_name: str, node: str, name: str, uid: str) -> Key:
    """The key of an attachment; the node stands where others have a namespace.

    So the queue is fair between nodes (MA-015), and an attachment made again under the same name
    has counters and marks of its own (DA-004, DA-005).
    """
    return Key(ATTACHMENTS, queue_name, f"{node}/{name}", uid)


def detachment_key(queue_name: str, node: str, name: str, uid: str) -> Key:
    """The key of a deleted attachment: a dead node's detaches hold up no attach (DA-023)."""
    return Key(DETACHMENTS, queue_name, f"{node}/{name}", uid)


def forced_key(queue_name: str, node: str, name: str, uid: str) -> Key:
    """The key of an attachment whose publication differs from its status (A-095).

    The key itself is the force mark: it stays until a pass succeeded or the attachment went.
    """
    return Key(FORCED, queue_name, f"{node}/{name}", uid)


def finalizer_key(queue_name: str, volume: str) -> Key:
    """The key of a PV that may lose our finalizer (A-067)."""
    return Key(FINALIZERS, queue_name, volume)


def reconcile_key(queue_name: str) -> Key:
    """The key of the comparison with ListVolumes (A-090)."""
    return Key(RECONCILE, queue_name, "volumes")


def keys_of(queue_name: str, node: str, name: str, uid: str) -> tuple[Key, Key, Key]:
    """Every key that an attachment can have."""
    parts = (queue_name, node, name, uid)
    return attachment_key(*parts), detachment_key(*parts), forced_key(*parts)


def attachment_name(key: Key) -> str:
    """The attachment's own name in a key of it."""
    return key.object.partition("/")[2]
