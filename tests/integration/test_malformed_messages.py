"""Malformed data in a Celery list does not stop the worker that reads it."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
import redis
from celery.contrib.testing.worker import start_worker

from tests.support.waiting import wait_until
from workers.app import SYSTEM_QUEUE, TASK_TICK, TASK_WORK, make_app
from workers.cli.consumers import CeleryConsumers
from workers.cli.pool import POOL
from workers.config.load import parse

SECONDS = 60
DRIVER_LIST = "drv.a"

HEADERS = {"task": "test.work", "id": "1", "lang": "py"}
PROPERTIES = {
    "delivery_mode": 2,
    "delivery_info": {"exchange": "", "routing_key": SYSTEM_QUEUE},
    "priority": 0,
    "body_encoding": "base64",
    "delivery_tag": "1",
}
GOOD = {
    "body": b64encode(b"[[],{},{}]").decode(),
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": HEADERS,
    "properties": PROPERTIES,
}


def but(**fields):
    return json.dumps({**GOOD, **fields})


def without(*names):
    return json.dumps({name: value for name, value in GOOD.items() if name not in names})


MESSAGES = {
    "no JSON": "garbage",
    "no UTF-8": b"\xff\xfe\xfd",
    "a list": "[]",
    "a number": "1",
    "null": "null",
    "a text": '"x"',
    "empty": "",
    "an empty object": "{}",
    "no properties": without("properties"),
    "no headers": without("headers"),
    "no body": without("body"),
    "properties a list": but(properties=[]),
    "headers a list": but(headers=[]),
    "headers null": but(headers=None),
    "body not base64": but(body="%%%"),
    "body a number": but(body=5),
    "body null": but(body=None),
    "no delivery_tag": but(properties={**PROPERTIES, "delivery_tag": None}),
    "delivery_tag a list": but(properties={**PROPERTIES, "delivery_tag": [1]}),
    "delivery_info a text": but(properties={**PROPERTIES, "delivery_info": "x"}),
    "pickle": but(**{"content-type": "application/x-python-serialize"}),
    "content type a list": but(**{"content-type": []}),
    "unknown charset": but(**{"content-encoding": "no-such-charset"}),
    "charset a number": but(**{"content-encoding": 1}),
    "task a list": but(headers={**HEADERS, "task": ["x"]}),
    "task null": but(headers={**HEADERS, "task": None}),
    "unknown task": but(headers={**HEADERS, "task": "no.such"}),
    "id null": but(headers={**HEADERS, "id": None}),
    "id a list": but(headers={**HEADERS, "id": []}),
    "eta nonsense": but(headers={**HEADERS, "eta": "yesterday"}),
    "eta a list": but(headers={**HEADERS, "eta": []}),
    "expires nonsense": but(headers={**HEADERS, "expires": {"a": 1}}),
    "timelimit nonsense": but(headers={**HEADERS, "timelimit": "x"}),
    "retries a text": but(headers={**HEADERS, "retries": "x"}),
    "args no list": but(body=b64encode(b"5").decode()),
    "args null": but(body=b64encode(b"null").decode()),
    "kwargs a list": but(body=b64encode(b"[[],[],{}]").decode()),
    "embed a list": but(body=b64encode(b"[[],{},[]]").decode()),
    "deep JSON": "[" * 200_000,
    "deep JSON in the body": but(body=b64encode(b"[" * 100_000).decode()),
    "unknown body encoding": but(properties={**PROPERTIES, "body_encoding": "rot13"}),
    "compressed by nobody": but(headers={**HEADERS, "compression": "no-such"}),
    "tomorrow": but(headers={**HEADERS, "eta": "2999-01-01T00:00:00+00:00"}),
    "time limits": but(headers={**HEADERS, "timelimit": [1, 1]}),
}


class Worker:
    """Runs a worker as `csi-fleet worker` does, with tasks that only count."""

    def __init__(self, client):
        self._client = client
        self.sent = 0
        self.done, self.dropped = [], []

    def send(self, name, *messages):
        self.sent += len(messages)
        self._client.lpush(name, *messages)

    def handles_all(self):
        """Send one more message and assert that each message was worked on or dropped."""
        self.send(SYSTEM_QUEUE, json.dumps(GOOD))
        wait_until(
            lambda: len(self.done) + len(self.dropped) >= self.sent,
            SECONDS,
            f"{self.sent} messages are handled",
        )
        assert len(self.done) + len(self.dropped) == self.sent


@pytest.fixture(scope="module")
def worker(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        found = Worker(client)
        settings = parse("worker", [f"--redis-url={redis_server.unix_url}"], {})
        app = make_app(settings, lambda: found.dropped.append(1))
        consumers = CeleryConsumers(app)

        def task():
            found.done.append(1)

        for name in (TASK_TICK, TASK_WORK):
            app.task(name=name, shared=False)(task)
        consumers.serve("a")
        consumers.start()
        with start_worker(
            app, concurrency=2, pool=POOL, perform_ping_check=False, shutdown_timeout=SECONDS
        ):
            yield found
        app.close()


@pytest.mark.parametrize("name", [SYSTEM_QUEUE, DRIVER_LIST])
@pytest.mark.parametrize("what", MESSAGES)
def test_a_malformed_message_ends_no_worker(worker, what, name):
    """A malformed message is dropped, or makes a thread check for work once more."""
    worker.send(name, MESSAGES[what])
    worker.handles_all()


@pytest.mark.parametrize("what", ["no JSON", "no UTF-8", "deep JSON"])
def test_what_nobody_can_read_is_counted(worker, what):
    before = len(worker.dropped)
    worker.send(SYSTEM_QUEUE, *[MESSAGES[what]] * 3)
    worker.handles_all()
    assert len(worker.dropped) == before + 3


@pytest.mark.parametrize("what", ["tomorrow", "unknown task", "pickle", "a list"])
def test_nothing_of_a_message_is_believed(worker, what):
    """A message only means that work is due in its list, whatever else it contains."""
    before = len(worker.done)
    worker.send(DRIVER_LIST, MESSAGES[what])
    worker.handles_all()
    assert len(worker.done) == before + 2
