"""The one port through which a pass changes anything outside the process.

A pass writes to the API server, calls the driver, sends events and keeps a record in Redis only
through this port; it reads through `Context`. With another object here the same pass changes
nothing: in a rehearsal, or in a controller that runs next to a Go sidecar and only records its
decisions.
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
    """The port that really performs the effects.

    Attributes:
        kube: writes the API server's objects, and reads them live for a change that starts with a
            fresh read.
        events: sends events to users.
        queue: stores marks.
        steps: called before each effect.
    """

    kube: KubeResources
    events: EventRecorder
    queue: WorkQueue
    steps: Steps = field(default_factory=LeasedSteps)

    def reach(self, step: str, lease: Lease) -> None:
        """Announce the next effect; called right before each effect.

        Raises:
            LeaseLost: the key already has another owner (G9).
        """
        self.steps.reach(step, lease)

    def client(self, driver: Driver) -> CsiClient:
        """Return the client for every call that a pass makes to the driver."""
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
        """Keep a small record with the key; {} removes it (see `WorkQueue.mark`).

        Raises:
            LeaseLost: the key already has another owner.
            QueueUnavailable: Redis does not answer.
        """
        self.queue.mark(lease, mark)
