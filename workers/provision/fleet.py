"""The drivers this process serves: connecting, announcing, parking while a socket is gone.

A lost socket ends neither the process nor the claims: the driver's lanes are paused, so its keys
wait without back-off or event, and go on after a new handshake (S-020, F-017).
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from csi_client.client import CsiClient
from csi_client.connection import CsiAddressError
from csi_client.errors import CsiError
from workers.errors import ConfigError, QueueUnavailable
from workers.provision.driver import Driver, handshake, wait_ready
from workers.queue.keys import lane_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.config import Settings
    from workers.queue.registry import DriverRegistry
    from workers.queue.workqueue import WorkQueue

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS: Final = 30.0
REGISTRATION_TTL_SECONDS: Final = 15.0
KINDS: Final = ("claims", "volumes", "cloning", "capacity", "sweep")


class Fleet:
    """All drivers of one worker process, by queue name.

    Args:
        observer: told driver name, method, status and seconds of each CSI call.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Callable[[str, str, str, float], None] | None = None,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._drivers: dict[str, Driver] = {}
        self._losses: dict[str, int] = {}
        self._stopped = threading.Event()

    def driver_of(self, queue_name: str) -> Driver | None:
        """The connected driver of that queue name."""
        return self._drivers.get(queue_name)

    def drivers(self) -> list[Driver]:
        """All of them, by queue name."""
        return [self._drivers[name] for name in sorted(self._drivers)]

    def connect_all(self) -> None:
        """Connects every `--csi-address` and shakes hands (P-001 to P-010).

        Raises:
            ConfigError: with upstream's text and exit code.
        """
        addresses = self._settings.driver.csi_addresses
        with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
            found = list(pool.map(self.connect, addresses))
        for driver in found:
            if driver.queue_name in self._drivers:
                raise ConfigError(
                    f"--csi-address: two sockets answer as driver {driver.name}; give each once"
                )
            self._drivers[driver.queue_name] = driver
            self._losses[driver.queue_name] = driver.client.connection_losses

    def add(self, drivers: Iterable[Driver]) -> None:
        """Takes in drivers that live in this process; there is nothing to connect.

        Raises:
            ConfigError: a name is served already.
        """
        for driver in drivers:
            if driver.queue_name in self._drivers:
                raise ConfigError(f"--provisioner: {driver.name} is the name of a driver too")
            self._drivers[driver.queue_name] = driver
            self._losses[driver.queue_name] = driver.client.connection_losses

    def connect(self, address: str) -> Driver:
        """One driver, connected and ready."""
        names = {"name": "unknown-driver"}

        def observe(method: str, code: str, seconds: float) -> None:
            if self._observer is not None:
                self._observer(names["name"], method, code, seconds)

        try:
            client = CsiClient(
                address, timeout_seconds=self._settings.driver.timeout_seconds, observer=observe
            )
        except CsiAddressError as error:
            raise ConfigError(f"--csi-address {address}: {error}", exit_code=1) from error
        connected = client.wait_connected(
            CONNECT_TIMEOUT_SECONDS, lambda: _log.warning("Still connecting to %s", address)
        )
        if not connected:
            raise ConfigError(
                f"--csi-address {address}: no driver answered within "
                f"{CONNECT_TIMEOUT_SECONDS:.0f} s; is it running and the socket shared?",
                exit_code=1,
            )
        wait_ready(client, _log.info)
        driver = handshake(client, self._settings)
        names["name"] = driver.name
        _log.info("Detected CSI driver %s", driver.name)
        if driver.in_tree_name:
            _log.info("Supports migration from in-tree plugin: %s", driver.in_tree_name)
        return driver

    def serve(self, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Declares limits and announces the drivers; call once after `connect_all`."""
        for driver in self.drivers():
            self.announce(driver, queue, registry)

    def announce(self, driver: Driver, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Limits first, so that nothing is admitted without one."""
        if self._settings.capacity.enabled and not driver.publishes_capacity:
            _log.warning(
                "capacity of driver %s is not published: it lacks GET_CAPACITY", driver.name
            )
        provision = self._settings.provision
        for kind in KINDS:
            concurrency = {
                "cloning": provision.cloning_protection_threads,
                "capacity": self._settings.capacity.threads,
                "sweep": 1,
            }.get(kind, provision.worker_threads)
            queue.set_limits(lane_name(kind, driver.queue_name), concurrency)
        registry.register(driver.queue_name, driver.record(), ttl_seconds=REGISTRATION_TTL_SECONDS)

    def keep(self, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Renews registrations and follows lost sockets until `stop`; runs in its own thread."""
        renewed = 0.0
        while not self._stopped.wait(0.5):
            try:
                if time.monotonic() - renewed > REGISTRATION_TTL_SECONDS / 3:
                    for driver in self.drivers():
                        registry.register(
                            driver.queue_name,
                            driver.record(),
                            ttl_seconds=REGISTRATION_TTL_SECONDS,
                        )
                    renewed = time.monotonic()
                for driver in self.drivers():
                    self.follow(driver, queue, registry)
            except QueueUnavailable as error:
                _log.warning("drivers not announced: %s", error)

    def follow(self, driver: Driver, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Pauses the lanes of a driver whose socket is gone; a new handshake resumes them."""
        client, name = driver.client, driver.queue_name
        if client.connection_losses == self._losses[name]:
            return
        if not client.is_connected:
            for kind in KINDS:
                queue.pause(
                    lane_name(kind, name), "driver socket lost", seconds=10.0, kind="breaker"
                )
            return
        losses = client.connection_losses
        try:
            if not client.probe():
                return
            fresh = handshake(client, self._settings)
        except (CsiError, ConfigError) as error:
            _log.warning("driver %s is back but not ready: %s", driver.name, error)
            return
        if fresh.queue_name != name:
            _log.error(
                "socket of driver %s answers as %s now; it is not served until it is back",
                driver.name,
                fresh.name,
            )
            return
        self._drivers[name], self._losses[name] = fresh, losses
        self.announce(fresh, queue, registry)
        for kind in KINDS:
            queue.resume(lane_name(kind, name), kind="breaker")
        _log.warning("driver %s is connected again", driver.name)

    def stop(self) -> None:
        """Ends `keep` and closes all connections."""
        self._stopped.set()
        for driver in self._drivers.values():
            driver.client.close()
