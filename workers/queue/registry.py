"""Registers the drivers that workers serve, with their capabilities.

Each worker registers its drivers every few seconds. A driver whose registration is not renewed
expires after its time to live. The version number grows when a driver appears, changes or expires.

The watcher relies on these records, so records with fields of the wrong type are quarantined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from workers.queue.connection import redis_errors
from workers.queue.kinds import APART
from workers.queue.names import redis_key
from workers.queue.records import decode, encode, quarantine
from workers.queue.scripts import Scripts, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import redis


class _Place(msgspec.Struct):
    namespace: str
    managed_by: str


class _Naming(msgspec.Struct):
    volume_name_prefix: str = "pvc"
    volume_name_uuid_length: int = -1


class _Record(msgspec.Struct):
    """The fields of a record that are read, and their types; all other fields are ignored."""

    name: str = ""
    queue_name: str = ""
    in_tree_name: str | None = None
    additional_names: list[str] | None = None
    node: str | None = None
    node_segments: dict[str, str] | None = None
    controllers: list[str] = []
    plugin_capabilities: list[str] = []
    controller_capabilities: list[str] | None = None
    system_namespace: str | None = None
    capacity: _Place | None = None
    rules: _Naming | None = None


class DriverRegistry:
    """The drivers that have a running worker. Methods may raise QueueUnavailable.

    Args:
        client: the client for the queue's Redis.
        now_ms: returns the queue's time, for a read-only process; None lets the Lua scripts read
            and maintain the queue's clock.
    """

    def __init__(self, client: redis.Redis, *, now_ms: Callable[[], int] | None = None) -> None:
        self._client = client
        self._drivers = redis_key(client, "drivers")
        self._scripts = Scripts(client, now_ms)
        self.version = 0

    def register(self, name: str, record: Mapping[str, Any], *, ttl_seconds: float) -> bool:
        """Announce a driver or renew its announcement; return True if the registry changed."""
        ttl_ms = round(ttl_seconds * 1000)
        # The call does not name a process, because the next heartbeat reports which process has a
        # connection.
        changed, _ = self._scripts.run("drivers_keep", "", ttl_ms, name, encode(record), 0)
        return bool(changed)

    def alive(self) -> dict[str, dict[str, Any]]:
        """Return the records of all served drivers by name; also updates `version`.

        If workers with different controllers serve one driver, their records are merged: the result
        has all their fields and lists all their controllers.
        """
        version, *flat = self._scripts.run("drivers_alive")
        found: dict[str, dict[str, Any]] = {}
        for raw_name, raw in sorted(zip(flat[::2], flat[1::2], strict=True)):
            record = self._read(text(raw_name), raw)
            if record is not None:
                name = text(raw_name).partition(APART)[0]
                known = found.setdefault(name, record)
                if known is not record:
                    names = {*known.get("controllers", ()), *record.get("controllers", ())}
                    known |= {**record, **known, "controllers": sorted(names)}
        self.version = whole(version) or 0
        return found

    def _read(self, place: str, raw: bytes) -> dict[str, Any] | None:
        with redis_errors():
            record = decode(self._client, self._drivers, place, raw)
            try:
                msgspec.convert(record or {}, _Record)
            except msgspec.ValidationError:
                quarantine(self._client, self._drivers, place, raw)
                return None
        return record
