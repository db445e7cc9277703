"""Changes the Celery queues (lists in Redis) that a running worker reads.

Any thread may change the set of wanted queues. Celery's event loop applies the set after each
change and each (re)connection. A list that is no longer read keeps its messages for the driver's
next worker.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from celery import bootsteps
from celery.worker import state as worker_state
from celery.worker.consumer import Consumer

from workers.app import SYSTEM_QUEUE, queue_for
from workers.controllers import catalogue
from workers.engine.outcome import Action
from workers.observability import trail
from workers.queue.kinds import place_of, places
from workers.queue.names import celery_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery import Celery

    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.spec import Spec


ROUND_SECONDS: Final = 5.0
ASK_SECONDS: Final = 1
"""How long one request waits for the next message; kombu's default."""
HELD_SECONDS: Final = 0.1
"""How long one request waits while a list is held back.

This is short, so that the list's next message does not wait for a second once the list is read
again.
"""
MOST_TRIES: Final = 100


class ThreadsConsumer(Consumer):
    """Celery's consumer, made safe for threads that begin and end tasks while it closes."""

    def on_close(self) -> None:
        """Close; retry if other threads change the sets while Celery iterates over them."""
        for _ in range(MOST_TRIES):
            try:
                super().on_close()
            except RuntimeError:
                continue
            return
        super().on_close()


