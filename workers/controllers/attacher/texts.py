"""Messages for an attachment's status, in csi-attacher's literal words (A-041, A-052, A-056).

The watcher's rules recognize from a message what a failed attachment waits for. So this module
imports nothing that needs gRPC.
"""

from __future__ import annotations

from typing import Final

BOTH_SOURCES: Final = "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source"
NO_SOURCE: Final = "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source"
INLINE_WITHOUT_CSI: Final = "inline volume spec contains nil CSI source"
NO_CSI_SOURCE: Final = "pv spec contained non-csi source that was not migrated"

_VOLUME_MISSING: Final = 'persistentvolume "'
_NODE_MISSING: Final = ('csinode.storage.k8s.io "', "CSINode ")


def volume_missing(name: str) -> str:
    """The PV does not exist."""
    return f'{_VOLUME_MISSING}{name}" not found'


def volume_deleting(name: str) -> str:
    """The PV is being deleted."""
    return f'PersistentVolume "{name}" is marked for deletion'


def node_missing(name: str) -> str:
    """The CSINode does not exist."""
    return f'{_NODE_MISSING[0]}{name}" not found'


def driver_missing(node: str, driver: str) -> str:
    """The driver is not registered on the node."""
    return f"{_NODE_MISSING[1]}{node} does not contain driver {driver}"


def waits_for_volume(message: str) -> bool:
    """Return True if the error is resolved once the PV appears."""
    return message.startswith(_VOLUME_MISSING)


def waits_for_node(message: str) -> bool:
    """Return True if the error is resolved once the driver registers on the node."""
    return message.startswith(_NODE_MISSING)


def volume_replaced(name: str) -> str:
    """The PV was created again under its name, and no record has the first one's handle."""
    return (
        f"persistentvolume {name} is another volume than the one that was attached, and no record "
        "has the handle of that one: detach it in the storage, then remove the attachment's "
        "finalizer"
    )
