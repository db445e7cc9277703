"""The events of all workers together: one budget in Redis, in the form the recorder has (L-006)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.kube.events import EventPlan
from workers.queue.correlate import Create, Occurrence, Patch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.kube.objects import JsonObject
    from workers.queue.correlate import Decision, EventBudget


class SharedCorrelator:
    """One event budget for all workers (L-006), fed with the form the recorder has."""

    def __init__(self, budget: EventBudget) -> None:
        self._budget = budget

    def plan(self, events: Sequence[JsonObject]) -> list[EventPlan]:
        """What to write for these events."""
        occurrences = [
            Occurrence(
                event["source"]["component"],
                event["involvedObject"],
                event["type"],
                event["reason"],
                event["message"],
            )
            for event in events
        ]
        decisions = self._budget.decide(occurrences)
        return [_plan(*pair) for pair in zip(events, decisions, strict=True)]


def _plan(event: JsonObject, decision: Decision) -> EventPlan:
    if isinstance(decision, Create):
        return EventPlan("create", decision.name, 1, decision.message)
    if isinstance(decision, Patch):
        return EventPlan("patch", decision.name, decision.count, decision.message)
    return EventPlan("drop", event["metadata"]["name"], 0, event["message"])