class CeleryConsumers:
    """The queues of one worker process; any thread may change them.

    Args:
        app: the Celery application whose worker fetches the messages.
        specs: the controllers whose lists the process reads.
        on_round: called every `ROUND_SECONDS` while Celery's event loop runs and is connected.
        on_connected: called with Celery's event loop on every (re)connection.
    """

    def __init__(
        self,
        app: Celery,
        specs: Sequence[Spec] = catalogue.SPECS[:1],
        *,
        on_round: Callable[[], None] = lambda: None,
        on_connected: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self._app = app
        self._specs = specs
        self._on_round = on_round
        self._on_connected = on_connected
        self._rounds: Any = None
        self._lock = threading.Lock()
        self._served: set[str] = set()
        self._held: set[str] = set()
        self._left: set[str] = set()
        self._consumer: Any = None
        app.conf.worker_consumer = ThreadsConsumer
        app.steps["consumer"].add(_step(self))

    def serve(self, queue_name: str) -> None:
        """Start fetching messages from this driver's lists."""
        with self._lock:
            self._served |= self._queues(queue_name)
        self._ask()

    def leave(self, queue_name: str) -> None:
        """Stop fetching messages from this driver's lists."""
        with self._lock:
            self._served -= self._queues(queue_name)
        self._ask()

    def hold(self, queue_name: str, is_full: bool) -> None:
        """Stop fetching the driver's messages if all its slots are in use, or resume if not."""
        with self._lock:
            names = self._queues(queue_name)
            self._held = self._held | names if is_full else self._held - names
        self._ask()

    def _queues(self, queue_name: str) -> set[str]:
        return {celery_queue(place) for place in places(queue_name, self._specs)}

    def stand_back(self, wanted_places: Iterable[str], is_back: bool) -> None:
        """Stop reading these lists while this process may not work on their keys, or resume.

        Other processes read the lists in the meantime.
        """
        with self._lock:
            names = {celery_queue(place) for place in wanted_places}
            self._left = self._left | names if is_back else self._left - names
        self._ask()

    def wanted(self) -> set[str]:
        """Return the names of the Celery queues to fetch from."""
        with self._lock:
            return {SYSTEM_QUEUE} | (self._served - self._held - self._left)

    def fetches(self, key: Key) -> bool:
        """Return True if a thread may take another key from the list that contains this key."""
        consumer = self._consumer
        ends = (worker_state.should_stop, worker_state.should_terminate)
        if consumer is None or ends != (None, None):
            return False
        if any(tuple(consumer.task_buckets.values())):  # an operator limited a task's rate
            return False
        with self._lock:
            name = celery_queue(place_of(key.driver, key.kind))
            return name in self._served and name not in self._left

    @contextmanager
    def shown(self, task: str, key: Key) -> Iterator[Callable[[Outcome], None]]:
        """Show a reconcile as a Celery task while a client such as Flower has enabled task events.

        If the reconcile recorded an error, the task is shown as a FAILURE, whatever happens to the
        key. If it recorded no error but the key is retried, the task is shown as a RETRY.
        """
        events = getattr(self._consumer, "event_dispatcher", None)
        if events is None or (events.groups and "task" not in events.groups):
            yield lambda _: None
            return
        name, started = str(uuid4()), time.monotonic()

        def tell(what: str, **fields: Any) -> None:
            with suppress(Exception):  # an event that cannot be sent must not fail the pass
                events.send(what, uuid=name, **fields)

        def ended(outcome: Outcome) -> None:
            ends[:] = [_end_of(outcome)]

        ends: list[tuple[str, dict[str, str]]] = []
        args = f"{key.object} {key.driver}"
        tell("task-received", name=task, args=args, kwargs="{}", root_id=name, retries=0)
        tell("task-started")
        try:
            yield ended
        finally:
            what, fields = ends[0] if ends else _failed("csi-fleet stopped the task")
            tell(what, **fields, runtime=time.monotonic() - started)

    def start(self) -> None:
        """Register the application's first queues; call this before the worker is created."""
        self._app.amqp.queues.clear()
        for name in self.wanted():
            self._app.amqp.queues.select_add(queue_for(name))

    def connected(self, consumer: Any) -> None:
        """Store Celery's consumer after each (re)connection."""
        self._consumer = consumer
        # Celery's loop checks for a free thread only once a second, so this call wakes it.
        consumer.pool.on_end = lambda: consumer.call_soon(_nothing)
        self._on_connected(consumer.hub)
        self._ask()
        if self._rounds is not None:
            self._rounds.cancel()
        self._rounds = consumer.timer.call_repeatedly(ROUND_SECONDS, self._round)

    def ending(self, consumer: Any) -> None:
        """Drop Celery's consumer before it stops or reconnects, so that no further key is taken."""
        self._consumer = None
        # kombu leaves callbacks in on_tick, which would keep the whole connection in memory.
        consumer.hub.on_tick.clear()

    def _round(self) -> None:
        """Report that the event loop is alive; do nothing while there is no connection."""
        if getattr(self._consumer, "task_consumer", None) is not None:
            self._arrange()
            self._on_round()

    def _ask(self) -> None:
        consumer = self._consumer
        if consumer is not None:
            consumer.call_soon(self._arrange)

    def _arrange(self) -> None:
        """In the event loop, add and cancel queues until Celery reads exactly the wanted queues."""
        consumer = self._consumer
        task_consumer = getattr(consumer, "task_consumer", None)
        if task_consumer is None:  # connecting; `connected` follows
            return
        wanted, current = self.wanted(), {queue.name for queue in task_consumer.queues}
        # The request that is now waiting in Redis does not include a queue that is added here.
        task_consumer.channel.brpop_timeout = HELD_SECONDS if self._held else ASK_SECONDS
        for name in wanted - current:
            self._app.amqp.queues.add(queue_for(name))
            consumer.add_task_queue(name)
        for name in current - wanted:
            consumer.cancel_task_queue(name)


def _end_of(outcome: Outcome) -> tuple[str, dict[str, str]]:
    """Return Celery's event for the end of this thread's reconcile.

    The event's text is from the history of the reconcile.
    """
    if error := trail.last("error"):
        return _failed(error)
    if outcome.action is Action.RETRY:
        return _failed(outcome.reason)
    if outcome.action is Action.DONE:
        return "task-succeeded", {"result": repr(outcome.reason)}
    reason = trail.last("waits") or outcome.reason
    return "task-retried", {"exception": reason, "traceback": ""}


def _failed(cause: str) -> tuple[str, dict[str, str]]:
    return "task-failed", {"exception": cause, "traceback": ""}


def _nothing() -> None:
    """Do nothing: the call itself wakes the event loop, which then checks for a free thread."""


def _step(consumers: CeleryConsumers) -> type[bootsteps.StartStopStep]:
    """Return the step that receives Celery's consumer after its task queues are set up."""

    class QueueStep(bootsteps.StartStopStep):
        """A step that runs on every (re)connection."""

        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, parent: Any) -> None:
            """Pass on Celery's consumer once its task queues are set up."""
            consumers.connected(parent)

        def stop(self, parent: Any) -> None:
            """Drop the consumer before Celery closes its connection."""
            consumers.ending(parent)

    return QueueStep
