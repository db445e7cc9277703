"""If beat or a worker's Celery user fills Redis, one scan makes room for other drivers' work."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.secure_redis import DRIVER_BROKER, SecureRedis
from tests.support.waiting import wait_until
from workers.app import SYSTEM_QUEUE
from workers.errors import QueueFull
from workers.queue.celerykeys import CeleryKeys
from workers.queue.connection import NoPermissionError
from workers.queue.keys import Key
from workers.queue.names import celery_queue
from workers.queue.workqueue import WorkQueue

ROOM = 40_000_000
FILL = 20_000_000
PIECE = "x" * 200_000
SERVED = "served.example.org"
# Lists of answers to Flower. The second never expires, so the watcher deletes it.
ANSWERS, FORGOTTEN = (f"{uuid4()}.reply.celery.pidbox" for _ in range(2))


@pytest.fixture(scope="module")
def server(redis_binary, tmp_path_factory):
    server = SecureRedis(redis_binary, tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def keys(server):
    with server.client("operator") as client:
        client.flushall()
    with server.client("tester") as client:
        client.config_set("maxmemory", ROOM)
    return CeleryKeys(
        server.client("watcher"),
        server.client("publisher"),
        system=SYSTEM_QUEUE,
        drivers=lambda: [SERVED],
    )


def go_round(keys):
    """Scan all keys once."""
    keys.step()
    while keys._cursor:
        keys.step()


def working(server):
    """Return the queue of a worker of another driver."""
    queue = WorkQueue(server.client("worker"), publish=lambda _: None)
    queue.register_process()
    return queue


FILLS = {
    "lists of nobody": (DRIVER_BROKER, lambda client, n: client.lpush(f"drv.nobody-{n}", PIECE)),
    "a list of a driver": ("broker", lambda client, _: client.lpush(celery_queue(SERVED), PIECE)),
    "ticks": ("beat", lambda client, _: client.lpush(SYSTEM_QUEUE, PIECE)),
    "a schedule": ("beat", lambda client, n: client.hset("redbeat:tick", str(n), PIECE)),
}


@pytest.mark.parametrize("what", FILLS)
def test_what_fills_redis_is_deleted_and_others_get_new_work(server, keys, what):
    user, fill = FILLS[what]
    queue = working(server)
    with server.client(user) as client:
        for number in range(FILL // len(PIECE)):
            fill(client, number)
    # The limit is set to what is stored now. With a fixed limit, a filling list would leave room
    # for a key as soon as its client's buffers are freed.
    with server.client("tester") as client:
        client.config_set("maxmemory", client.info("memory")["used_memory_dataset"])
    with pytest.raises(QueueFull):
        queue.add([Key("claims", SERVED, "shop/a", "u")])
    go_round(keys)

    def is_added():
        queue.add([Key("claims", SERVED, "shop/a", "u")])
        return True

    wait_until(is_added, 10, "Redis has freed what was deleted")


def test_flower_has_no_command_that_fills(server, keys):
    with server.client("flower") as client:
        for name in ("x.pidbox", "celeryev.x", "_kombu.binding.x"):
            for command in (("LPUSH", name, "x"), ("SADD", name, "x"), ("SET", name, "x")):
                with pytest.raises(NoPermissionError):
                    client.execute_command(*command)


def test_who_sends_halves_of_commands_is_cut_off(server, keys):
    """Redis disconnects a client with incomplete commands,
    because buffers of connections also count as memory.
    """
    clients = [server.client("flower") for _ in range(10)]
    before = server.client("tester").info()["evicted_clients"]
    head = "*3\r\n$7\r\nPUBLISH\r\n$16\r\n/0.celery.pidbox\r\n$5000000\r\n"
    for client in clients:
        client.ping()
        connection = client.connection_pool.get_connection()
        try:
            connection._sock.sendall(head.encode() + b"x" * 4_000_000)
        except OSError:
            continue  # it is already disconnected
    working(server).add([Key("claims", SERVED, "shop/b", "u")])
    assert server.client("tester").info()["evicted_clients"] > before


def test_what_is_in_use_stays(server, keys):
    with server.client("tester") as client:
        lists = [celery_queue(SERVED), celery_queue(f"{SERVED}#attacher"), SYSTEM_QUEUE]
        for name in lists:
            client.lpush(name, "message")
        client.hset("redbeat:tick", "definition", "{}")
        client.sadd("csifleet:lanes", "claims|away.example.org")
        client.lpush(celery_queue("away.example.org"), "message")
        client.lpush("drv.nobody", "message")
        client.set(celery_queue(f"{SERVED}#resizer"), "no list")
        client.set("somebody's", "own")
        for name in (ANSWERS, FORGOTTEN):
            client.lpush(name, "answer")
        client.expire(ANSWERS, 100)
        go_round(keys)
        assert set(client.keys()) == {
            *(name.encode() for name in lists), b"redbeat:tick", b"csifleet:lanes",
            b"drv.away.example.org", b"somebody's", ANSWERS.encode(),
        }  # fmt: skip
