"""Is a record in Redis one that we wrote?

Redis is never an authority: whoever gets into it, or into a process that may write there, could
otherwise have a volume made or deleted by writing a record of an attempt. So records that lead to
an effect (intents, unsaved PVs, marks, memos) carry a MAC over their place, name, tenant and text,
made with a key that only workers have. Text: `<mac>:<tenant>:<record>`; mac is `-` without a key.
The tenant, a namespace, stands outside so that the scripts can count bytes by it.

A record that is not ours is set aside and counts as absent. What a valid record of another time
can do when it is put back: see docs/security.md.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

# Hex digits of the MAC: 128 bits.
_DIGITS: Final = 32
_UNSIGNED: Final = b"-"
UNSIGNED_LINE: Final = "unsigned"
"""In place of a key: records without a MAC count too, while workers without a key still run."""


def new_key() -> str:
    """A key as `openssl rand -hex 32` makes one."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class Seal:
    """Keys of one worker.

    Args:
        keys: the first one signs, each of them proves.
        is_strict: records without a MAC do not count.
    """

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    is_strict: bool = False

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> Self:
        """Of the lines of a key file; without any line nothing is signed or refused."""
        found = [line.strip() for line in lines if line.strip()]
        keys = tuple(line.encode() for line in found if line != UNSIGNED_LINE)
        return cls(keys, bool(keys) and UNSIGNED_LINE not in found)

    def close(self, place: str, name: str, tenant: str, record: bytes) -> bytes:
        """The record as it is stored.

        Args:
            place: the Redis key of the hash.
            name: the field.
            tenant: the namespace whose record it is, "" for none.
            record: one JSON object.
        """
        owner = tenant.replace(":", "_").encode()
        mac = _mac(self.keys[0], place, name, owner, record) if self.keys else _UNSIGNED
        return b":".join((mac, owner, record))

    def is_ours(self, place: str, name: str, stored: bytes) -> bool:
        """Whether a worker of ours stored it under this name; who has no key cannot say no."""
        if not self.keys or (not self.is_strict and not _is_signed(stored)):
            return True
        mac, owner, record = _parts(stored)
        return any(
            hmac.compare_digest(mac, _mac(key, place, name, owner, record)) for key in self.keys
        )


UNCHECKED: Final = Seal()
"""For those who only look, and for installations without a key."""


def content(stored: bytes) -> bytes:
    """The record itself, whoever wrote it."""
    return _parts(stored)[2]


def tenant_of(stored: bytes) -> str:
    """The namespace whose record it says to be, "" for none."""
    return _parts(stored)[1].decode("utf-8", "backslashreplace")


def _parts(stored: bytes) -> tuple[bytes, bytes, bytes]:
    # A release before this one stored the JSON object alone.
    if stored[:1] == b"{":
        return _UNSIGNED, b"", stored
    mac, _, rest = stored.partition(b":")
    owner, _, record = rest.partition(b":")
    return mac, owner, record


def _is_signed(stored: bytes) -> bool:
    mac = _parts(stored)[0]
    return len(mac) == _DIGITS


def _mac(key: bytes, place: str, name: str, owner: bytes, record: bytes) -> bytes:
    # NUL is in no name, and the record comes last: one text has one reading.
    message = b"\0".join((place.encode(), name.encode("utf-8", "backslashreplace"), owner, record))
    mac = _keyed(key).copy()
    mac.update(message)
    return mac.hexdigest()[:_DIGITS].encode()


@cache
def _keyed(key: bytes) -> hmac.HMAC:
    # `hmac.digest` lets another thread run meanwhile, which costs ten times the MAC.
    return hmac.new(key, digestmod="sha256")
