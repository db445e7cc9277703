"""Redis as shipped, with TLS and a user per component: the permissions suffice and are minimal."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import redis
import requests

from tests.support.components import Components
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Scene
from tests.support.kube_api import KubeApi
from tests.support.processes import free_port
from tests.support.redis_fixtures import undeclared_keys
from tests.support.secure_redis import CONFIG, DRIVER_BROKER, DRIVER_USER, USERS, SecureRedis
from tests.support.waiting import wait_until
from workers.app import SYSTEM_QUEUE, make_app
from workers.cli import beat
from workers.config.flags import Command
from workers.config.load import parse
from workers.queue.names import CELERY_QUEUE_PREFIX


@pytest.fixture(scope="module")
def server(redis_binary, tmp_path_factory):
    server = SecureRedis(redis_binary, tmp_path_factory.mktemp("redis"))
    yield server.start()
    server.stop()


@pytest.fixture(scope="module")
def kubeconfig(request):
    given = os.environ.get("CSI_FLEET_TEST_KUBECONFIG")
    return Path(given or request.getfixturevalue("control_plane").kubeconfig)


@pytest.fixture(scope="module")
def parts(server, kubeconfig, tmp_path_factory):
    """Run every component with its own Redis user, for one driver."""
    with (
        DirectoryDriver() as driver,
        Components(tmp_path_factory.mktemp("parts"), server) as parts,
    ):
        parts.driver = driver
        parts.start("watcher", kubeconfig)
        parts.start("worker", kubeconfig, f"--csi-address={driver.address}")
        parts.start("worker", kubeconfig, f"--csi-address={driver.address}", name="worker-2")
        parts.start("beat")
        yield parts


def test_claims_are_bound_and_volumes_deleted(server, parts, kubeconfig):
    """Claims are bound and volumes deleted, through a loss of all data and with a killed worker."""
    with KubeApi(kubeconfig) as api:
        scene = Scene(api)
        try:
            storage_class = scene.storage_class(parts.driver.name)
            for number in range(5):
                scene.claim(f"a{number}", storage_class)
            scene.wait_bound()
            assert server.denials() == []
            with server.client("operator") as client:
                client.flushall()
            # RedBeat ends when it loses its lock; an orchestrator starts it again.
            parts.stop("beat")
            parts.start("beat")
            parts.processes["worker-2"].kill()
            for number in range(5):
                scene.claim(f"b{number}", storage_class)
            scene.wait_bound()
            for name in scene.claims():
                scene.delete(name)
            scene.wait_gone()
        finally:
            scene.clean_up()
    with server.client("operator") as client:
        wait_until(lambda: client.exists("redbeat::schedule"), 30, "beat has a schedule")
        assert undeclared_keys(client) == []
    assert server.denials() == []


def test_flower_sees_workers_and_tasks(server, parts):
    port = free_port()
    parts.start("flower", None, f"--flower-port={port}", CSI_FLEET_FLOWER_BASIC_AUTH="a:secret")

    def workers():
        answer = requests.get(
            f"http://127.0.0.1:{port}/api/workers", params={"refresh": 1},
            auth=("a", "secret"), timeout=10,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        return answer.json()

    wait_until(workers, 60, "Flower knows a worker")
    names = [f"{CELERY_QUEUE_PREFIX}{parts.driver.name}"]
    queues = requests.get(
        f"http://127.0.0.1:{port}/api/queues/length", auth=("a", "secret"), timeout=10
    )
    assert queues.status_code == 200, queues.text
    assert set(names) <= {one["name"] for one in queues.json()["active_queues"]}
    assert requests.get(f"http://127.0.0.1:{port}/api/workers", timeout=10).status_code == 401
    assert server.denials() == []


@pytest.mark.parametrize("task", ["system.tick", "claims.sync", "celery.accumulate"])
def test_who_may_add_a_tick_reaches_no_other_list(server, parts, task):
    """A tick, a failing task and a task of Celery itself send no follow-up task."""
    victim = f"{CELERY_QUEUE_PREFIX}victim.{task}"
    app = make_app(parse(Command.BEAT, server.login("beat"), {}))
    then = app.signature("claims.sync", options={"queue": victim})
    app.send_task(task, queue=SYSTEM_QUEUE, link=then, link_error=then, add_to_parent=False)
    app.close()
    with server.client("operator") as client:
        wait_until(lambda: not client.llen(SYSTEM_QUEUE), 30, "a worker took it")
        # A worker that has answered a later tick has finished the earlier one.
        time.sleep(1)
        assert not client.exists(victim)


def test_beat_keeps_and_gives_back_its_lock(server):
    """Beat can extend and release its lock.

    It first does so after a minute, when a missing permission would end it.
    """
    with server.client("beat") as client:
        client.set("redbeat::lock", "token")
        assert beat.extend(["redbeat::lock"], ["token", 60_000], client) == 1
        assert client.pttl("redbeat::lock") > 0
        assert beat.extend(["redbeat::lock"], ["another", 60_000], client) == 0
        assert beat.release(["redbeat::lock"], ["token"], client) == 1


def test_nobody_gets_in_without_a_login_or_without_tls(server):
    with (
        redis.Redis.from_url(server.url, socket_timeout=5) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()
    with (
        redis.Redis(port=server.port, socket_timeout=5) as plain,
        pytest.raises(redis.ConnectionError),
    ):
        plain.ping()
    with server.client("tester") as client:
        known = {"default", "probe", "setup", "tester", "replication", DRIVER_USER, DRIVER_BROKER}
        assert {one.split()[1] for one in client.acl_list()} == {*USERS, *known}
    clear(server)


def test_settings_keep_queues_from_being_evicted(server):
    text = (CONFIG / "redis.conf").read_text()
    assert "maxmemory-policy noeviction" in text
    assert "appendonly yes" in text
    assert re.search(r"^port 0$", text, re.MULTILINE)


def clear(server):
    """Clear Redis' log of denials that a test caused on purpose."""
    with server.client("tester") as client:
        client.acl_log_reset()
