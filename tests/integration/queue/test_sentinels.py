"""A master dies, hangs or is demoted: clients, the broker and the schedule use the new master."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest
from flower.utils.broker import Broker
from redbeat import schedulers

from tests.support.certificates import make_ca, make_certificate
from tests.support.fleet import ROOT, environment
from tests.support.processes import start_process
from tests.support.redis_sentinel import ReplicatedRedis
from tests.support.redis_server import is_as_shipped
from tests.support.waiting import wait_until
from workers.app import SYSTEM_QUEUE, beat_settings, make_app, publisher
from workers.config.flags import Command
from workers.config.load import parse
from workers.config.settings import RedisSettings, Settings
from workers.errors import QueueUnavailable
from workers.queue.connection import connect, redis_errors
from workers.queue.keys import claim_key
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration


@pytest.fixture
def replicated(redis_binary, tmp_path):
    with ReplicatedRedis(redis_binary, tmp_path) as found:
        yield found


def works(act):
    """Return True if `act` succeeds; Redis can be unavailable for some time."""
    try:
        act()
    except QueueUnavailable:
        return False
    return True


def test_queue_and_messages_go_on_after_the_master_was_killed(replicated):
    """After SIGKILL the replica is promoted, and existing clients use it."""
    app = make_app(Settings(redis=RedisSettings(url=replicated.url)))
    client = connect(replicated.url)
    queue = WorkQueue(client, publish=publisher(app))
    queue.register_process()
    queue.set_limits("claims|d", 10)
    queue.add([claim_key("d", "ns", "one", "u1")])
    assert client.llen("drv.d") == 1
    before = replicated.kill_master()
    after = replicated.wait_promoted(before)
    wait_until(lambda: works(queue.heartbeat), 20, "the queue works again")
    queue.set_limits("claims|d", 10)
    with replicated.client(after) as direct:
        direct.delete("drv.d")
        queue.add([claim_key("d", "ns", "two", "u2")])

        def is_woken():
            queue.pump()
            return direct.llen("drv.d") == 1

        wait_until(is_woken, 20, "the message is at the new master")
    client.close()
    app.close()


def test_a_master_that_hangs_is_left_after_the_time_out(replicated):
    """A client leaves a master that hangs after one timeout.

    The old connections stay open and silent.
    """
    client = connect(replicated.url, socket_timeout_seconds=1)
    client.set("csifleet:epoch", "x")
    before = replicated.freeze_master()

    def writes():
        with redis_errors():
            assert client.set("csifleet:epoch", "y")

    after = replicated.wait_promoted(before)
    wait_until(lambda: works(writes), 15, "the new master is written to")
    with replicated.client(after) as direct:
        assert direct.get("csifleet:epoch") == "y"
    client.close()


def test_tls_and_passwords_of_both_hold_for_every_client(redis_binary, tmp_path, caplog):
    """The clients of csi-fleet, Celery, redbeat and Flower all work. No log shows a password."""
    if not is_as_shipped(redis_binary):
        pytest.skip("this redis-server knows no TLS")
    caplog.set_level(logging.DEBUG)
    make_ca(tmp_path, "ca")
    make_certificate(tmp_path, "ca", "tls", "localhost")
    with ReplicatedRedis(
        redis_binary,
        tmp_path / "redis",
        tls=tmp_path,
        password="of-redis",
        sentinel_password="of-sentinels",
    ) as secure:
        redis_settings = RedisSettings(
            url=secure.url, password="of-redis", sentinel_password="of-sentinels"
        )
        settings = Settings(redis=redis_settings)
        app = make_app(settings)
        # This is what a worker shows to Flower or any other client that asks.
        assert "of-redis" not in str(app.conf.table(with_defaults=True, censored=True))
        assert "of-sentinels" not in str(app.conf.table(with_defaults=True, censored=True))
        app.conf.update(beat_settings(settings))  # as beat's own application
        url = redis_settings.url_with_credentials()
        client = connect(url)
        assert client.set("csifleet:epoch", "x")
        publisher(app)(["drv.d"])
        assert client.llen("drv.d") == 1
        assert schedulers.get_redis(app).llen("drv.d") == 1
        assert asyncio.run(flower_counts(app, "drv.d")) == 1
        before = secure.kill_master()
        secure.wait_promoted(before)
        wait_until(lambda: works(lambda: epoch(client)), 30, "the new master answers")
        assert asyncio.run(flower_counts(app, "drv.d")) == 1
        assert schedulers.get_redis(app).llen("drv.d") == 1
        client.close()
        app.close()
    assert "of-redis" not in caplog.text
    assert "of-sentinels" not in caplog.text


def test_the_sentinels_password_changes_while_clients_run(redis_binary, tmp_path):
    """Each new connection to a sentinel of csi-fleet, Celery or Flower reads the password file."""
    file = tmp_path / "password"
    file.write_text("old\n")
    with ReplicatedRedis(redis_binary, tmp_path / "redis", sentinel_password="old") as fleet:
        flags = [f"--redis-url={fleet.url}", f"--redis-sentinel-password-file={file}"]
        settings = parse(Command.WATCHER, flags, {})
        url = settings.redis.url_with_credentials()
        client, app = connect(url), make_app(settings)
        assert client.ping()
        for sentinel in fleet.sentinels:
            with fleet.client(sentinel, is_sentinel=True) as admin:
                admin.acl_setuser("default", enabled=True, passwords=["+new", "-old"], keys=["*"])
        fleet.sentinel_password = "new"
        file.write_text("new\n")
        fleet.wait_promoted(fleet.kill_master())
        wait_until(lambda: works(lambda: epoch(client)), 30, "the new master answers")
        publisher(app)(["drv.d"])
        assert client.llen("drv.d") == 1
        assert asyncio.run(flower_counts(app, "drv.d")) == 1
        client.close()
        app.close()


def epoch(client):
    with redis_errors():
        return client.get("csifleet:epoch")


async def flower_counts(app, name):
    """Return a list's length as Flower's page of queues does."""
    uri = app.connection().as_uri(include_password=True)
    broker = Broker(
        uri,
        broker_options=app.conf.broker_transport_options,
        broker_use_ssl=app.conf.broker_use_ssl,
    )
    found = (await broker.queues([name]))[0]["messages"]
    # Flower leaves these connections to the garbage collector.
    for sentinel in broker.redis.connection_pool.sentinel_manager.sentinels:
        await sentinel.aclose()
    return found


def test_beat_ticks_over_sentinels_and_after_a_promotion(replicated, tmp_path):
    """Beat ticks with sentinels.

    After a promotion it exits or continues; its supervisor restarts it with the new master.
    """
    state = tmp_path / "beat"
    state.mkdir()

    def start():
        command = [sys.executable, "-m", "workers", "beat", f"--state-dir={state}"]
        command.append(f"--redis-url={replicated.url}")
        return start_process(
            "beat", command, log=tmp_path / "beat.log", env=environment(), cwd=ROOT
        )

    first = start()
    try:
        with replicated.client(replicated.master()) as direct:
            wait_until(lambda: direct.llen(SYSTEM_QUEUE), 40, "a tick")
        after = replicated.wait_promoted(replicated.kill_master())
        with replicated.client(after) as direct:
            before = direct.llen(SYSTEM_QUEUE)
            wait_until(
                lambda: not first.is_running() or direct.llen(SYSTEM_QUEUE) > before,
                60,
                "beat ends or goes on",
            )
            second = None if first.is_running() else start()
            wait_until(lambda: direct.llen(SYSTEM_QUEUE) > before, 60, "it ticks there")
            if second is not None:
                second.kill()
    finally:
        first.kill()
