"""Signs records in Redis, and verifies that a worker wrote them.

Redis is never an authority: by writing the record of an attempt, anybody who controls Redis, or a
process with write permission, could have a volume created or deleted. So records that cause effects
(intents, unsaved PVs, marks, memos) carry a MAC over their place, name, tenant and content, made
with a key that only workers have. The stored form is `<mac>:<tenant>:<record>`; without a key, the
MAC is `-`. The tenant, a namespace, is outside the record so that the scripts can count bytes per
tenant.

A record without a valid signature is quarantined and counts as absent. docs/security.md describes
what an old valid record can do if it is written back.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

# The number of hex digits in the MAC (128 bits).
_DIGITS: Final = 32
_UNSIGNED: Final = b"-"
UNSIGNED_LINE: Final = "unsigned"
"""A line that a key file can have in place of a key. Records without a MAC, which workers without a
key write, are then valid too.
"""


def new_key() -> str:
    """Return a new key in the format that `openssl rand -hex 32` prints."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class Seal:
    """The signing keys of one worker.

    Args:
        keys: the first key is used to sign, and every key to verify.
        is_strict: True if records without a MAC are invalid.
    """

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    is_strict: bool = False

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> Self:
        """Read the lines of a key file; if there is no line, nothing is signed or refused."""
        found = [line.strip() for line in lines if line.strip()]
        keys = tuple(line.encode() for line in found if line != UNSIGNED_LINE)
        return cls(keys, bool(keys) and UNSIGNED_LINE not in found)

    def close(self, place: str, name: str, tenant: str, record: bytes) -> bytes:
        """Return the record in its stored form, signed if there is a key.

        Args:
            place: the family of the record (see `names.proof_place`).
            name: the record's field in the hash.
            tenant: the namespace of the record; "" for none.
            record: a JSON object, or a memo.
        """
        owner = tenant.replace(":", "_").encode()
        mac = _mac(self.keys[0], place, name, owner, record) if self.keys else _UNSIGNED
        return b":".join((mac, owner, record))

    def is_ours(self, place: str, name: str, stored: bytes) -> bool:
        """Return True if a worker signed the record for this name, or if there is no key."""
        if not self.keys or (not self.is_strict and not _is_signed(stored)):
            return True
        mac, owner, record = _parts(stored)
        return any(
            hmac.compare_digest(mac, _mac(key, place, name, owner, record)) for key in self.keys
        )


UNCHECKED: Final = Seal()
"""A seal that checks nothing, for read-only processes and for installations without a key."""


def content(stored: bytes) -> bytes:
    """Return the record in a stored string, without verifying the signature."""
    return _parts(stored)[2]


def tenant_of(stored: bytes) -> str:
    """Return the namespace that the record claims to have ("" for none), without verifying it."""
    return _parts(stored)[1].decode("utf-8", "backslashreplace")


def _parts(stored: bytes) -> tuple[bytes, bytes, bytes]:
    # An older release stored only the JSON object.
    if stored[:1] == b"{":
        return _UNSIGNED, b"", stored
    mac, _, rest = stored.partition(b":")
    owner, _, record = rest.partition(b":")
    return mac, owner, record


def _is_signed(stored: bytes) -> bool:
    mac = _parts(stored)[0]
    return len(mac) == _DIGITS


def _mac(key: bytes, place: str, name: str, owner: bytes, record: bytes) -> bytes:
    # No name contains NUL, and the record comes last, so there is only one way to parse a message.
    message = b"\0".join((place.encode(), name.encode("utf-8", "backslashreplace"), owner, record))
    mac = _keyed(key).copy()
    mac.update(message)
    return mac.hexdigest()[:_DIGITS].encode()


@cache
def _keyed(key: bytes) -> hmac.HMAC:
    # `hmac.digest` would release the GIL, and the thread switch costs ten times as much as the MAC.
    return hmac.new(key, digestmod="sha256")
