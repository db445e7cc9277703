"""Orders string maps whose keys are matched case-insensitively.

Upstream iterates over a Go map, so if two keys have the same meaning, a random one wins (D-026).
Here the last key in the order of (lower-case spelling, spelling) always wins. Thus `zones` wins
over `zone`, a plain `fstype` over `csi.storage.k8s.io/fstype`, and lower-case letters over
upper-case letters:

    {"FSType": "ext4", "fstype": "xfs"}    -> xfs
    {"zones": "a,b", "zone": "c"}          -> zones a, b
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def ordered(parameters: Mapping[str, str] | None) -> Iterator[tuple[str, str, str]]:
    """Yield (lower-case key, key, value), ordered so that the last of equivalent keys wins.

    Keys are equivalent if they have the same meaning (D-026). None counts as empty, because class
    parameters and volume attributes can be absent.
    """
    known = parameters or {}
    for lowered, key in sorted((key.lower(), key) for key in known):
        yield lowered, key, known[key]
