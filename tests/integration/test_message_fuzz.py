"""Ten thousand malformed messages in every Celery list and channel end no process.

A Redis user with write permission sends each message, and real processes read it: two workers and
Flower. `FUZZ_SEED` repeats a run, and `FUZZ_MESSAGES` sets the number of messages.
"""

from __future__ import annotations

import json
import os
import random
import sys
import uuid
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from types import SimpleNamespace

import pytest
import requests

from tests.support.components import Components
from tests.support.processes import free_port, start_process
from tests.support.secure_redis import DRIVER_BROKER, ROOT, SecureRedis
from tests.support.waiting import wait_until
from workers.app import SYSTEM_QUEUE, TASK_WORK, make_app, queue_for
from workers.config.load import parse
from workers.queue.names import celery_queue

MESSAGES = int(os.environ.get("FUZZ_MESSAGES", "10000"))
DRIVER = "victim.example.org"
ASKER = str(uuid.uuid4())
# A worker that runs Celery as `csi-fleet worker` does, with tasks that print the list they ran for.
WORKER = """\
import sys
from workers.app import make_app
from workers.cli.consumers import CeleryConsumers
from workers.cli.pool import POOL
from workers.config.load import parse
name, *arguments = sys.argv[1:]
app = make_app(parse("worker", arguments, {}))
def work(task):
    sys.stdout.write("\\nran " + task.request.delivery_info["routing_key"] + "\\n")
    sys.stdout.flush()
for task in ("system.tick", "system.work"):
    app.task(name=task, shared=False, bind=True)(work)
consumers = CeleryConsumers(app)
consumers.serve("victim.example.org")
consumers.start()
app.Worker(hostname=name, pool=POOL, concurrency=2, without_gossip=True, without_mingle=True,
           loglevel="CRITICAL", redirect_stdouts=False, quiet=True).start()
"""
WORKERS = ("w1@h", "w2@h")

TICKET = {
    "body": b64encode(b'[["claims|victim.example.org|a/b|u"],{},{}]').decode(),
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": {
        "task": "claims.sync", "id": "1", "lang": "py", "eta": None, "expires": None, "retries": 0,
        "timelimit": [None, None], "root_id": "1", "parent_id": None, "argsrepr": "x", "clock": 1,
        "ticket": "1",
    },
    "properties": {
        "delivery_mode": 2, "priority": 0, "body_encoding": "base64", "delivery_tag": "1",
        "delivery_info": {"exchange": "", "routing_key": SYSTEM_QUEUE}, "correlation_id": "1",
        "reply_to": "x",
    },
}  # fmt: skip
QUESTION = {
    "method": "stats", "arguments": {}, "destination": None, "pattern": None, "matcher": None,
    "ticket": ASKER, "reply_to": {"exchange": "reply.celery.pidbox", "routing_key": ASKER},
}  # fmt: skip
EVENT = {
    "type": "task-received", "hostname": WORKERS[0], "utcoffset": 0, "pid": 1, "clock": 1,
    "timestamp": 1.5, "uuid": "1", "name": "claims.sync", "args": "()", "kwargs": "{}",
    "freq": 2.0, "active": 0, "processed": 1, "sw_ident": "x", "loadavg": [0, 0, 0], "retries": 0,
}  # fmt: skip
EVENTS = ("task-received", "task-started", "task-succeeded", "task-failed", "worker-heartbeat",
          "worker-online", "worker-offline", "task-sent", "no-such")  # fmt: skip
ANSWER = {WORKERS[0]: {"ok": "pong"}}
JUNK = (
    *(None, True, False, 0, -1, 2**63, 10**400, 1.5, float("nan"), float("inf")),
    *("", "x", "\x00", "\ud800", "\x1b[2J", "../../etc/passwd", "9" * 5000, "x" * 100_000),
    *([], [None], {}, {"a": 1}, {"": {}}, [[]] * 50),
    *("celery.pidbox", "csifleet:intents:d", "shutdown", "rot13", "base64", "no-such-charset"),
    *("application/x-python-serialize", "utf-16", "1999-01-01", "2999-01-01T00:00:00+00:00"),
)


def places(value, path=()):
    """Yield the path of every value in a message, including its root."""
    yield path
    if isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, name))


def changed(chance, message):
    """Return the message with some values replaced or removed."""
    message = json.loads(json.dumps(message))
    for _ in range(chance.choice((1, 1, 2, 5))):
        path = chance.choice(list(places(message)))
        if not path:
            if chance.random() < 0.1:
                return deepcopy(chance.choice(JUNK))
            continue
        *way, last = path
        holder = message
        for name in way:
            holder = holder[name]
        if isinstance(holder, dict) and chance.random() < 0.3:
            del holder[last]
        else:
            holder[last] = deepcopy(chance.choice(JUNK))
    return message


def spoilt(chance, raw):
    """Return the bytes cut, changed, doubled or in another encoding."""
    at = chance.randrange(len(raw) + 1)
    return chance.choice((
        lambda: raw[:at],
        lambda: raw[at:],
        lambda: raw[:at] + chance.randbytes(chance.randrange(1, 9)) + raw[at + 1 :],
        lambda: raw + raw,
        lambda: raw.decode(errors="replace").encode("utf-16"),
        lambda: chance.randbytes(chance.randrange(200)),
        lambda: b"[" * chance.randrange(1, 100_000),
        lambda: b'{"a":' * chance.randrange(1, 20_000),
    ))()  # fmt: skip


