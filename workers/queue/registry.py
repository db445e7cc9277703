"""Which drivers does some worker serve right now, and with what capabilities?

Workers register each driver they serve every few seconds; a driver nobody renewed is gone after its
time to live. The version grows when a driver appears, changes or expires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.queue.kinds import APART
from workers.queue.names import NAMES
from workers.queue.records import decode, encode
from workers.queue.scripts import Scripts, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import redis


class DriverRegistry:
    """Drivers with a living worker. Methods raise QueueUnavailable."""

    def __init__(self, client: redis.Redis, *, now_ms: Callable[[], int] | None = None) -> None:
        self._client = client
        self._scripts = Scripts(client, now_ms)
        self.version = 0

    def register(self, name: str, record: Mapping[str, Any], *, ttl_seconds: float) -> bool:
        """Announce or renew a driver; True when the registry changed by it."""
        ttl_ms = round(ttl_seconds * 1000)
        return bool(self._scripts.run("driver_register", name, encode(record), ttl_ms))

    def alive(self) -> dict[str, dict[str, Any]]:
        """Records of the served drivers by name; also updates `version`.

        What workers with different controllers say of one driver is one record with what each of
        them knows, and the controllers of all.
        """
        version, *flat = self._scripts.run("drivers_alive")
        found: dict[str, dict[str, Any]] = {}
        for raw_name, raw in sorted(zip(flat[::2], flat[1::2], strict=True)):
            record = decode(self._client, NAMES["drivers"].full, text(raw_name), raw)
            if record is not None:
                name = text(raw_name).partition(APART)[0]
                known = found.setdefault(name, record)
                if known is not record:
                    names = {*known.get("controllers", ()), *record.get("controllers", ())}
                    known |= {**record, **known, "controllers": sorted(names)}
        self.version = int(version)
        return found
