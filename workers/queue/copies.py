"""The ConfigMaps that copy the record of an attempt: how they are called and laid out.

The name of the record is part of theirs. Nodes that share a namespace have one each, for each may
be at an attempt for the same claim.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.queue.keys import Key

NAME_PREFIX: Final = "csi-fleet-intent-"
FIELD_RECORD: Final = "record"
# What stands in front of the record in Redis: proof and tenant.
FIELD_SEAL: Final = "seal"


def copy_name(key: Key) -> str:
    """The name of the copy of a claim's record."""
    name = f"{NAME_PREFIX}{key.record_name.partition('@')[0]}"
    return f"{name}.{sha256(key.node.encode()).hexdigest()[:10]}" if key.node else name
