"""The access that remote control gives to Flower's Redis user, tested with a real worker."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import uuid

import pytest

from tests.support.processes import start_process
from tests.support.secure_redis import DRIVER_BROKER, ROOT, SecureRedis
from tests.support.waiting import wait_until
from workers.app import make_app
from workers.config.load import parse
from workers.queue.connection import NoPermissionError
from workers.queue.names import NAMES
from workers.tasks.remote import ANSWER_SECONDS

WORKER = """\
import sys
from workers.app import make_app
from workers.config.load import parse
app = make_app(parse("worker", sys.argv[1:], {}))
app.Worker(hostname="w@h", pool="threads", concurrency=1, without_gossip=True,
           without_mingle=True, loglevel="CRITICAL", quiet=True).start()
"""
KEYS = ["csifleet:intents:d", "csifleet:paused", "csifleet:leases", "drv.other.example.org"]


@pytest.fixture(scope="module")
def server(redis_binary, tmp_path_factory):
    server = SecureRedis(redis_binary, tmp_path_factory.mktemp("redis")).start()
    arguments = [*server.login("worker"), "--csi-address=/nowhere"]
    worker = start_process(
        "worker",
        [sys.executable, "-c", WORKER, *arguments],
        log=server.directory / "worker.log",
        cwd=ROOT,
        env=dict(os.environ),
    )
    yield server
    worker.stop()
    server.stop()


@pytest.fixture
def flower(server):
    app = make_app(parse("flower", server.login("flower"), {}))
    wait_until(lambda: app.control.ping(timeout=1), 30, "the worker answers")
    return app


def publish(client, method, reply_to, **arguments):
    """Publish a remote control message as it is on the wire, without kombu's own checks."""
    body = {
        "method": method, "arguments": arguments, "destination": None, "pattern": None,
        "matcher": None, "ticket": str(uuid.uuid4()), "reply_to": reply_to,
    }  # fmt: skip
    info = {"exchange": "celery.pidbox", "routing_key": ""}
    message = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"clock": 1},
        "properties": {
            "delivery_mode": 2, "delivery_info": info, "priority": 0,
            "body_encoding": "base64", "delivery_tag": "x",
        },
    }  # fmt: skip
    return client.publish("/0.celery.pidbox", json.dumps(message))


def test_flower_sees_workers(server, flower):
    """Flower gets the data of all its pages, and Redis refuses none of its commands."""
    inspect = flower.control.inspect(timeout=10, destination=["w@h"])
    for question in ("stats", "active_queues", "registered", "active", "reserved", "conf"):
        assert "w@h" in getattr(inspect, question)(), question
    assert not [one for one in server.denials() if one.startswith("flower")]


def test_flower_writes_no_key_through_a_worker(server, flower):
    """Flower makes a worker write no key, named directly
    or in an exchange's table, which no process reads.
    """
    with server.client("flower") as client, server.client("tester") as all_keys:
        table = "_kombu.binding.reply.celery.pidbox"
        for key in KEYS:
            all_keys.sadd(table, f"{key}\x06\x16\x06\x16{key}")
            for exchange in ("", "reply.celery.pidbox"):
                assert publish(client, "ping", {"exchange": exchange, "routing_key": key}) == 1
        # The worker limits the rate of its answers, so this one may come late.
        wait_until(lambda: flower.control.ping(timeout=2), 30, "the worker has heard all of them")
        assert not [key for key in KEYS if all_keys.exists(key)]
        all_keys.delete(table)


@pytest.mark.parametrize("user", ["broker", DRIVER_BROKER, "publisher", "beat", "flower"])
def test_celerys_connections_reach_no_key_of_csi_fleet(server, user):
    """Celery's users can access no key of csi-fleet, whatever a message makes a worker do."""
    with server.client(user) as client, server.client("tester") as all_keys:
        for entry in NAMES.values():
            name = f"{entry.full}x" if entry.is_family else entry.full
            for command in (("LPUSH", name, "x"), ("DEL", name), ("BRPOP", name, "1")):
                with pytest.raises(NoPermissionError):
                    client.execute_command(*command)
        all_keys.acl_log_reset()


def test_a_workers_celery_logs_in_as_that_user(server, flower):
    with server.client("tester") as all_keys:
        users = {one["user"] for one in all_keys.client_list()}
    assert "broker" in users
    assert "worker" not in users, "Celery alone runs here"


def test_questions_do_not_fill_redis(server, flower):
    """Questions do not fill Redis: only a few unread replies remain, and they expire."""
    asked = 300
    with server.client("flower") as client, server.client("tester") as all_keys:
        for _ in range(asked):
            place = {"exchange": "", "routing_key": str(uuid.uuid4())}
            assert publish(client, "stats", place) == 1
        wait_until(lambda: flower.control.ping(timeout=1), 60, "it answers again")
        lists = all_keys.keys("*.pidbox")
        assert 0 < len(lists) < asked / 3
        assert all(0 <= all_keys.ttl(one) <= ANSWER_SECONDS for one in lists)


def test_flower_takes_no_message_and_stops_nobody(server, flower):
    with server.client("flower") as client, server.client("tester") as all_keys:
        publish(client, "add_consumer", None, queue="drv.other.example.org")
        publish(client, "shutdown", None)
        publish(client, "rate_limit", None, task_name="claims.sync", rate_limit="1/h")
        assert flower.control.ping(timeout=2)
        all_keys.lpush("drv.other.example.org", "message")
        until = time.monotonic() + 1.5
        wait_until(lambda: time.monotonic() > until and flower.control.ping(timeout=1), 30, "asked")
        assert all_keys.llen("drv.other.example.org") == 1
        all_keys.delete("drv.other.example.org")
