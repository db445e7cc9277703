"""The only port through which a reconcile changes anything outside the process.

A reconcile uses this port to write to the API server, to call the driver, to send events and to
keep a record in Redis. It reads through `Context`. If the port is replaced by an object that
performs no effects, the same reconcile changes nothing. Such an object is used for rehearsals, and
for a controller that runs alongside a Go sidecar and only records its decisions.
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
    """The port that actually performs the effects.

    Attributes:
        kube: writes objects to the API server, and reads them live for changes that begin with
            a fresh read.
        events: sends events to users.
        queue: stores marks.
        steps: called before each effect.
    """

    kube: KubeResources
    events: EventRecorder
    queue: WorkQueue
    steps: Steps = field(default_factory=LeasedSteps)

    def reach(self, step: str, lease: Lease) -> None:
        """Announce the next effect; call this immediately before each effect.

        Raises:
            LeaseLost: the key already has another owner (G9).
        """
        self.steps.reach(step, lease)

    def client(self, driver: Driver) -> CsiClient:
        """Return the client for all calls that a reconcile makes to the driver."""
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
        """Send an event about an object; never blocks, never raises (see `EventRecorder.event`)."""
        self.events.event(involved, event_type, reason, message, component=component)

    def mark(self, lease: Lease, mark: Mapping[str, Any]) -> None:
        """Store a small record with the key; {} removes the record (see `WorkQueue.mark`).

        Raises:
            LeaseLost: the key already has another owner.
            QueueUnavailable: Redis does not answer.
        """
        self.queue.mark(lease, mark)
