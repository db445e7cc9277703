"""What may exist in a storage system without a PersistentVolume?

An intent is written before CreateVolume (M-010) and a created volume's full PV before the first
attempt to save it (M-011). A claim has one record of each, under its domain: its uid, with the
node's name where each node has a storage of its own. No flag changes that, so whoever works on the
claim finds the record, which names the volume that was asked for. Records hold no secret. They
outlive leases and processes; only Redis losing its data takes them, for which the API server keeps
the ConfigMaps of longer attempts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from workers.errors import LeaseLost, NamespaceFull
from workers.queue.keys import Key
from workers.queue.names import redis_key
from workers.queue.records import encode, peek, unseal
from workers.queue.scripts import Scripts, reading, text
from workers.queue.seal import UNCHECKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis

    from workers.queue.leases import Lease
    from workers.queue.seal import Seal

# A 20th of the shipped Redis' memory: thousands of failing claims, however large they are (SEC-4).
NAMESPACE_BYTES: Final = 16 * 1024 * 1024
_FULL: Final = 2


class IntentStore:
    """Intents and unsaved PVs; every method is one round trip and safe to repeat.

    All raise QueueUnavailable when Redis does not answer. What no worker of ours wrote counts as
    absent (SEC-2).

    Args:
        client: of the queue's Redis.
        seal: the workers' keys; who only looks needs none.
        namespace_bytes: of intents that one namespace may have at a time.
    """

    def __init__(
        self,
        client: redis.Redis,
        seal: Seal = UNCHECKED,
        *,
        namespace_bytes: int = NAMESPACE_BYTES,
    ) -> None:
        self._client = client
        self._unsaved = redis_key(client, "unsaved")
        self._intents = redis_key(client, "intents")
        self._namespace_bytes = namespace_bytes
        self._scripts = Scripts(client)
        self._seal = seal

    def begin(self, domain: str, intent: Mapping[str, Any], lease: Lease | None = None) -> None:
        """Record that CreateVolume is about to be called; nothing may reach it before (M-010).

        With a lease, Redis itself confirms that it is still ours.

        Raises:
            LeaseLost: nothing was written.
            NamespaceFull: nothing was written; the volume had no intent before.
        """
        self._write(domain, intent, lease, note="intent")

    def _write(
        self, domain: str, intent: Mapping[str, Any], lease: Lease | None, *, note: str
    ) -> None:
        known = dict(lease.written if lease else {})
        closed = self._closed(domain, lease, intents=intent)
        _remember(lease, domain, **closed)
        owner, most = _owner(lease), self._namespace_bytes
        written = self._scripts.run("begin", domain, *closed.values(), *owner, most, note)
        if written == _FULL:
            if lease is not None:
                lease.written = known
            raise NamespaceFull(
                f"attempts of namespace {_tenant(intent, lease)} that have no end yet fill the "
                f"{self._namespace_bytes // 1024} KiB that csi-fleet keeps for one namespace: "
                "delete claims that cannot be provisioned, then this one goes on by itself"
            )
        if not written:
            raise LeaseLost(f"lease of {domain} is lost, CreateVolume is not called")

    def created(
        self,
        domain: str,
        intent: Mapping[str, Any],
        pv: Mapping[str, Any],
        lease: Lease | None = None,
    ) -> None:
        """The volume exists: keep its PV until it is saved.

        Raises:
            LeaseLost: nothing was written; the queue puts the records back at the lease's end.
        """
        closed = self._closed(domain, lease, intents=intent, unsaved=pv)
        _remember(lease, domain, **closed)
        if not self._scripts.run("created", domain, *closed.values(), *_owner(lease)):
            raise LeaseLost(f"lease of {domain} is lost, its PV is not saved")

    def finish(self, domain: str, lease: Lease | None = None) -> bool:
        """The outcome is final and saved; False when the lease belongs to somebody else now."""
        if lease is not None:
            lease.written.clear()
        return bool(self._scripts.run("finish", domain, *_owner(lease)))

    def put(self, domain: str, intent: Mapping[str, Any], lease: Lease | None = None) -> None:
        """Replace an intent, for example with its new stage; raises as `begin`.

        No call begins by it, so the key's history has no note of it.
        """
        self._write(domain, intent, lease, note="")

    def sealed(self, domain: str, intent: Mapping[str, Any], lease: Lease | None = None) -> bytes:
        """The intent as it stands in Redis, and as it is copied to where it outlives Redis."""
        return self._closed(domain, lease, intents=intent)["intents"]

    def is_our_copy(self, domain: str, sealed: bytes, key: Key, uid: str) -> bool:
        """Whether a worker with our key wrote the copy of an intent: for this key and ConfigMap."""
        record = peek(sealed) or {}
        is_meant = (record.get("key"), record.get("copy_uid")) == (key.text, uid)
        return is_meant and self._seal.is_ours(self._intents, domain, sealed)

    def restore(self, domain: str, sealed: bytes) -> bool:
        """Write a copied intent unless there is one, which is newer; True when written.

        Who restores need not be able to prove it: the worker that reads it does.
        """
        with reading(self._client):
            return bool(self._client.hsetnx(self._intents, domain, sealed))

    def get(self, domain: str) -> dict[str, Any] | None:
        """The intent of a volume, None when there is none."""
        return self._read(self._intents, domain)

    def delete(self, domain: str) -> None:
        """Drop the intent, keep an unsaved PV."""
        self._drop(self._intents, domain)

    def all(self) -> dict[str, dict[str, Any]]:
        """Every intent by domain; read in pieces, so entries may come or go meanwhile."""
        return self._read_all(self._intents)

    def keys_of(self, object_: str) -> list[Key]:
        """Keys of the attempts for the objects of this name, of every kind."""
        found = []
        for record in self.all().values():
            with suppress(ValueError):
                key = Key.parse(str(record.get("key", "")))
                found += [key] if key.object == object_ else []
        return found

    def delete_pv(self, domain: str) -> None:
        """The PV was saved."""
        self._drop(self._unsaved, domain)

    def all_pvs(self) -> dict[str, dict[str, Any]]:
        """Every unsaved PV by domain."""
        return self._read_all(self._unsaved)

    def opened(self, lease: Lease) -> tuple[dict[str, Any] | None, dict[str, Any] | None, bool]:
        """Intent, unsaved PV, and whether the PV was saved in the last minutes, as of the lease.

        The last one tells a pass that runs before the claim is bound to look for the PV first
        (L-040 step 1); without the mark the driver is asked again, which is idempotent. All came
        with the lease, under which nobody else writes them: no round trip.
        """
        intent, pv, was_saved = lease.records
        if intent is None and pv is None:
            return None, None, was_saved
        name = lease.domain
        with reading(self._client):
            found = self._decode(self._intents, name, intent), self._decode(self._unsaved, name, pv)
        slots = {"intents": intent, "unsaved": pv}
        _remember(lease, name, **{slot: raw for slot, raw in slots.items() if raw})
        return *found, was_saved

    def _closed(
        self, domain: str, lease: Lease | None, **records: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """An intent, and perhaps its PV, as they stand in Redis; by name of their hash."""
        keys = {"intents": self._intents, "unsaved": self._unsaved}
        tenant = _tenant(records["intents"], lease)
        return {
            name: self._seal.close(keys[name], domain, tenant, encode(record))
            for name, record in records.items()
        }

    def _read(self, key: str, field: str) -> dict[str, Any] | None:
        with reading(self._client):
            return self._decode(key, field, self._client.hget(key, field))

    def _drop(self, key: str, field: str) -> None:
        with reading(self._client):
            self._client.hdel(key, field)

    def _read_all(self, key: str) -> dict[str, dict[str, Any]]:
        with reading(self._client):
            found = {}
            for field, raw in self._client.hscan_iter(key, count=200):
                record = self._decode(key, text(field), raw)
                if record is not None:
                    found[text(field)] = record
            return found

    def _decode(self, key: str, field: str, raw: bytes | str | None) -> dict[str, Any] | None:
        return None if raw is None else unseal(self._client, self._seal, key, field, raw)


def _remember(lease: Lease | None, domain: str, **records: bytes) -> None:
    """Before it is sent: if Redis loses it, the heartbeat writes it again."""
    if lease is not None:
        lease.written.update({slot: (domain, record) for slot, record in records.items()})


def _tenant(intent: Mapping[str, Any], lease: Lease | None) -> str:
    """Whose record it is: the namespace in the key."""
    if lease is not None:
        return lease.key.tenant
    try:
        return Key.parse(str(intent.get("key"))).tenant
    except ValueError:
        return ""


def _owner(lease: Lease | None) -> tuple[str, str, str]:
    return (
        ("", "", "") if lease is None else (lease.key.text, lease.session.process_id, lease.token)
    )
