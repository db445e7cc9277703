"""Names the ConfigMaps that contain copies of attempt records, and their fields.

The name of a ConfigMap contains the name of the record. If several nodes share a namespace, every
node has its own ConfigMap, because each may have an attempt for the same claim.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.queue.keys import Key

NAME_PREFIX: Final = "csi-fleet-intent-"
FIELD_RECORD: Final = "record"
# The prefix of the record in Redis; it contains the record's signature and tenant.
FIELD_SEAL: Final = "seal"


def copy_name(key: Key) -> str:
    """Return the name of the ConfigMap for the copy of a claim's record."""
    name = f"{NAME_PREFIX}{key.record_name.partition('@')[0]}"
    return f"{name}.{sha256(key.node.encode()).hexdigest()[:10]}" if key.node else name
