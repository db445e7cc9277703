"""A thread or driver that becomes free gets the next message at once, not at Celery's next poll."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import pytest
from celery.contrib.testing.worker import start_worker
from celery.worker import state as worker_state

from tests.support.waiting import wait_until
from workers.app import SYSTEM_QUEUE, TASK_TICK, TASK_WORK, make_app, queue_for
from workers.cli.consumers import CeleryConsumers
from workers.cli.pool import POOL
from workers.config.load import parse

LONG = 3600.0
SECONDS = 60


class Work:
    """A task that ends when the test says so; its number is its position in the order of starts."""

    def __init__(self):
        self.begun = []
        self._numbers = count()
        self._may_end = [threading.Event() for _ in range(20)]

    def run(self):
        number = next(self._numbers)
        self.begun.append(number)
        self._may_end[number].wait(SECONDS)
        if number % 3 == 2:  # one in three tasks fails
            raise ValueError(number)

    def end(self, *numbers):
        for number in numbers:
            self._may_end[number].set()


@contextmanager
def worker_of(redis_server, threads, *drivers):
    """Run Celery with csi-fleet's pool and consumers; its loop runs only when it is woken.

    The worker serves the drivers from its start, because a blocking read that has begun cannot be
    changed.
    """
    app = make_app(parse("worker", [f"--redis-url={redis_server.unix_url}"], {}))
    work, hubs = Work(), []

    def freeze(hub):
        hub.fire_timers = lambda **_: LONG
        hubs.append(hub)

    consumers = CeleryConsumers(app, on_connected=freeze)

    def task():
        work.run()

    for name in (TASK_TICK, TASK_WORK):
        app.task(name=name, shared=False)(task)
    for driver in drivers:
        consumers.serve(driver)
    consumers.start()
    with start_worker(
        app, concurrency=threads, pool=POOL, perform_ping_check=False, shutdown_timeout=SECONDS
    ):
        wait_until(lambda: hubs, SECONDS, "the worker is connected")
        try:
            yield SimpleNamespace(work=work, app=app, consumers=consumers)
        finally:
            work.end(*range(20))
            worker_state.should_terminate = 0
            hubs[0].call_soon(lambda: None)  # runs the loop once more, which then ends
    app.close()


def send(world, queue=SYSTEM_QUEUE):
    world.app.send_task(TASK_WORK, queue=queue_for(queue))


def begun(world, *numbers):
    """Return True if exactly these tasks have begun."""
    wait_until(lambda: len(world.work.begun) >= len(numbers), SECONDS, f"{numbers} have begun")
    return sorted(world.work.begun) == sorted(numbers)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_one_end_lets_the_next_message_in(redis_server, redis_client, threads):
    """The end of a task, successful or not, lets the worker read the next message."""
    with worker_of(redis_server, threads) as world:
        for _ in range(threads + 6):
            send(world)
        assert begun(world, *range(threads))
        for number in range(6):
            world.work.end(number)
            assert begun(world, *range(threads + number + 1))
        assert redis_client.llen(SYSTEM_QUEUE) == 0


@pytest.mark.parametrize("threads", [2, 4])
def test_several_ends_at_once_let_as_many_in(redis_server, redis_client, threads):
    """Several tasks that end at once let as many messages in; one wake-up is enough."""
    with worker_of(redis_server, threads) as world:
        for _ in range(3 * threads):
            send(world)
        assert begun(world, *range(threads))
        world.work.end(*range(threads))
        assert begun(world, *range(2 * threads))
        world.work.end(*range(threads, 2 * threads))
        assert begun(world, *range(3 * threads))
        assert redis_client.llen(SYSTEM_QUEUE) == 0


def test_a_message_that_comes_to_a_full_worker_waits_for_an_end(redis_server, redis_client):
    """A message for a full worker stays in its list, where other workers can read it."""
    with worker_of(redis_server, 1) as world:
        send(world)
        assert begun(world, 0)
        send(world)
        assert redis_client.llen(SYSTEM_QUEUE) == 1
        world.work.end(0)
        assert begun(world, 0, 1)


def is_asked(redis_client):
    """Return True if Celery has a blocking read open at Redis."""
    return any("b" in one["flags"] for one in redis_client.client_list())


def test_a_driver_that_is_held_no_more_is_asked_for(redis_server, redis_client, monkeypatch):
    """A released driver's messages are read, although
    a blocking read of the other lists is open.
    """
    monkeypatch.setattr("workers.cli.consumers.ASK_SECONDS", LONG)
    with worker_of(redis_server, 2, "a") as world:
        send(world, "drv.a")
        assert begun(world, 0)
        world.consumers.hold("a", is_full=True)
        send(world)  # this answers the read of both lists; the next read asks for one
        assert begun(world, 0, 1)
        world.work.end(0, 1)
        wait_until(lambda: is_asked(redis_client), SECONDS, "Redis is asked")
        world.consumers.hold("a", is_full=False)
        send(world, "drv.a")
        assert begun(world, 0, 1, 2)
