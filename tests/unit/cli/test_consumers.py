"""Which messages a worker fetches, and how it proves that it still fetches them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery.worker import state as worker_state
from celery.worker.consumer import consumer as celery_consumer

from workers.app import SYSTEM_QUEUE, make_app
from workers.cli.consumers import ASK_SECONDS, HELD_SECONDS, CeleryConsumers, ThreadsConsumer
from workers.config.settings import Settings
from workers.engine.outcome import blocked, done, retry, wait
from workers.observability import trail
from workers.queue.keys import claim_key
from workers.queue.locks import Lock


class Queue:
    def __init__(self, name):
        self.name = name


class Timer:
    """Celery's timer; `calls` holds what it would call in its loop."""

    def __init__(self):
        self.calls = []

    def call_repeatedly(self, seconds, call):
        assert seconds > 0
        self.calls.append(call)
        timer = self

        class Entry:
            def cancel(self):
                timer.calls.remove(call)

        return Entry()


class Consumer:
    """Celery's consumer with its set of queues; it runs scheduled calls immediately."""

    def __init__(self):
        self.timer = Timer()
        self.hub = SimpleNamespace(on_tick={"a connection of before"})
        self.task_consumer = self
        self.channel = SimpleNamespace()
        self.pool = SimpleNamespace(on_end=None)
        self.names = {SYSTEM_QUEUE}
        self.task_buckets = {}
        self.event_dispatcher = None

    @property
    def queues(self):
        return [Queue(name) for name in self.names]

    def call_soon(self, call):
        call()

    def add_task_queue(self, name):
        self.names.add(name)

    def cancel_task_queue(self, name):
        self.names.discard(name)


@pytest.fixture
def beats():
    return []


@pytest.fixture
def consumers(beats):
    app = make_app(Settings())
    yield CeleryConsumers(app, on_round=lambda: beats.append(1))
    app.close()


def test_the_fetched_queues_are_the_wanted_ones(consumers):
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    assert consumer.names == {SYSTEM_QUEUE, "drv.a"}
    consumers.serve("b")
    consumers.hold("a", is_full=True)
    assert consumer.names == {SYSTEM_QUEUE, "drv.b"}
    consumers.hold("a", is_full=False)
    consumers.leave("b")
    assert consumer.names == {SYSTEM_QUEUE, "drv.a"}


def test_while_a_driver_is_held_redis_is_asked_for_a_moment_each(consumers):
    """A longer request for the other queues would not notice this driver's messages meanwhile."""
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    assert consumer.channel.brpop_timeout == ASK_SECONDS
    consumers.hold("a", is_full=True)
    assert consumer.channel.brpop_timeout == HELD_SECONDS
    consumers.hold("a", is_full=False)
    assert consumer.channel.brpop_timeout == ASK_SECONDS


def test_tickets_are_left_to_others_while_this_process_may_not_work(consumers):
    """COR-5: this is independent of driver slots, which may change meanwhile."""
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    consumers.stand_back(["a"], is_back=True)
    consumers.hold("a", is_full=True)
    consumers.hold("a", is_full=False)
    assert consumer.names == {SYSTEM_QUEUE}
    consumers.stand_back(["a"], is_back=False)
    assert consumer.names == {SYSTEM_QUEUE, "drv.a"}


def test_a_round_of_the_loop_is_a_sign_of_life_and_mends_the_queues(consumers, beats):
    """A process counts as alive if it fetches: one whose loop hangs must not look healthy."""
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    assert beats == []
    consumer.names.clear()
    (a_round,) = consumer.timer.calls
    a_round()
    assert (beats, consumer.names) == ([1], {SYSTEM_QUEUE, "drv.a"})


def test_a_loop_without_its_connection_gives_no_sign_of_life(consumers, beats):
    consumer = Consumer()
    consumers.connected(consumer)
    consumer.task_consumer = None
    consumer.timer.calls[0]()
    assert beats == []


def test_a_new_connection_has_one_round_of_its_own(consumers, beats):
    first, second = Consumer(), Consumer()
    consumers.connected(first)
    consumers.connected(second)
    assert first.timer.calls == []
    second.timer.calls[0]()
    assert beats == [1]


KEY = claim_key("a", "ns", "c", "uid")


@pytest.fixture
def serving(consumers):
    """Return a connected consumer that fetches the messages of driver `a`."""
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    return consumer


def test_a_next_ticket_is_one_that_would_be_fetched_were_a_seat_free(consumers, serving):
    assert consumers.fetches(KEY)
    consumers.hold("a", is_full=True)
    assert consumers.fetches(KEY)
    consumers.stand_back(["a"], is_back=True)
    assert not consumers.fetches(KEY)
    consumers.stand_back(["a"], is_back=False)
    assert consumers.fetches(KEY)
    assert not consumers.fetches(claim_key("b", "ns", "c", "uid"))
    consumers.leave("a")
    assert not consumers.fetches(KEY)


def test_none_is_begun_before_celery_has_connected(consumers):
    consumers.serve("a")
    assert not consumers.fetches(KEY)


@pytest.mark.parametrize("flag", ["should_stop", "should_terminate"])
def test_none_is_begun_while_the_worker_ends(consumers, serving, monkeypatch, flag):
    """The flag holds Celery's exit code, 0 for a clean end."""
    monkeypatch.setattr(worker_state, flag, 0)
    assert not consumers.fetches(KEY)


