"""Records volumes that may exist in a storage system without a PersistentVolume.

An intent is written before CreateVolume is called (M-010). The full PV of a created volume is
written before the first attempt to save it (M-011). A claim has at most one intent and one unsaved
PV, stored under the claim's domain. The domain is the claim's uid, plus the node's name if each
node has its own storage. No flag changes the domain, so every worker that gets the claim finds the
record, and with it the name of the requested volume. The records contain no secrets. They outlive
leases and processes, and are lost only with Redis's data; even then, the API server still has the
ConfigMaps of longer attempts. In Redis, each driver's records are stored under the driver's own
keys.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from workers.errors import LeaseLost, NamespaceFull
from workers.queue.keys import Key, spelled
from workers.queue.names import driver_key, proof_place
from workers.queue.records import drivers_with, encode, peek, unseal
from workers.queue.scripts import Scripts, reading, text
from workers.queue.seal import UNCHECKED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import redis

    from workers.queue.leases import Lease
    from workers.queue.seal import Seal

# One twentieth of the memory of the Redis that csi-fleet ships, so that one namespace's failing
# claims cannot fill Redis.
NAMESPACE_BYTES: Final = 16 * 1024 * 1024
_FULL: Final = 2


class IntentStore:
    """Intents and unsaved PVs; every method needs one round trip and may be repeated.

    All methods raise QueueUnavailable when Redis does not answer. A record that no worker signed
    counts as absent; otherwise, any Redis user could cause a volume to be created or deleted.

    Args:
        client: the client for the queue's Redis.
        seal: the workers' signing keys; a reader without effects needs none.
        driver: the driver part of the claims' keys, for calls without a lease.
        namespace_bytes: the maximum size of all current intents of one namespace, for all drivers
            together.
    """

    def __init__(
        self,
        client: redis.Redis,
        seal: Seal = UNCHECKED,
        *,
        driver: str = "",
        namespace_bytes: int = NAMESPACE_BYTES,
    ) -> None:
        self._client = client
        self._driver = driver
        self._places = {name: proof_place(client, name) for name in ("intents", "unsaved")}
        self._namespace_bytes = namespace_bytes
        self._scripts = Scripts(client)
        self._seal = seal

    def of(self, driver: str) -> IntentStore:
        """Return the store of the given driver."""
        return IntentStore(
            self._client, self._seal, driver=driver, namespace_bytes=self._namespace_bytes
        )

    def begin(self, domain: str, intent: Mapping[str, Any], lease: Lease | None = None) -> None:
        """Record that CreateVolume is about to be called; call this method first (M-010).

        With a lease, Redis itself confirms that this process still has the lease.

        Raises:
            LeaseLost: nothing was written.
            NamespaceFull: nothing was written; the claim had no intent before.
        """
        self._write(domain, intent, lease, note="intent")

    def _write(
        self, domain: str, intent: Mapping[str, Any], lease: Lease | None, *, note: str
    ) -> None:
        known = dict(lease.written if lease else {})
        closed = self._closed(domain, lease, intents=intent)
        _remember(lease, domain, **closed)
        at, owner, most = self._at(domain, lease), _owner(lease), self._namespace_bytes
        written = self._scripts.run("begin", *at, *closed.values(), *owner, most, note)
        if written == _FULL:
            if lease is not None:
                lease.written = known
            raise NamespaceFull(
                f"unfinished attempts in namespace {_tenant(intent, lease)} fill the "
                f"{self._namespace_bytes // 1024} KiB that csi-fleet stores for one namespace. "
                "Delete claims that cannot be provisioned; this claim then continues automatically"
            )
        if not written:
            raise LeaseLost(f"the lease of {domain} was lost, so CreateVolume was not called")

    def created(
        self,
        domain: str,
        intent: Mapping[str, Any],
        pv: Mapping[str, Any],
        lease: Lease | None = None,
    ) -> None:
        """Record that the volume exists, and keep its PV until the PV is saved.

        Raises:
            LeaseLost: nothing was written; the queue restores the records when the lease ends.
        """
        closed = self._closed(domain, lease, intents=intent, unsaved=pv)
        _remember(lease, domain, **closed)
        at = self._at(domain, lease)
        if not self._scripts.run("created", *at, *closed.values(), *_owner(lease)):
            raise LeaseLost(f"the lease of {domain} was lost, so its PV was not saved")

    def finish(self, domain: str, lease: Lease | None = None) -> bool:
        """Drop a finished attempt's records; return False if another worker has the lease."""
        if lease is not None:
            lease.written.clear()
        return bool(self._scripts.run("finish", *self._at(domain, lease), *_owner(lease)))

    def put(self, domain: str, intent: Mapping[str, Any], lease: Lease | None = None) -> None:
        """Replace an intent, for example to record a new stage; raises the same errors as `begin`.

        No call begins here, so no note is added to the key's history.
        """
        self._write(domain, intent, lease, note="")

    def sealed(self, domain: str, intent: Mapping[str, Any], lease: Lease | None = None) -> bytes:
        """Return the intent in its stored form, for Redis and for a ConfigMap."""
        return self._closed(domain, lease, intents=intent)["intents"]

    def is_our_copy(self, domain: str, sealed: bytes, key: Key, uid: str) -> bool:
        """Return True if a worker signed this copy of an intent for this key and ConfigMap."""
        record = peek(sealed) or {}
        is_meant = (record.get("key"), record.get("copy_uid")) == (key.text, uid)
        return is_meant and self._seal.is_ours(self._places["intents"], domain, sealed)

    def restore(self, domain: str, sealed: bytes) -> bool:
        """Write a copied intent; return False if Redis already has one, because that is newer.

        The caller need not verify the signature: the worker that reads the intent does so.
        """
        with reading(self._client):
            return bool(self._client.hsetnx(self._hash("intents"), domain, sealed))

    def get(self, domain: str) -> dict[str, Any] | None:
        """Return the intent of a domain; None if there is none."""
        with reading(self._client):
            return self._decode("intents", domain, self._client.hget(self._hash("intents"), domain))

    def delete(self, domain: str) -> None:
        """Drop the intent but keep an unsaved PV."""
        self._drop("intents", domain)

    def all(self) -> dict[str, dict[str, Any]]:
        """Return every intent by domain.

        The intents are read in batches, so entries may change meanwhile.
        """
        return self._read_all("intents")

    def everywhere(self) -> Iterator[IntentStore]:
        """Yield the store of each driver that has any record."""
        with reading(self._client):
            found = {*drivers_with(self._client, "intents"), *drivers_with(self._client, "unsaved")}
        for driver in sorted(found):
            yield self.of(driver)

    def all_of(self, driver_name: str) -> dict[str, dict[str, Any]]:
        """Return every intent of a driver on all nodes, by domain."""
        with reading(self._client):
            drivers = drivers_with(self._client, "intents")
        found: dict[str, dict[str, Any]] = {}
        for driver in drivers:
            if driver.partition("@")[0] == driver_name:
                found |= self.of(driver).all()
        return found

    def keys_of(self, object_: str) -> list[Key]:
        """Return the keys of attempts for objects with this name, for every kind and driver."""
        found = []
        for record in (one for store in self.everywhere() for one in store.all().values()):
            with suppress(ValueError):
                key = Key.parse(str(record.get("key", "")))
                found += [key] if key.object == object_ else []
        return found

    def delete_pv(self, domain: str) -> None:
        """Drop the stored copy of a PV once the PV has been saved to the API server."""
        self._drop("unsaved", domain)

    def all_pvs(self) -> dict[str, dict[str, Any]]:
        """Return every unsaved PV by domain."""
        return self._read_all("unsaved")

    def opened(self, lease: Lease) -> tuple[dict[str, Any] | None, dict[str, Any] | None, bool]:
        """Return the intent, the unsaved PV, and whether the PV was saved in the last few minutes.

        If the flag is set, a reconcile before the claim is bound first looks for the PV (L-040 step
        1). If it is not set, the driver is called again; that is idempotent. All three values were
        read with the lease, and no other process writes them while it is held, so this method costs
        no round trip.
        """
        intent, pv, was_saved = lease.records
        if intent is None and pv is None:
            return None, None, was_saved
        name, slots = lease.domain, {"intents": intent, "unsaved": pv}
        with reading(self._client):
            found = [self._decode(slot, name, raw, lease) for slot, raw in slots.items()]
        _remember(lease, name, **{slot: raw for slot, raw in slots.items() if raw})
        return found[0], found[1], was_saved

    def _closed(
        self, domain: str, lease: Lease | None, **records: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """Return the stored form of an intent and, if given, of its PV, by family."""
        tenant = _tenant(records["intents"], lease)
        return {
            name: self._seal.close(self._places[name], domain, tenant, encode(record))
            for name, record in records.items()
        }

    def _hash(self, name: str, lease: Lease | None = None) -> str:
        driver = self._driver if lease is None else lease.key.driver
        return driver_key(self._client, name, driver)

    def _at(self, domain: str, lease: Lease | None) -> tuple[str, str]:
        """Return what a script needs to find the records: the keys' driver part and the domain."""
        return spelled(self._driver if lease is None else lease.key.driver), domain

    def _drop(self, name: str, field: str) -> None:
        with reading(self._client):
            self._client.hdel(self._hash(name), field)

    def _read_all(self, name: str) -> dict[str, dict[str, Any]]:
        with reading(self._client):
            found = {}
            for field, raw in self._client.hscan_iter(self._hash(name), count=200):
                record = self._decode(name, text(field), raw)
                if record is not None:
                    found[text(field)] = record
            return found

    def _decode(
        self, name: str, field: str, raw: bytes | str | None, lease: Lease | None = None
    ) -> dict[str, Any] | None:
        if raw is None:
            return None
        place, key = self._places[name], self._hash(name, lease)
        return unseal(self._client, self._seal, place, key, field=field, raw=raw)


def _remember(lease: Lease | None, domain: str, **records: bytes) -> None:
    """Note a record before it is sent; if Redis loses the record, the heartbeat writes it again."""
    if lease is not None:
        lease.written.update({slot: (domain, record) for slot, record in records.items()})


def _tenant(intent: Mapping[str, Any], lease: Lease | None) -> str:
    """Return the attempt's namespace; the record counts towards this namespace's limit."""
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
