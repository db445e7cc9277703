"""The ConfigMaps that copy the record of an attempt: how they are called and laid out.

The volume's name is part of theirs. Nodes that share a namespace have one each, for each may be at
an attempt for the same claim.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.queue.keys import Key

NAME_PREFIX: Final = "csi-fleet-intent-"
FIELD_RECORD: Final = "record"
# What stands in front of the record in Redis: proof and tenant.
FIELD_SEAL: Final = "seal"
# Under what the record stands in Redis; a release that knew one name alone wrote none.
FIELD_DOMAIN: Final = "domain"


def copy_name(volume: str, key: Key) -> str:
    """The name of the copy that whoever works on the key keeps of the volume's record."""
    return f"{plain_copy_name(volume)}{_suffix(key)}"


def plain_copy_name(volume: str) -> str:
    """The name where no driver serves on each node, or by a release that knew no nodes."""
    return f"{NAME_PREFIX}{volume}"


def copied_volume(name: str, key: Key | None) -> str:
    """The volume of a copy, by its name and the key in its record; None: that is unreadable."""
    return name.removeprefix(NAME_PREFIX).removesuffix(_suffix(key) if key is not None else "")


def copied_domain(config_map: Mapping[str, Any], key: Key | None) -> str:
    """Under what the record of a copy stands in Redis; its seal is good for that name alone.

    Args:
        config_map: the copy.
        key: in its record; None: that is unreadable.
    """
    volume = copied_volume(config_map["metadata"]["name"], key)
    domain = key.record_name(volume) if key is not None else volume
    return domain if (config_map.get("data") or {}).get(FIELD_DOMAIN) == domain else volume


def _suffix(key: Key) -> str:
    return f".{sha256(key.node.encode()).hexdigest()[:10]}" if key.node else ""