def test_none_is_begun_between_the_end_of_celerys_consumer_and_the_next(consumers, serving):
    """Some ends set no flag: `shutdown` by remote control, an error, a reconnection."""
    consumers.ending(serving)
    assert not consumers.fetches(KEY)
    assert serving.hub.on_tick == set(), (
        "each lost connection would be kept, and asked at each turn"
    )
    consumers.connected(serving)
    assert consumers.fetches(KEY)


def test_none_is_begun_past_a_rate_that_somebody_set(consumers, serving):
    """Celery enforces the limit by counting the messages that it fetches."""
    serving.task_buckets["claims.sync"] = None
    assert consumers.fetches(KEY)
    serving.task_buckets["volumes.sync"] = object()
    assert not consumers.fetches(KEY)


class Watchers:
    """Celery's event sender; it raises `error` if one is set."""

    def __init__(self, *, groups=("worker", "task"), error=None):
        self.groups, self.error, self.sent = set(groups), error, []

    def send(self, what, **fields):
        if self.error is not None:
            raise self.error
        self.sent.append((what, fields))


def test_who_watches_tasks_sees_each_pass(consumers, serving):
    """A reconcile appears as a Celery task: name, arguments, start, end and duration."""
    watchers = serving.event_dispatcher = Watchers()
    with consumers.shown("claims.sync", KEY) as ended, trail.collect():
        assert [what for what, _ in watchers.sent] == ["task-received", "task-started"]
        ended(done("provisioned"))
    (_, received), (_, started), (what, succeeded) = watchers.sent
    assert what == "task-succeeded"
    assert received["name"] == "claims.sync"
    assert (received["args"], received["kwargs"]) == ("ns/c a", "{}")
    assert received["uuid"] == received["root_id"] == started["uuid"] == succeeded["uuid"]
    assert succeeded["runtime"] >= 0
    assert succeeded["result"] == "'provisioned'"


LOCKED = blocked(Lock("pv"))


@pytest.mark.parametrize(
    ("outcome", "notes", "event", "text"),
    [
        (retry("no space"), (), "task-failed", "no space"),
        (
            retry("failed"),
            [("error", "code = Internal desc = on fire"), ("end", "failed")],
            "task-failed",
            "code = Internal desc = on fire",
        ),
        (done("stranded"), [("error", "its secret is gone")], "task-failed", "its secret is gone"),
        (wait(9, "infeasible"), [("error", "too large")], "task-failed", "too large"),
        (wait(1, "away"), [("waits", "Redis is away")], "task-retried", "Redis is away"),
        (wait(9, "no node is selected"), (), "task-retried", "no node is selected"),
        (LOCKED, [("rpc", "CreateVolume OK 0.1")], "task-retried", LOCKED.reason),
    ],
)
def test_who_watches_tasks_sees_why_a_pass_failed_or_waits(
    consumers, serving, outcome, notes, event, text
):
    """Only a reconcile that finishes its key without an error counts as a success."""
    watchers = serving.event_dispatcher = Watchers()
    with consumers.shown("claims.sync", KEY) as ended, trail.collect():
        for note in notes:
            trail.note(*note)
        ended(outcome)
    what, fields = watchers.sent[-1]
    assert (what, fields["exception"]) == (event, text)


def test_a_pass_that_breaks_off_is_a_failed_task(consumers, serving):
    """The error's text is not shown, because it may hold a secret."""
    watchers = serving.event_dispatcher = Watchers()
    with pytest.raises(SystemExit), consumers.shown("claims.sync", KEY):
        raise SystemExit("hunter2")
    what, fields = watchers.sent[-1]
    assert (what, fields["exception"]) == ("task-failed", "csi-fleet stopped the task")


def test_each_pass_is_another_task(consumers, serving):
    watchers = serving.event_dispatcher = Watchers()
    for _ in range(2):
        with consumers.shown("claims.sync", KEY):
            pass
    assert len({fields["uuid"] for _, fields in watchers.sent}) == 2


def test_a_thread_that_gets_free_makes_celerys_loop_look(consumers, serving):
    """Otherwise a message would wait up to a second for the loop's next round."""
    rounds = []
    serving.call_soon = rounds.append
    serving.pool.on_end()
    assert len(rounds) == 1


@pytest.mark.parametrize(
    "watchers",
    [Watchers(groups=["worker"]), Watchers(error=OSError("the broker went")), None],
    ids=["nobody watches", "cannot be told", "connecting"],
)
def test_a_pass_goes_on_whoever_watches(consumers, serving, watchers):
    serving.event_dispatcher = watchers
    ran = []
    with consumers.shown("claims.sync", KEY):
        ran.append(KEY)
    assert ran == [KEY]
    assert watchers is None or watchers.sent == []


def test_threads_may_end_tasks_while_celery_loses_its_connection(consumers, monkeypatch):
    """A set that changes while it is read would end the whole worker."""

    class Changing(set):
        reads = 0

        def __iter__(self):
            self.reads += 1
            if self.reads < 3:
                raise RuntimeError("Set changed size during iteration")
            return super().__iter__()

    changing = Changing()
    monkeypatch.setattr(celery_consumer, "reserved_requests", changing)
    consumer = object.__new__(ThreadsConsumer)
    consumer.controller = consumer.pool = consumer.timer = None
    consumer.task_buckets = {}
    consumer.on_close()
    assert changing.reads == 3
