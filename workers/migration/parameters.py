"""In which order are string maps read whose keys are matched without regard to case?

The reference ranges over a Go map, so of two keys with the same meaning either may win (D-026).
Here the last key by (lower-case spelling, spelling) wins, always. Thus `zones` beats `zone`, a
plain `fstype` beats `csi.storage.k8s.io/fstype`, and small letters beat capitals:

    {"FSType": "ext4", "fstype": "xfs"}    -> xfs
    {"zones": "a,b", "zone": "c"}          -> zones a, b
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def ordered(parameters: Mapping[str, str] | None) -> Iterator[tuple[str, str, str]]:
    """Yield (lower-case key, key, value), the winner of two equal meanings last (D-026).

    None counts as empty: class parameters and volume attributes may be absent.
    """
    known = parameters or {}
    for lowered, key in sorted((key.lower(), key) for key in known):
        yield lowered, key, known[key]
