"""The one port through which a pass does anything to the world.

What a pass may do is here and nowhere else: write to the API server, ask the driver, tell users,
keep a record in Redis. Reading is `Context`'s. So a pass that must do nothing (a rehearsal, a
controller that runs beside a Go sidecar and only records what it would do) is the same pass with
another object here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workers.engine.steps import LeasedSteps, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from csi_client.client import CsiClient
    from workers.drivers.driver import Driver
    from workers.kube.events import EventRecorder, EventType
    from workers.kube.resources import KubeResources
    from workers.queue.leases import Lease
    from workers.queue.workqueue import WorkQueue


@dataclass
class Effects:
    """Effects that happen.

    Attributes:
        kube: the API server's objects, to be written; its reads are live too, for a change that
            starts with a fresh read.
        events: tells users.
        queue: keeps marks.
        steps: told before each effect.
    """

    kube: KubeResources
    events: EventRecorder
    queue: WorkQueue
    steps: Steps = field(default_factory=LeasedSteps)

    def reach(self, step: str, lease: Lease) -> None:
        """Say which effect comes next; called right before each of them.

        Raises:
            LeaseLost: the key has another owner by now (G9).
        """
        self.steps.reach(step, lease)

    def client(self, driver: Driver) -> CsiClient:
        """The driver, to be called: every call that a pass makes is made on this."""
        return driver.client

    def event(
        self,
        involved: Mapping[str, Any],
        event_type: EventType,
        reason: str,
        message: str,
        *,
        component: str,
    ) -> None:
        """Tell users of an object; never blocks, never raises (see `EventRecorder.event`)."""
        self.events.event(involved, event_type, reason, message, component=component)

    def mark(self, lease: Lease, mark: Mapping[str, Any]) -> None:
        """Keep a small record with the key; {} removes it (see `WorkQueue.mark`).

        Raises:
            LeaseLost: the key has another owner by now.
            QueueUnavailable: Redis does not answer.
        """
        self.queue.mark(lease, mark)
