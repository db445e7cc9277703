"""Which drivers does a process work for? `--shard=i/n`: those whose name falls into its part.

Each shard has a Redis of its own. What belongs to no driver is shard 0's. The place of a name never
changes as long as `n` does not, whichever process or release asks.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_TEXT: Final = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` (from 0) of `count`; the default is everything."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def is_part(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    @property
    def mark(self) -> str:
        """What tells its Redis from those of others, "" without others."""
        return str(self) if self.is_part else ""

    def of(self, driver: str) -> Shard:
        """The shard of a driver's name, "" for what belongs to no driver."""
        return Shard(place(driver, self.count), self.count)

    def owns(self, driver: str) -> bool:
        """Whether a driver's name falls into this shard."""
        return self.of(driver) == self


def place(driver: str, count: int) -> int:
    """Number of the shard that a driver's name falls into, 0 to `count` - 1."""
    digest = hashlib.sha256(driver.encode()).digest()
    return int.from_bytes(digest[:8], "big") % count if driver else 0


def parse_shard(text: str) -> Shard:
    """Read `i/n`, "" for everything.

    Raises:
        ValueError: one line that says what is wrong.
    """
    if not text:
        return Shard()
    match = _TEXT.fullmatch(text.strip())
    index, count = map(int, match.groups()) if match else (0, 0)
    if index >= count:
        raise ValueError("give i/n: shard i of n, from 0/n to n-1/n, such as 0/2 and 1/2")
    return Shard(index, count)
