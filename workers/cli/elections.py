"""Competes for the Leases of a worker process, and reacts when they change hands."""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING

from workers.controllers import catalogue
from workers.drivers.announcing import DRIVERLESS
from workers.engine.leadership import SETTLED_PERIODS, Candidate, Leadership, QueueLanes
from workers.engine.leasename import LeaseIdentity
from workers.kube.client import KubeClient
from workers.kube.resources import KubeResources
from workers.observability.requests import api_observer
from workers.queue.fellows import INSTALLATION_VARIABLE, LeaseFellows
from workers.queue.kinds import place_of
from workers.queue.leases import suspend_aware_clock
from workers.queue.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workers.cli.consumers import CeleryConsumers
    from workers.config.load import Settings
    from workers.drivers.driver import Driver
    from workers.drivers.fleet import Fleet
    from workers.observability.metrics import Metrics
    from workers.queue.connection import RedisClient
    from workers.queue.workqueue import WorkQueue
    from workers.spec import Spec


class Elections:
    """The Leases of a worker that replaces Go sidecars, one for each controller and driver.

    Spec: F-020, M-020.

    Args:
        settings: the settings of the process.
        specs: the controllers that this process runs.
        fleet: the drivers.
        consumers: the Celery queues; a driver's queue is not read while this process must not
            work on the driver's keys.
        queue: the work queue; a driver's keys are paused while another installation holds a Lease.
        redis: the connection to the queue's Redis.
        metrics: the metrics of the process.
    """

    def __init__(
        self,
        settings: Settings,
        specs: Sequence[Spec],
        *,
        fleet: Fleet,
        consumers: CeleryConsumers,
        queue: WorkQueue,
        redis: RedisClient,
        metrics: Metrics,
    ) -> None:
        self._specs = specs
        self._fleet = fleet
        self._consumers = consumers
        leader, kube, presence = settings.leader, settings.kube, Presence(redis)
        # A separate client, because no request may outlast the holder's deadline.
        client = KubeClient.from_settings(
            kube.kubeconfig,
            kube.master,
            observer=api_observer(metrics),
            timeout_seconds=leader.renew_deadline_seconds / 2,
            repeats=0,
        )
        self.leadership = Leadership(
            KubeResources(client),
            leader,
            LeaseIdentity(socket.gethostname(), uuid.uuid4().hex),
            QueueLanes(queue),
            fellows=LeaseFellows(
                redis,
                settle_seconds=SETTLED_PERIODS * leader.retry_period_seconds,
                given=os.environ.get(INSTALLATION_VARIABLE, ""),
            ),
            on_change=self._follow,
            on_trouble=lambda trouble: presence.complain("worker", [trouble]),
            metrics=metrics,
            clock=suspend_aware_clock,
        )
        leased = [catalogue.kinds_with_parts(spec) for spec in specs if spec.lease_name is not None]
        self._leased = frozenset(kind for kinds in leased for kind in kinds)

    def may_work(self, kind: str, queue_name: str) -> bool:
        """Return True if this process is now allowed to work on keys of that kind and driver."""
        return kind not in self._leased or self.leadership.may_work(kind, queue_name)

    def step(self) -> None:
        """Check every Lease once, before any key is admitted.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        self.leadership.step(self._candidates())

    def start(self) -> None:
        """Acquire and renew the Leases in the background until `stop`."""
        self.leadership.start(self._candidates)

    def check(self) -> str:
        """Return which of our Leases is overdue for renewal, or "" if none is (F-022)."""
        return self.leadership.check()

    def stop(self) -> None:
        """Release our Leases if no other worker uses them; call this after all work has ended."""
        self.leadership.stop()

    def _candidates(self) -> list[Candidate]:
        return candidates(self._specs, self._fleet.drivers())

    def _follow(self, candidate: Candidate, is_back: bool) -> None:
        """React to a gained or lost Lease.

        After a loss, calls that are no longer allowed are stopped, and the keys are left to other
        processes.
        """
        driver = self._fleet.driver_of(candidate.queue_name)
        if driver is not None:
            driver.client.recheck()
        places = {place_of(candidate.queue_name, kind) for kind in candidate.kinds}
        self._consumers.stand_back(places, is_back)


def candidates(specs: Iterable[Spec], drivers: Iterable[Driver]) -> list[Candidate]:
    """Return a candidacy for each driver and each controller that uses Leases.

    The Lease also covers the sub-controllers of the controller.
    """
    names = [(one.queue_name, one.name) for one in drivers]
    return [
        Candidate(queue_name, spec.lease_name(name), tuple(catalogue.kinds_with_parts(spec)))
        for spec in specs
        if spec.lease_name is not None
        for queue_name, name in (names if spec.needs_driver else [(DRIVERLESS, "")])
    ]
