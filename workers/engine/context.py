"""Contains what a worker passes to each reconcile: readers, and the interface for all changes."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workers.drivers.seats import Seats
from workers.engine.passes import Passes
from workers.observability.metrics import Metrics
from workers.observability.running import RunningWork
from workers.observability.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from workers.config.settings import Settings
    from workers.drivers.driver import Driver
    from workers.engine.effects import Effects
    from workers.engine.outcome import Outcome
    from workers.explain.lasting import Lasting
    from workers.kube.reading import KubeReader
    from workers.queue.catalog import CatalogReader
    from workers.queue.keys import Key
    from workers.queue.pauses import Pauses
    from workers.queue.workqueue import WorkQueue


@dataclass
class Context:
    """The connections and stores that the threads of one worker process share.

    Attributes:
        kube: reads objects live from the API server.
        effects: the only way to change anything outside this process.
        driver_of: returns the connected driver with the given queue name; None if this process
            does not serve it.
        parts: the objects that controllers keep in this process, by controller name.
        lasting: sends events about claims that have been held back for a long time; None for no
            such events.
        may_work: called with a kind and a queue name; returns True if this process may work on
            such keys now. None means that there are no elections, so the process always may.
        goes_on: called with a key whose reconcile is about to end; returns True if the thread
            may take another key of the same list.
        shown: called with a task and a key; returns a context manager that shows the reconcile to
            tools that watch tasks. It yields a function that is called with the outcome.
    """

    settings: Settings
    kube: KubeReader
    effects: Effects
    queue: WorkQueue
    catalog: CatalogReader
    driver_of: Callable[[str], Driver | None]
    parts: Mapping[str, Any] = field(default_factory=dict)
    pauses: Pauses | None = None
    seats: Seats = field(default_factory=lambda: Seats(lambda _: sys.maxsize))
    metrics: Metrics = field(default_factory=Metrics)
    lasting: Lasting | None = None
    tracing: Tracing = field(default_factory=Tracing)
    passes: Passes = field(default_factory=Passes)
    may_work: Callable[[str, str], bool] | None = None
    goes_on: Callable[[Key], bool] = field(default=lambda _: False)
    shown: Callable[[str, Key], AbstractContextManager[Callable[[Outcome], None]]] = field(
        default=lambda *_: nullcontext(lambda _: None)
    )
    running: RunningWork = field(init=False)

    def __post_init__(self) -> None:
        self.running = RunningWork(self.metrics)


Runtime = Context