def text(message):
    """Return the message as JSON; other types become text."""
    return json.dumps(message, default=str).encode(errors="surrogatepass")


def wire(chance, body):
    """Return one malformed message in the format of a list or channel."""
    inside = text(changed(chance, body)) if chance.random() < 0.5 else text(body)
    inside = spoilt(chance, inside) if chance.random() < 0.3 else inside
    message = {**TICKET, "body": b64encode(inside).decode()}
    message = changed(chance, message) if chance.random() < 0.7 else message
    raw = text(message)
    return spoilt(chance, raw) if chance.random() < 0.3 else raw


@pytest.fixture(scope="module")
def world(redis_binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    server = SecureRedis(redis_binary, folder).start()
    arguments = [*server.login("worker"), "--csi-address=/nowhere"]
    workers = {
        name: start_process(
            name,
            [sys.executable, "-c", WORKER, name, *arguments],
            log=folder / f"{name}.log",
            cwd=ROOT,
            env=dict(os.environ),
        )
        for name in WORKERS
    }
    port = free_port()
    login = {"CSI_FLEET_FLOWER_BASIC_AUTH": "a:secret"}
    with Components(folder / "flower", server) as parts:
        flower = parts.start("flower", None, f"--flower-port={port}", **login)
        app = make_app(parse("flower", server.login("flower"), {}))
        yield SimpleNamespace(
            server=server, workers=workers, flower=flower, app=app, folder=folder,
            page=f"http://127.0.0.1:{port}/api/workers",
        )  # fmt: skip
        app.close()
    for worker in workers.values():
        worker.stop()
    server.stop()


def senders(world, chance):
    """Return functions that write to each list and channel as a user with that permission."""
    beat, foreign, flower, broker = map(
        world.server.client, ("beat", DRIVER_BROKER, "flower", "broker")
    )

    answers = f"{world.app.control.mailbox.oid}.reply.celery.pidbox"

    def event():
        return {**EVENT, "type": chance.choice(EVENTS)}

    return (
        lambda: beat.lpush(SYSTEM_QUEUE, wire(chance, [[], {}, {}])),
        lambda: foreign.lpush(celery_queue(DRIVER), wire(chance, [["a|b|c|d"], {}, {}])),
        lambda: flower.publish("/0.celery.pidbox", wire(chance, QUESTION)),
        lambda: flower.publish("/0.celeryev/task.multi", wire(chance, [event(), event()])),
        lambda: flower.publish("/0.celeryev/worker.heartbeat", wire(chance, event())),
        lambda: broker.lpush(answers, wire(chance, ANSWER)),
    )


def test_whatever_is_sent_every_process_lives_and_works_on(world):
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(2**32))
    chance = random.Random(seed)
    print(f"FUZZ_SEED={seed}")
    wait_until(lambda: answering(world) == {*WORKERS}, 60, "both workers answer")
    wait_until(lambda: shown(world) >= {*WORKERS}, 60, "Flower shows both")
    ways = senders(world, chance)
    for number in range(MESSAGES):
        ways[number % len(ways)]()
        if number % 1000 == 0:
            with suppress(Exception):  # the control client reads forged replies
                answering(world)
            assert alive(world), f"after {number} messages"
    lists = (SYSTEM_QUEUE, celery_queue(DRIVER))
    with world.server.client("operator") as client:
        wait_until(lambda: not any(map(client.llen, lists)), 120, "all lists are read")
    before = ran(world)
    sender = make_app(parse("worker", [*world.server.login("worker"), "--csi-address=/no"], {}))
    for name in lists * 20:
        sender.send_task(TASK_WORK, queue=queue_for(name), ignore_result=True)
    sender.close()
    wait_until(
        lambda: all(ran(world)[name] >= before[name] + 20 for name in lists),
        120,
        "what is sent afterwards is worked on",
    )
    wait_until(lambda: answering(world) >= {*WORKERS}, 60, "both workers answer")
    wait_until(lambda: shown(world) >= {*WORKERS}, 60, "Flower shows both")
    assert alive(world)
    assert [one for one in world.server.denials() if one.startswith(("broker:", "flower:"))] == []


def ran(world):
    """Return the number of messages per list that the workers have worked on."""
    logs = [(world.folder / f"{name}.log").read_text(errors="replace") for name in WORKERS]
    lines = (line for log in logs for line in log.splitlines())
    return Counter(line.removeprefix("ran ") for line in lines if line.startswith("ran "))


def answering(world):
    """Return the workers that reply to a ping."""
    return {*(world.app.control.inspect(timeout=1).ping() or ())}


def alive(world):
    """Return True if all processes are running."""
    return all(one.is_running() for one in (*world.workers.values(), world.flower))


def shown(world):
    """Return the workers that Flower shows."""
    answer = requests.get(world.page, params={"refresh": 1}, auth=("a", "secret"), timeout=10)
    return {*answer.json()}
