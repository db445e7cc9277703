"""A planted secret is at the driver and in its Secret, and nowhere else (issue 4)."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import uuid

import pytest
import redis
import requests

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import ROOT, Fleet, environment
from tests.support.processes import free_port, start_process
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

PLANTED = f"pl4nted-{uuid.uuid4().hex}"
FORMS = {
    "as it is": PLANTED,
    "base64": base64.b64encode(PLANTED.encode()).decode().rstrip("="),
    "hex": PLANTED.encode().hex(),
}


def parameters(namespace, name):
    prefix = "csi.storage.k8s.io/provisioner-secret"
    return {f"{prefix}-name": name, f"{prefix}-namespace": namespace}


def redis_content(client):
    """Every key with every value of every type."""
    readers = {
        "string": client.get,
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        "stream": client.xrange,
    }
    found = {}
    for key in client.scan_iter(count=1000):
        kind = client.type(key).decode()
        if kind != "none":
            found[key] = readers[kind](key)
    return found


@pytest.fixture
def driver():
    with DirectoryDriver(arguments=["--record-secret-digests"]) as driver:
        yield driver


@pytest.fixture
def own_redis(redis_binary, tmp_path):
    directory = tmp_path / "redis"
    directory.mkdir()
    server = RedisServer(redis_binary, directory, appendonly=True).start()
    yield server
    server.kill()


class Flower:
    """`csi-fleet flower` beside the system, and all its pages that name our tasks."""

    def __init__(self, directory, redis_url):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        state = directory / "flower-state"
        state.mkdir()
        self.log = directory / "flower.log"
        self.process = start_process(
            "flower",
            [
                *(sys.executable, "-m", "workers", "flower", f"--flower-port={port}"),
                *(f"--redis-url={redis_url}", f"--state-dir={state}", "-v=9"),
            ],
            log=self.log,
            env=environment(
                CSI_FLEET_FLOWER_BASIC_AUTH="me:word", FLOWER_UNAUTHENTICATED_API="true"
            ),
            cwd=ROOT,
        )

    def get(self, path):
        return requests.get(self.url + path, auth=("me", "word"), timeout=10)

    def pages(self):
        tasks = self.get("/api/tasks?limit=1000")
        found = [tasks.text, self.get("/api/workers").text, self.get("/workers").text]
        for task in tasks.json():
            found += [self.get(f"/task/{task}").text, self.get(f"/api/task/info/{task}").text]
        return found


def test_a_planted_secret_is_found_nowhere(tmp_path, kubeconfig, driver, scene, own_redis):
    """Success, driver errors that echo it, missing, non-UTF-8 and missing keys, deletion."""
    good, bad = (
        base64.b64encode(value).decode()
        for value in (PLANTED.encode(), PLANTED.encode() + b"\xff\xfe")
    )
    api = scene.api
    scene.secret("good", user=good, password=good)
    scene.secret("bad", user=good, password=bad)
    for name in ("good", "bad", "missing"):
        scene.storage_class(driver.name, name, parameters=parameters(scene.namespace, name))
    port = free_port()
    flags = (
        "-v=9",
        "--timeout=2s",
        f"--http-endpoint=127.0.0.1:{port}",
        f"--namespace={scene.namespace}",
    )
    with Fleet(tmp_path, kubeconfig, [driver], *flags, redis_url=own_redis.url) as fleet:
        flower = Flower(tmp_path, own_redis.url)
        try:
            wait_until(lambda: flower.get("/api/workers").ok, 40, "Flower serves")
            kept = []

            def keep():
                with redis.Redis.from_url(own_redis.url) as client:
                    kept.append(repr(redis_content(client)))
                config_maps = api.items(f"/api/v1/namespaces/{scene.namespace}/configmaps")
                kept.append(json.dumps(config_maps))

            echo = f"login as {PLANTED} refused ({base64.b64encode(PLANTED.encode()).decode()})"
            driver.set_rules(
                {"method": "CreateVolume", "code": "UNAUTHENTICATED", "message": echo, "times": 2},
                {"method": "CreateVolume", "hang": True, "times": 1},
            )
            for name in ("good", "bad", "missing"):
                scene.claim(name, f"{scene.name}-{name}")
            scene.wait_event("good", "Unauthenticated")
            scene.wait_event("missing", "not found")
            scene.wait_event("bad", "not valid UTF-8")
            keep()
            scene.wait_event("good", "context deadline exceeded")
            keep()
            scene.wait_bound("good")
            volume = scene.volume_of(scene.get("good"))
            driver.set_rules(
                {"method": "DeleteVolume", "code": "PERMISSION_DENIED", "message": echo, "times": 1}
            )
            scene.delete("good")
            wait_until(lambda: driver.volumes() == {}, 30, "deleted with its secret")
            keep()
            kept.append(json.dumps(volume))
            kept.append(json.dumps(api.items(f"/api/v1/namespaces/{scene.namespace}/events")))
            kept.append(json.dumps(api.events_of("default", volume["metadata"]["name"])))
            kept += flower.pages()
            kept.append(metrics(port))
        finally:
            flower.process.stop()
    kept += [fleet.log_text(), flower.log.read_text(errors="replace")]
    kept += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]

    expected = hashlib.sha256(
        json.dumps({"password": PLANTED, "user": PLANTED}, sort_keys=True).encode()
    ).hexdigest()
    arrived = [call for call in driver.calls() if call.secrets_arrived]
    assert {call.method for call in arrived} == {"CreateVolume", "DeleteVolume"}
    assert {call.secrets_sha256 for call in arrived} == {expected}
    assert any("claims.sync" in text and scene.namespace in text for text in kept)
    assert "***stripped***" in fleet.log_text()
    for name, form in FORMS.items():
        places = [text[max(0, at - 300) : at + 80] for text in kept if (at := text.find(form)) >= 0]
        assert not places, f"found {name}: {places[0]}"


def metrics(port):
    """What the endpoint of any part serves; the parts of one `run` share the flag."""
    answer = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5)
    assert answer.ok
    return answer.text
