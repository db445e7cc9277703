"""Signs and reads a key's stored state: a controller's mark, and the last failure's memo.

Both are signed, because effects depend on them (`workers.queue.seal`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.errors import RecordTooLarge
from workers.queue.keys import Key
from workers.queue.names import driver_key, proof_place
from workers.queue.records import encode, quarantine_forged, unseal
from workers.queue.scripts import reading, text
from workers.queue.seal import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import redis

    from workers.queue.seal import Seal

# The maximum size of one mark in bytes. A group's mark contains the handles of its volumes, and
# there may be several hundred.
LONGEST_MARK: Final = 64 * 1024


class Remembered:
    """Converts marks and memos to and from their stored form.

    Args:
        client: the client for the queue's Redis.
        seal: the workers' signing keys.
    """

    def __init__(self, client: redis.Redis, seal: Seal) -> None:
        self._client = client
        self._marks = proof_place(client, "marks")
        self._memos = proof_place(client, "memos")
        self._seal = seal

    def mark_of(self, key: Key, raw: bytes | str | None) -> dict[str, Any]:
        """Return the mark of a key; {} if there is none or no worker signed it."""
        if not raw:
            return {}
        hash_ = driver_key(self._client, "marks", key.driver)
        with reading(self._client):
            return (
                unseal(self._client, self._seal, self._marks, hash_, field=key.text, raw=raw) or {}
            )

    def marks_of(self, keys: Iterable[Key]) -> list[dict[str, Any]]:
        """Return the marks of several keys, in the order of the keys."""
        wanted, found = list(keys), dict[Key, dict[str, Any]]()
        for driver in {key.driver for key in wanted}:
            own = [key for key in wanted if key.driver == driver]
            with reading(self._client):
                names = [key.text for key in own]
                raws = self._client.hmget(driver_key(self._client, "marks", driver), names)
            found |= {key: self.mark_of(key, raw) for key, raw in zip(own, raws, strict=True)}
        return [found[key] for key in wanted]

    def sealed_mark(self, key: Key, record: Mapping[str, Any]) -> bytes:
        """Return a mark in its stored form; empty for {}.

        Raises:
            RecordTooLarge: the record is larger than 64 KiB.
        """
        if not record:
            return b""
        raw = encode(record)
        if len(raw) > LONGEST_MARK:
            raise RecordTooLarge(
                f"csi-fleet would have to store {len(raw) // 1024} KiB about {key.object}, but "
                f"stores at most {LONGEST_MARK // 1024} KiB"
            )
        return self.sealed_copy(key, raw)

    def sealed_copy(self, key: Key, record: bytes) -> bytes:
        """Return a key's record with its signature, for storing outside Redis as well."""
        return self._seal.close(self._marks, key.text, key.tenant, record)

    def is_our_copy(self, key: Key, stored: bytes) -> bool:
        """Return True if a worker signed this copy for this key."""
        return self._seal.is_ours(self._marks, key.text, stored)

    def memo_of(self, key: Key, raw: bytes | None) -> str:
        """Return the memo of a key; "" if there is none or no worker signed it."""
        if not raw:
            return ""
        if self._seal.is_ours(self._memos, key.text, raw):
            return text(content(raw))
        with reading(self._client):
            hash_ = driver_key(self._client, "memos", key.driver)
            quarantine_forged(self._client, hash_, key.text, raw)
        return ""

    def sealed_memo(self, key: Key, memo: str) -> bytes:
        """Return a memo in its stored form; empty for ""."""
        return self._seal.close(self._memos, key.text, key.tenant, memo.encode()) if memo else b""
