"""The parts of Redis that a reconcile uses, in memory: records, and keys added to the queue."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from workers.errors import LeaseLost
from workers.queue.records import encode, peek
from workers.queue.seal import UNCHECKED

if TYPE_CHECKING:
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock

JsonObject = dict[str, Any]


class FakeIntents:
    """The intents, unsaved PVs and "saved" marks in Redis."""

    def __init__(self) -> None:
        self.intents: dict[str, JsonObject] = {}
        self.unsaved: dict[str, JsonObject] = {}
        self.saved: set[str] = set()

    def of(self, driver: str) -> FakeIntents:
        del driver
        return self

    def begin(self, domain: str, intent: JsonObject, lease: Lease | None = None) -> None:
        if lease is not None and not lease.is_held():
            raise LeaseLost(f"the lease of {domain} was lost, so CreateVolume was not called")
        self.intents[domain] = deepcopy(intent)

    def created(
        self, domain: str, intent: JsonObject, volume: JsonObject, lease: Lease | None = None
    ) -> None:
        self.intents[domain], self.unsaved[domain] = deepcopy(intent), deepcopy(volume)

    def finish(self, domain: str, lease: Lease | None = None) -> bool:
        self.intents.pop(domain, None)
        self.unsaved.pop(domain, None)
        return True

    def put(self, domain: str, intent: JsonObject, lease: Lease | None = None) -> None:
        self.begin(domain, intent, lease)

    def sealed(self, domain: str, intent: JsonObject, lease: Lease | None = None) -> bytes:
        del lease
        return UNCHECKED.close("intents", domain, "", encode(intent))

    def is_our_copy(self, domain: str, sealed: bytes, key: Key, uid: str) -> bool:
        del domain
        record = peek(sealed) or {}
        return (record.get("key"), record.get("copy_uid")) == (key.text, uid)

    def restore(self, domain: str, sealed: bytes) -> bool:
        intent = peek(sealed) or {}
        return self.intents.setdefault(domain, intent) == intent

    def get(self, domain: str) -> JsonObject | None:
        return self.intents.get(domain)

    def all(self) -> dict[str, JsonObject]:
        return dict(self.intents)

    def all_of(self, driver_name: str) -> dict[str, JsonObject]:
        del driver_name
        return dict(self.intents)

    def delete_pv(self, name: str) -> None:
        self.unsaved.pop(name, None)

    def opened(self, lease: Lease) -> tuple[JsonObject | None, JsonObject | None, bool]:
        domain = lease.domain
        return self.intents.get(domain), self.unsaved.get(domain), domain in self.saved


class FakeQueue:
    """A queue with only those methods that a reconcile may call."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.busy: set[str] = set()
        self.locked: list[str] = []

    def acquire(self, lease: Lease, *locks: Lock) -> Lock | None:
        del lease
        self.locked += [one.name for one in locks]
        return next((one for one in locks if one.name in self.busy), None)

    def add(self, keys: Any, *, delay_seconds: float = 0.0) -> None:
        self.added += [key.text for key in keys]
