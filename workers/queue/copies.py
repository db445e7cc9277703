"""The ConfigMaps that copy the record of an attempt: how they are called and laid out.

The volume's name is part of theirs. Nodes that share a namespace have one each, for each may be at
an attempt for the same claim.
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


def copy_name(volume: str, key: Key) -> str:
    """The name of the copy that whoever works on the key keeps of the volume's record."""
    return f"{plain_copy_name(volume)}{_suffix(key)}"


def plain_copy_name(volume: str) -> str:
    """The name where no driver serves on each node, or by a release that knew no nodes."""
    return f"{NAME_PREFIX}{volume}"


def copied_domain(name: str, key: Key | None) -> str:
    """Under what the record stands in Redis, by the copy's name and the key in its record.

    None: that is unreadable.
    """
    volume = name.removeprefix(NAME_PREFIX)
    return key.record_name(volume.removesuffix(_suffix(key))) if key is not None else volume


def _suffix(key: Key) -> str:
    return f".{sha256(key.node.encode()).hexdigest()[:10]}" if key.node else ""
