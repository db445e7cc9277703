"""Connects and announces the drivers that this process serves, and handles lost sockets.

If a socket is lost, the process keeps running and no claim fails. The process stops fetching the
driver's messages; once no process is connected, the driver's queues are paused. The driver's keys
then wait without back-off or events, and are processed one after another after a new handshake
(S-020, F-017).

As in upstream, sidecar drivers (`--csi-address`) must be reachable at startup. Drivers in the
drivers file are connected in the background and follow changes of the file. One thread follows all
drivers. Handshakes may hang, so they run in small thread pools, however many drivers there are.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from csi_client.connection import CsiAddressError
from workers.drivers.announcing import DRIVERLESS, REGISTRATION_TTL_SECONDS, Announcing
from workers.drivers.driver import Driver, handshake, wait_ready
from workers.drivers.driversfile import DriverSpec
from workers.drivers.link import (
    PROBE_SECONDS,
    PROVE_SECONDS,
    RETRY_SECONDS,
    TELL_AFTER_SECONDS,
    Link,
    open_link,
)
from workers.drivers.pace import Pace, SharedPace, WatchedClient
from workers.drivers.seats import default_seats
from workers.errors import ConfigError
from workers.observability.health import HEARTBEATS, LIMIT_SECONDS
from workers.observability.logging import get_logger
from workers.queue.leases import suspend_aware_clock
from workers.queue.links import ANYWHERE, record_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from csi_client.client import CsiClient
    from workers.config.settings import Settings
    from workers.drivers.seats import Consumers
    from workers.engine.controller import Controller
    from workers.queue.links import Links, Place, Verdict
    from workers.queue.registry import DriverRegistry
    from workers.queue.workqueue import WorkQueue

_log = get_logger(__name__)
T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS: Final = 30.0
TICK_SECONDS: Final = 0.5
LOST_AGAIN_SECONDS: Final = 2.0
HANDSHAKE_THREADS: Final = 8
PATIENT_THREADS: Final = 16
# The largest number of calls that a handshake makes.
TALK_CALLS: Final = 8


def wait_answering(client: CsiClient, address: str) -> None:
    """Wait until the driver at `--csi-address` is connected and ready.

    Raises:
        ConfigError: it does not answer, or its Probe call fails; exit code 1.
    """
    connected = client.wait_connected(
        CONNECT_TIMEOUT_SECONDS, lambda: _log.warning("Still connecting", address=address)
    )
    if not connected:
        raise ConfigError(
            f"--csi-address {address}: no driver answered within {CONNECT_TIMEOUT_SECONDS:.0f} s. "
            "Check that the driver is running and that its socket is in a shared volume",
            exit_code=1,
        )
    wait_ready(client, _log.info)


class Fleet:
    """All drivers of one worker process, keyed by queue name.

    Args:
        observer: called after each CSI call with the driver's name, the method, the status and
            the duration in seconds.
        shared: reports to all workers which drivers are connected; if None, no queue is paused (in
            tests).
        consumers: controls which drivers' messages this process fetches.
        controllers: the controllers of this process.
        make_client: creates a driver's client.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Callable[[str, str, str, float], None] | None = None,
        shared: Links | None = None,
        consumers: Consumers | None = None,
        controllers: Sequence[Controller] = (),
        make_client: Callable[..., WatchedClient] = WatchedClient,
    ) -> None:
        self._settings = settings
        self._make_client = make_client
        self._announcing = Announcing(settings, controllers)
        self._observer = observer
        self._shared = shared
        self._consumers = consumers
        self._drivers: dict[str, Driver] = {}
        self._links: dict[str, Link] = {}
        self._seats: dict[str, int] = {}
        self._records: dict[str, tuple[Driver, str | bytes]] = {}
        self._lock = threading.Lock()
        self._renewed = float("-inf")
        self._pool = ThreadPoolExecutor(HANDSHAKE_THREADS, thread_name_prefix="handshake")
        # Drivers use this pool after a failed handshake, so that they do not delay healthy drivers.
        self._patient = ThreadPoolExecutor(PATIENT_THREADS, thread_name_prefix="patient")

    def driver_of(self, queue_name: str) -> Driver | None:
        """Return the queue's driver, even a disconnected one; None if there is none here."""
        return self._drivers.get(queue_name)

    def drivers(self) -> list[Driver]:
        """Return all drivers that completed a handshake, sorted by queue name."""
        known = self._drivers.copy()
        return [known[name] for name in sorted(known)]

    def connections(self) -> dict[str, bool]:
        """Return for each driver name whether the driver is being served.

        Drivers that have never answered are included if their name is known.
        """
        found = {driver.name: True for driver in self.drivers()}
        for link in list(self._links.values()):
            if name := link.spec.name or (link.driver.name if link.driver else ""):
                found[name] = link.is_served and link.client.is_connected
        return found

    def seats(self, queue_name: str) -> int:
        """Return how many threads may work for the driver: all, if it is the only driver."""
        limit = self._seats.get(queue_name)
        if limit is not None:
            return limit
        return default_seats(self._settings.process.concurrency, len(self._drivers))

    def longest_call(self) -> float:
        """Return the longest timeout, in seconds, of any call to any driver of this process."""
        links = list(self._links.values())
        return max((link.longest_call for link in links), default=0.0)

    def connect_all(self) -> None:
        """Connect every `--csi-address` and complete the handshakes (P-001 to P-010).

        Raises:
            ConfigError: a connection or handshake failed; the message and exit code are upstream's.
        """
        addresses = self._settings.driver.csi_addresses
        with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
            found = list(pool.map(self.connect, addresses))
        for link in found:
            driver = link.driver
            if driver is None:
                continue
            if driver.queue_name in self._drivers:
                raise ConfigError(
                    f"--csi-address: two sockets belong to driver {driver.name}. Name each "
                    "driver's socket only once"
                )
            self._adopt(link, driver)

    def add(self, drivers: Iterable[Driver]) -> None:
        """Add drivers that run inside this process and need no connection.

        Raises:
            ConfigError: the name is already in use.
        """
        for driver in drivers:
            if driver.queue_name in self._drivers:
                raise ConfigError(
                    f"--provisioner: {driver.name} is also the name of a CSI driver. Rename "
                    "the provisioner"
                )
            self._drivers[driver.queue_name] = driver

    def connect(self, address: str) -> Link:
        """Connect to one sidecar driver and wait until it is ready."""
        spec = DriverSpec("", address, allow_tcp=False)
        try:
            link = self._open(spec)
        except ConfigError as error:
            text = str(error).partition(": ")[2]
            raise ConfigError(f"--csi-address {address}: {text}", exit_code=1) from error
        wait_answering(link.client, address)
        link.losses = link.client.connection_losses
        link.driver = replace(handshake(link.client, self._settings), pace=link.pace)
        return link

    def apply(self, specs: dict[str, DriverSpec]) -> None:
        """Serve exactly the drivers of the file; unchanged drivers keep their connections.

        Raises:
            ConfigError: an endpoint or a TLS file is unusable; nothing was changed.
        """
        with self._lock:
            current = {link.spec.name: link for link in self._links.values() if link.spec.name}
            opened = self._open_new(specs, current)
            for name, link in current.items():
                if name not in specs or name in opened:
                    self._drop(link)
                elif link.spec != specs[name]:
                    link.change(specs[name])
            for link in opened.values():
                self._links[link.spec.endpoint] = link

    def _open_new(self, specs: dict[str, DriverSpec], current: dict[str, Link]) -> dict[str, Link]:
        """Open the connections that the specs need and do not have; if one fails, open none."""
        opened: dict[str, Link] = {}
        problems = []
        beside = {link.spec.endpoint for link in self._links.values() if not link.spec.name}
        for name, spec in specs.items():
            known = current.get(name)
            if known is not None and known.spec.connection == spec.connection:
                continue
            if spec.endpoint in beside:
                problems.append(
                    f"driver {name}: {spec.endpoint} is also given by --csi-address. Remove one of "
                    "the two"
                )
                continue
            try:
                opened[name] = self._open(spec)
            except ConfigError as error:
                problems.append(str(error))
        if problems:
            for link in opened.values():
                link.client.close()
            raise ConfigError("; ".join(problems))
        return opened

    def serve(self, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Declare the limits and announce the drivers; call this once, after `connect_all`."""
        self._announcing.announce_driverless(queue, registry)
        if self._announcing.has_driverless and self._consumers is not None:
            self._consumers.serve(DRIVERLESS)
        for driver in self.drivers():
            self.announce(driver, queue, registry)
            if self._consumers is not None:
                self._consumers.serve(driver.queue_name)
        for link in self._links.values():
            if link.driver is not None and not link.is_served:
                link.is_served = True
                self._resume(link, link.driver)

    def announce(self, driver: Driver, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Declare the driver's limits, then register it: no key is admitted without a limit."""
        if self._settings.capacity.enabled and not driver.publishes_capacity:
            _log.warning(
                "capacity is not published: the driver does not have the capability GET_CAPACITY",
                driver=driver.name,
            )
        spec = next(
            (x.spec for x in self._links.values() if x.driver is driver), DriverSpec("", "")
        )
        self._announcing.set_limits(driver, spec, queue)
        driver.pace.paced = frozenset(
            operation for operation, one in spec.limits.items() if one.rate_per_second > 0
        )
        self._announcing.register(driver, registry)

    def tick(self, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Renew the registrations and follow the connections of all drivers.

        Call this every `TICK_SECONDS`, always in the same thread.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        now = time.monotonic()
        if now - self._renewed > REGISTRATION_TTL_SECONDS / 3:
            self._renew(registry)
            self._renewed = now
        with self._lock:
            for link in list(self._links.values()):
                self.follow(link, queue, registry)

    def follow(self, link: Link, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Move one link to its next state: lost, connected, shaking hands or served."""
        client = link.client
        is_connected, losses = client.is_connected, client.connection_losses
        if link.is_served:
            if is_connected and losses == link.losses:
                if client.is_tcp:
                    self._prove(link)
                return  # the usual case; it must be cheap: it runs twice a second
            self._lose(link)
        if link.shaking is not None:
            if link.shaking.done():
                self._shaken(link, queue, registry)
            return
        if not is_connected:
            self._wait(link)
        elif time.monotonic() >= link.retry_at:
            pool = self._patient if link.has_failed else self._pool
            link.shaking, link.shaking_losses = pool.submit(self._seen, link, link.shake), losses

    def _prove(self, link: Link) -> None:
        """Probe a TCP connection that has been silent for `PROVE_SECONDS`.

        After a power loss or behind a NAT, a dead connection can accept data without an error. The
        probe finds and replaces such a connection, so that no call for a claim has to time out
        first.
        """
        now = time.monotonic()
        is_under_way = link.proving is not None and not link.proving.done()
        if is_under_way or now - max(link.client.answered_at, link.proved_at) < PROVE_SECONDS:
            return
        link.proved_at = now
        link.proving = self._patient.submit(self._seen, link, partial(self._mend, link))

    def _mend(self, link: Link) -> bool:
        answered_at = link.client.answered_at
        try:
            is_mended = link.client.mend(PROBE_SECONDS)
            if not is_mended and link.client.answered_at == answered_at:
                link.seek(is_connected=False)
        except CsiAddressError as error:  # for example, certificates that cannot be read
            _log.warning("could not retry the connection to a driver", driver=link.name, err=error)
            return False
        if is_mended:
            _log.warning("replacing a connection on which calls got no response", driver=link.name)
        return is_mended

    def stop(self) -> None:
        """Close all connections."""
        for pool in (self._pool, self._patient):
            pool.shutdown(wait=False, cancel_futures=True)
        for link in self._links.values():
            link.client.close()

    def _open(self, spec: DriverSpec) -> Link:
        names = {"name": spec.name or "unknown-driver"}
        pace = SharedPace(self._shared) if self._shared is not None else Pace()

        def observe(method: str, code: str, seconds: float) -> None:
            if self._observer is not None:
                driver = link.driver
                self._observer(driver.name if driver else names["name"], method, code, seconds)

        link = open_link(spec, self._settings, pace, observe, self._make_client)
        return link

    def _adopt(self, link: Link, driver: Driver) -> None:
        """Store a driver under its queue name after its handshake."""
        if link.driver is None:
            _log.info("Detected CSI driver", driver=driver.name)
        if driver.in_tree_name:
            _log.info("Supports migration from in-tree plugin", plugin=driver.in_tree_name)
        link.driver = driver
        link.pace.attach(driver.queue_name)
        self._links[link.spec.endpoint] = link
        self._drivers[driver.queue_name] = driver
        self._take_seats(link.spec, driver)

    def _take_seats(self, spec: DriverSpec, driver: Driver) -> None:
        if spec.threads is None:
            self._seats.pop(driver.queue_name, None)
        else:
            self._seats[driver.queue_name] = spec.threads

    def _seen(self, link: Link, talk: Callable[[], T]) -> T:
        """Run `talk`, which calls the driver; the liveness check notices if it hangs."""
        seconds = LIMIT_SECONDS + TALK_CALLS * link.longest_call
        with HEARTBEATS.during(f"driver {link.name}", seconds):
            return talk()

    def _shaken(self, link: Link, queue: WorkQueue, registry: DriverRegistry) -> None:
        shaking, link.shaking = link.shaking, None
        if shaking is None:
            return
        try:
            driver = shaking.result()
        except Exception as error:  # noqa: BLE001 - no answer may end this thread
            link.retry_at, link.has_failed = time.monotonic() + RETRY_SECONDS, True
            link.tell(str(error))
            return
        link.has_failed = False
        other = self._drivers.get(driver.queue_name)
        if other is not None and other.client is not link.client:
            link.retry_at = time.monotonic() + RETRY_SECONDS
            link.tell(f"driver {driver.name} is already served at a different address")
            return
        is_back = link.driver is not None and link.losses != link.shaking_losses
        self._adopt(link, driver)
        link.losses = link.shaking_losses
        self.announce(driver, queue, registry)
        if not self._resume(link, driver):
            link.retry_at = time.monotonic() + RETRY_SECONDS
            return
        link.is_served, link.told = True, ""
        if is_back:
            _log.warning("reconnected to the driver", driver=driver.name)

    def _resume(self, link: Link, driver: Driver) -> bool:
        """Report the connection; return False if the workers are calling another replica."""
        if self._shared is not None:
            since, place = suspend_aware_clock(), link.place
            verdict = self._shared.back(driver.queue_name, REGISTRATION_TTL_SECONDS, place)
            if not self._obey(link, verdict, place, since):
                return False
        if self._consumers is not None:
            self._consumers.serve(driver.queue_name)
        link.lost_told_at = float("-inf")
        return True

    def _obey(self, link: Link, verdict: Verdict, asked: Place, since: float) -> bool:
        """Allow or forbid calls to the replica; return True if they are allowed.

        `verdict` is the Redis reply about the replica `asked`; `since` is the time of the request.
        """
        replica = link.client.replica
        if replica is None:
            return True
        replica.chosen = "" if verdict.is_ours else verdict.chosen
        if verdict.is_ours:
            hold, ttl = verdict.hold_seconds, REGISTRATION_TTL_SECONDS
            return replica.admit(asked.address, since, hold, ttl)
        replica.revoke()
        called = f"at {verdict.chosen} is called" if verdict.chosen else "is called, if any"
        link.tell(f"the workers have to agree on a replica; the one {called}")
        return False

    def _lose(self, link: Link) -> None:
        link.is_served, link.waiting_since = False, time.monotonic()
        if link.client.replica is not None:
            link.client.replica.revoke()
        _log.warning(
            "lost the connection to the driver; work for the driver is waiting", driver=link.name
        )
        if link.driver is not None and self._consumers is not None:
            self._consumers.leave(link.driver.queue_name)

    def _wait(self, link: Link) -> None:
        """Report the lost connection to the other workers, and log why there is no connection."""
        now = time.monotonic()
        if (
            link.driver is not None
            and self._shared is not None
            and now - link.lost_told_at > LOST_AGAIN_SECONDS
        ):
            self._shared.lost(link.driver.queue_name, "driver socket lost", link.place)
            link.lost_told_at = now
        if link.diagnosis is not None and link.diagnosis.done():
            link.tell(link.diagnosis.result())
            link.diagnosis, link.waiting_since = None, now
        elif link.diagnosis is None and now - link.waiting_since > TELL_AFTER_SECONDS:
            link.diagnosis = self._patient.submit(self._seen, link, link.diagnose)

    def _drop(self, link: Link) -> None:
        """Stop serving the driver: its keys wait in Redis, and its registration expires."""
        self._links.pop(link.spec.endpoint, None)
        if link.driver is not None:
            name = link.driver.queue_name
            if self._consumers is not None:
                self._consumers.leave(name)
            self._drivers.pop(name, None)
            self._seats.pop(name, None)
            self._records.pop(name, None)
            _log.info("the driver is no longer served", driver=link.name)
        # Reconciles that are running may finish, so the client is closed only after the longest
        # possible call.
        timer = threading.Timer(link.longest_call, link.client.close)
        timer.daemon = True
        timer.start()

    def _renew(self, registry: DriverRegistry) -> None:
        drivers = self.drivers()
        if self._shared is None:
            for driver in drivers:
                self._announcing.register(driver, registry)
            return
        parted = {x.driver.queue_name for x in self._links.values() if x.driver and not x.is_served}
        place = self._announcing.place
        records = {place(driver.queue_name): self._record(driver) for driver in drivers}
        links = {x.driver.queue_name: x for x in self._links.values() if x.driver}
        connected = {
            place(name): links[name].place if name in links else ANYWHERE
            for name in (driver.queue_name for driver in drivers)
            if name not in parted
        }
        if self._announcing.has_driverless:
            records[place(DRIVERLESS)] = record_text(self._announcing.driverless_record())
        if records:
            since = suspend_aware_clock()
            told = self._shared.keep(records, connected, ttl_seconds=REGISTRATION_TTL_SECONDS)
            for name, link in links.items():
                asked = connected.get(place(name), ANYWHERE)
                if name in told and not self._obey(link, told[name], asked, since):
                    self._lose(link)
                elif name not in parted and link.client.replica is not None:
                    link.client.replica.renew(since, REGISTRATION_TTL_SECONDS)

    def _record(self, driver: Driver) -> str | bytes:
        """Return the driver's record as a string; cached until there is a new handshake."""
        known = self._records.get(driver.queue_name)
        if known is None or known[0] is not driver:
            known = self._records[driver.queue_name] = (
                driver,
                record_text(self._announcing.record(driver)),
            )
        return known[1]
