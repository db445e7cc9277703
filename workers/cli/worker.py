"""`csi-fleet worker`: one worker process, from its flags to a clean end.

It starts in the same order as the Go sidecars (F-010): it connects to the driver first, so that a
wrong socket is reported before anything else, then to the API server and Redis, and then starts
Celery. On SIGTERM, it finishes running reconciles and then releases all leases at once.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from csi_client.connection import links_silent_seconds
from workers.app import make_app, publisher
from workers.cli.consumers import CeleryConsumers
from workers.cli.discovery import discovered_gates
from workers.cli.elections import Elections
from workers.cli.pool import POOL
from workers.cli.shadowing import Shadowing
from workers.cli.waking import SignalWaker
from workers.controllers import catalogue
from workers.drivers.central import Central
from workers.drivers.fleet import TICK_SECONDS, Fleet
from workers.drivers.seats import Seats
from workers.engine.context import Context
from workers.engine.controller import KeepsParts, Means, load
from workers.engine.effects import Effects
from workers.engine.passes import Passes, longest_pass
from workers.engine.pausing import mirror_first
from workers.engine.periodic import Periodic
from workers.errors import ConfigError, QueueUnavailable
from workers.explain.lasting import Lasting
from workers.kube.events import EventRecorder
from workers.kube.pauserecord import PauseRecord
from workers.kube.resources import KubeResources
from workers.loop import Loop
from workers.migration import plugins
from workers.observability.health import HEARTBEATS, LIMIT_SECONDS, Heart
from workers.observability.http import Checks, always_ok
from workers.observability.logging import get_logger
from workers.observability.metrics import Metrics
from workers.observability.requests import csi_observer
from workers.observability.tracing import Tracing
from workers.process import (
    ending_at_once,
    kube_client,
    mark_ready,
    ready_file,
    serve,
    tell_liveness,
)
from workers.queue.catalog import CatalogReader
from workers.queue.connection import RedisClient, connect, connect_heartbeat
from workers.queue.leases import Heartbeat, guard_of_lease
from workers.queue.lifeline import Lifeline
from workers.queue.links import Links
from workers.queue.pauses import Pauses
from workers.queue.periods import Periods
from workers.queue.registry import DriverRegistry
from workers.queue.seal import Seal
from workers.queue.workqueue import WorkQueue
from workers.tasks.registry import register

if TYPE_CHECKING:
    from celery import Celery

    from workers.config.settings import Settings
    from workers.kube.client import KubeClient
    from workers.observability.http import DiagnosticsServer
    from workers.queue.keys import Key

_log = get_logger(__name__)

READY_FILE: Final = "worker.ready"
# How often a worker checks whether its limits are declared in Redis's current epoch.
LIMITS_SECONDS: Final = 0.25
CONSUMER: Final = "consumer"
# Longer than the 2 to 30 s that Celery waits before it reconnects.
CONSUMER_SECONDS: Final = 120.0


class WorkerProcess:
    """Everything that one worker process owns."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.controllers = [load(name) for name in settings.chosen]
        self.metrics = Metrics()
        self.app: Celery = make_app(settings, self.metrics.malformed_messages.inc)
        self.consumer_heart: Heart | None = None
        specs = catalogue.specs(settings.chosen)
        self.waker = SignalWaker()
        self.consumers = CeleryConsumers(
            self.app, specs, on_round=self.go_round, on_connected=self.waker.attach
        )
        self.tracing = Tracing.from_environment(os.environ)
        self.http: DiagnosticsServer | None = None
        self.running: list[Loop] = []
        self._stopped = threading.Event()
        self._connected: dict[str, bool] = {}
        self.lifeline = Lifeline()
        self._kinds = [kind.name for spec in specs for kind in spec.kinds if kind.has_driver]

    def connect(self) -> None:
        """Connect to the API server, Redis and drivers; report a failure in one line (P-001)."""
        settings = self.settings
        client = kube_client(settings, metrics=self.metrics, guard=guard_of_lease)
        self.client = client
        self.kube = KubeResources(client)
        self.shadowing = Shadowing(client)
        settings = self.settings = replace(settings, gates=discovered_gates(settings, self.kube))
        url = settings.redis.url_with_credentials()
        password_file = settings.redis.password_file
        redis = connect(url, password_file=password_file)
        seal = Seal.of_lines(settings.redis.record_keys)
        self.pauses = Pauses(redis)
        record = PauseRecord(self.kube, settings.kube.namespace)
        self.make_fleet(Links(redis, publish=publisher(self.app)))
        threads = settings.process.concurrency
        self.seats = Seats(self.fleet.seats, self.consumers.hold, threads=threads)
        self.queue = WorkQueue(
            redis,
            publish=publisher(self.app),
            heartbeat_client=connect_heartbeat(url, password_file=password_file),
            lease_ttl_seconds=settings.process.lease_ttl_seconds,
            on_lost=self.wake_heartbeat,
            before_limits=lambda _lane: mirror_first(self.pauses, record),
            seal=seal,
            caller=self.lifeline.caller if has_only_sockets(settings) else "",
        )
        self.pauses.attach(self.queue)
        self.shadowing.start(redis, self.metrics, self.fleet)
        self.heartbeat = Heartbeat(
            self.queue,
            interval_seconds=settings.process.lease_ttl_seconds / 4,
        )
        self.registry = DriverRegistry(redis)
        catalog = CatalogReader(redis)
        periods = Periods(redis)
        means = Means(settings, redis, seal, self.kube, self.queue, catalog, periods, self.metrics)
        self.leadership = self.elections(redis) if settings.leader.enabled else None
        lasting = self.make_events(client, redis, periods)
        self.periodic = Periodic(
            self.fleet.drivers,
            queue=self.queue,
            periods=periods,
            controllers=self.controllers,
            context=lambda: self.context,
            lasting=lasting,
        )
        self.context = self.make_context(means, lasting)
        by_kind = {kind.name: one for one in self.controllers for kind in one.spec.kinds}
        register(self.app, self.context, by_kind, self.periodic)
        # Connect the drivers last: work that is waiting for a driver must not also wait for the
        # rest of the startup.
        self.connect_drivers()

    def make_parts(self, means: Means) -> dict[str, Any]:
        """Build the objects that the controllers keep for the lifetime of this process."""
        parts: dict[str, Any] = {}
        for controller in self.controllers:
            if isinstance(controller, KeepsParts):
                parts[controller.spec.name] = controller.build(means, parts)
        return parts

    def make_context(self, means: Means, lasting: Lasting) -> Context:
        """Build the context that is passed to every reconcile."""
        settings = self.settings
        return Context(
            settings=settings,
            kube=self.kube,
            effects=Effects(self.kube, self.events, self.queue),
            queue=self.queue,
            catalog=means.catalog,
            parts=self.make_parts(means),
            driver_of=self.fleet.driver_of,
            pauses=self.pauses,
            seats=self.seats,
            metrics=self.metrics,
            lasting=lasting,
            passes=Passes(lambda: longest_pass(self.fleet.longest_call())),
            tracing=self.tracing,
            may_work=self.leadership.may_work if self.leadership is not None else None,
            goes_on=self.goes_on,
            shown=self.consumers.shown,
        )

    def goes_on(self, key: Key) -> bool:
        """Return True if the thread may take another key from the list that contains this key."""
        return self.seats.has_room(key.driver) and self.consumers.fetches(key)

    def connect_drivers(self) -> None:
        """Connect drivers on the same host, plug-ins, and the drivers of the drivers file."""
        self.fleet.connect_all()
        self.refuse_unserved()
        if plugins_wanted := self.settings.driver.provisioners:
            from workers.custom.loading import load_all  # noqa: PLC0415 - rarely needed

            self.fleet.add(load_all(plugins_wanted, self.settings))
        if self.central is not None:
            self.central.start()

    def refuse_unserved(self) -> None:
        """End the worker with a message if none of its controllers supports its driver (R-004)."""
        for driver in self.fleet.drivers():
            if self.controllers and not any(one.serves(driver) for one in self.controllers):
                spec = self.controllers[0].spec
                raise ConfigError(spec.unserved, exit_code=spec.unserved_code)

    def make_events(self, client: KubeClient, redis: RedisClient, periods: Periods) -> Lasting:
        """Create the event recorder, and the check for claims that are blocked for a long time."""
        self.events = EventRecorder(
            client,
            on_drop=lambda reason: self.metrics.events_dropped.labels(reason).inc(),
        )
        return Lasting(
            redis,
            queue=self.queue,
            registry=self.registry,
            periods=periods,
            events=self.events,
        )

    def make_fleet(self, shared: Links) -> None:
        """Create the fleet of drivers and, in central mode, the reader of the drivers file."""
        settings = self.settings
        self.fleet = Fleet(
            settings,
            observer=csi_observer(self.metrics, lambda name: plugins.of_driver(name) is not None),
            shared=shared,
            consumers=self.consumers,
            controllers=self.controllers,
            make_client=self.shadowing.make_client,
        )
        path = settings.driver.drivers_file
        self.central = (
            Central(self.fleet, Path(path), pool=settings.driver.drivers_pool) if path else None
        )

    def elections(self, redis: RedisClient) -> Elections:
        """Create the candidate for the Leases of the replaced Go sidecars (F-020, M-020)."""
        return Elections(
            self.settings,
            [controller.spec for controller in self.controllers],
            fleet=self.fleet,
            consumers=self.consumers,
            queue=self.queue,
            redis=redis,
            metrics=self.metrics,
        )

    def wake_heartbeat(self) -> None:
        """Run the heartbeat at once, because the queue has noticed that our leases are gone."""
        self.heartbeat.wake()

    def announce(self) -> None:
        """Register the process and its drivers; wait until Redis answers."""
        delay = 0.2
        while not self._stopped.is_set():
            try:
                self.queue.register_process()
                if self.leadership is not None:  # before anything is admitted
                    self.leadership.step()
                self.fleet.serve(self.queue, self.registry)
            except QueueUnavailable as error:
                _log.warning("waiting for Redis", err=error)
                time.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                return

    def loops(self) -> list[Loop]:
        """The background loops of every worker."""
        found = [
            # If Redis's host drops packets, the steps of this loop take this long: 21 s for the
            # sweep (`workers.queue.connection`), 31 s for sending messages
            # (`workers.app.TRANSPORT`: a timeout, then three connections) and 21 s for a stuck
            # reconcile. Dead sentinels add about 3 s for each connection.
            Loop("pump", self.pump),
            Loop("limits", self.declare_limits),
            Loop("drivers", self.follow_drivers),
            Loop("periodic", self.periodic.step),
            *self.shadowing.loops(),
        ]
        if self.central is not None:
            found.append(Loop("drivers-file", self.central.step))
        return found

    def start_threads(self) -> None:
        """Start the heartbeat, the events, the Leases and the loops."""
        self.heartbeat.start()
        self.events.start()
        if self.leadership is not None:
            self.leadership.start()
        self.running = self.loops()
        for loop in self.running:
            loop.start()

    def pump(self) -> float:
        """Run queue maintenance; in each period, only one of all processes does so.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        try:
            self.publish()
            seconds = self.queue.pump()
            self.context.passes.expire(self.queue)
        except QueueUnavailable:
            # Without Redis there is nothing to fetch, and restarting this process would not help.
            self.consumer_lives()
            raise
        return seconds

    def follow_drivers(self) -> float:
        """Keep the drivers registered as long as the process runs.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        self.fleet.tick(self.queue, self.registry)
        return TICK_SECONDS

    def check_live(self) -> str:
        """Return what is hanging: a loop, a reconcile, the consumer or the driver connections."""
        silent = links_silent_seconds()
        links = f"csi-links: no progress for {silent:.0f} s" if silent > LIMIT_SECONDS else ""
        return "; ".join(filter(None, (HEARTBEATS.check(), links)))

    def declare_limits(self) -> float:
        """Declare the pauses, then the limits, after Redis has lost its data.

        This step has a loop of its own, because it may have to wait.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        self.queue.declared.declare()
        return LIMITS_SECONDS

    def publish(self) -> None:
        """Update the gauges of this process."""
        self.context.running.publish()
        now = self.fleet.connections()
        for name in self._connected.keys() - now.keys():
            self.metrics.driver_left(name)
        for name, is_connected in now.items():
            if self._connected.get(name) is not is_connected:  # changed ones only
                self.metrics.driver_connected.labels(name).set(int(is_connected))
            if name not in self._connected:
                self.metrics.expect(name, self._kinds)
        self._connected = now

    def serve(self) -> None:
        """Serve metrics and probes if enabled; the process is live while loops and consumer run."""
        ready = ready_file(self.settings.process.state_dir, READY_FILE)
        leader = self.leadership.check if self.leadership is not None else always_ok
        checks = Checks(live=self.check_live, ready=ready, leader=leader)
        self.http = serve(self.settings, self.metrics, checks)
        tell_liveness(self.settings, self.check_live)

    def consume(self) -> int:
        """Run Celery until a signal arrives; return its exit code."""
        self.consumers.start()
        worker = self.app.Worker(
            hostname=f"worker-{threading.get_native_id()}@{socket.gethostname()}",
            pool=POOL,
            concurrency=self.settings.process.concurrency,
            without_gossip=True,
            without_mingle=True,
            loglevel="WARNING",
            redirect_stdouts=False,
            quiet=True,
        )
        self.mark_ready()
        with HEARTBEATS.during(CONSUMER, CONSUMER_SECONDS) as self.consumer_heart:
            worker.start()
        return int(worker.exitcode or 0)

    def consumer_lives(self) -> None:
        """Record that the consumer is alive, even if it cannot fetch messages without Redis."""
        if self.consumer_heart is not None:
            self.consumer_heart.beat()

    def go_round(self) -> None:
        """Record a round of Celery's loop, which fetches messages; recheck the drivers' slots."""
        self.consumer_lives()
        self.seats.look_again()

    def mark_ready(self) -> None:
        """Report that startup is complete."""
        mark_ready(self.settings, READY_FILE)

    def stop(self) -> None:
        """Release everything; this can be called twice."""
        self._stopped.set()
        for loop in self.running:
            loop.stop()
        if self.leadership is not None:
            self.leadership.stop()
        self.events.stop(timeout_seconds=3.0)
        self.heartbeat.stop()
        try:
            self.queue.close()
        except QueueUnavailable as error:
            _log.warning("could not give back the leases; they expire automatically", err=error)
        self.fleet.stop()
        self.tracing.stop()
        self.waker.close()
        if self.http is not None:
            self.http.stop()


def has_only_sockets(settings: Settings) -> bool:
    """Return True if all drivers use local Unix sockets, so that all calls end with the process."""
    driver = settings.driver
    return bool(driver.csi_addresses) and not driver.drivers_file and not driver.provisioners


def run(settings: Settings) -> int:
    """Run the command; return the exit code."""
    # These warnings concern pickles loaded by root, and late acknowledgement; csi-fleet uses
    # neither pickles nor late acknowledgement.
    for one in (SecurityWarning, CPendingDeprecationWarning):
        warnings.filterwarnings("ignore", category=one)
    process = WorkerProcess(settings)
    with ending_at_once():
        process.connect()
    process.serve()
    process.announce()
    process.start_threads()
    try:
        return process.consume()
    finally:
        process.stop()
