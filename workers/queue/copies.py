"""Names the ConfigMaps that copy the record of an attempt, and their fields.

A ConfigMap's name contains the record's name. Nodes that share a namespace have a ConfigMap each,
because each node may have an attempt for the same claim.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.queue.keys import Key

NAME_PREFIX: Final = "csi-fleet-intent-"
FIELD_RECORD: Final = "record"
# The part in front of the record in Redis: signature and tenant.
FIELD_SEAL: Final = "seal"


def copy_name(key: Key) -> str:
    """Return the name of the ConfigMap that copies a claim's record."""
    name = f"{NAME_PREFIX}{key.record_name.partition('@')[0]}"
    return f"{name}.{sha256(key.node.encode()).hexdigest()[:10]}" if key.node else name
