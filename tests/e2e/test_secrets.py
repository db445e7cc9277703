"""A secret value reaches only its Secret and the driver (issue 4)."""

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
from tests.support.life import CAPABILITIES, CONTROLLERS, Life
from tests.support.processes import free_port, start_process
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

PLANTED = f"pl4nted-{uuid.uuid4().hex}"
CODED = base64.b64encode(PLANTED.encode()).decode()
FORMS = {
    "as it is": PLANTED,
    "base64": CODED.rstrip("="),
    "base64 over lines": CODED[:16] + "\n" + CODED[16:],
    "hex": PLANTED.encode().hex(),
    "hex with blanks": PLANTED.encode().hex(" "),
    "percent": "".join(f"%{one:02x}" for one in PLANTED.encode()),
    "numbers": " ".join(str(one) for one in PLANTED.encode()),
    "entities": "".join(f"&#{one};" for one in PLANTED.encode()),
    "escapes": "".join(f"\\x{one:02x}" for one in PLANTED.encode()),
    "upper case": PLANTED.upper(),
    "backwards": PLANTED[::-1],
    "head cut off": PLANTED[len(PLANTED) // 2 - 1 :],
}
# These are the forms in JSON, a log or Redis. The driver's first message is logged without the
# secret.
FORMS |= {f"{name}, in JSON": json.dumps(form)[1:-1] for name, form in FORMS.items()}
ECHO = f"login as {PLANTED} refused ({CODED})"
SPELLED = f"login refused: {'; '.join(FORMS.values())}"
_SNAPSHOTS = "/apis/snapshot.storage.k8s.io/v1"
OBJECTS = (
    "/api/v1/persistentvolumes",
    "/apis/storage.k8s.io/v1/volumeattachments",
    f"{_SNAPSHOTS}/volumesnapshots",
    f"{_SNAPSHOTS}/volumesnapshotcontents",
)


def parameters(namespace, name):
    prefix = "csi.storage.k8s.io/provisioner-secret"
    return {f"{prefix}-name": name, f"{prefix}-namespace": namespace}


def redis_content(client):
    """Return every key with its value, for every type."""
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
    arguments = ["--record-secret-digests", f"--capabilities={CAPABILITIES}"]
    with DirectoryDriver(arguments=arguments) as driver:
        yield driver


@pytest.fixture
def own_redis(redis_binary, tmp_path):
    directory = tmp_path / "redis"
    directory.mkdir()
    server = RedisServer(redis_binary, directory, appendonly=True).start()
    yield server
    server.kill()


class Flower:
    """`csi-fleet flower` of the fleet, and all its pages that show our tasks."""

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


class Kept:
    """Collects, again and again, everything that anyone except the driver could read."""

    def __init__(self, scene, redis_url, flower, port):
        self.scene, self.api, self.redis_url = scene, scene.api, redis_url
        self.flower, self.port, self.texts = flower, port, []

    def keep(self):
        """Collect what exists for a short time only."""
        with redis.Redis.from_url(self.redis_url) as client:
            self.texts.append(repr(redis_content(client)))
        space = f"/api/v1/namespaces/{self.scene.namespace}"
        paths = [f"{space}/configmaps", f"{space}/persistentvolumeclaims"]
        self.texts += [json.dumps(self.api.items(path)) for path in (*paths, *OBJECTS)]

    def keep_rest(self):
        """Collect what stays: events, Flower's pages and metrics."""
        self.texts.append(json.dumps(self.api.items("/api/v1/events")))
        self.texts += self.flower.pages()
        self.texts.append(metrics(self.port))

    def check(self, directory):
        """Check everything collected, and all files: logs and those of Redis."""
        self.texts += [
            path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file()
        ]
        for name, form in FORMS.items():
            places = [
                text[max(0, at - 300) : at + 80]
                for text in self.texts
                if (at := text.find(form)) >= 0
            ]
            assert not places, f"found {name}: {places[0]}"


@pytest.fixture
def watched(tmp_path, kubeconfig, driver, scene, own_redis):
    """Run the fleet at its highest log level, with Flower."""
    port = free_port()
    flags = (
        "-v=9",
        f"--controllers={CONTROLLERS}",
        *(f"--{one}-timeout=2s" for one in ("provisioner", "attacher", "resizer", "snapshotter")),
        f"--http-endpoint=127.0.0.1:{port}",
        f"--namespace={scene.namespace}",
    )
    with Fleet(tmp_path, kubeconfig, [driver], *flags, redis_url=own_redis.url):
        flower = Flower(tmp_path, own_redis.url)
        try:
            wait_until(lambda: flower.get("/api/workers").ok, 40, "Flower serves")
            yield Kept(scene, own_redis.url, flower, port)
        finally:
            flower.process.stop()


def secrets(scene):
    """Create a Secret that reaches the driver and one that is not valid UTF-8."""
    good, bad = (
        base64.b64encode(value).decode()
        for value in (PLANTED.encode(), PLANTED.encode() + b"\xff\xfe")
    )
    scene.secret("good", user=good, password=good)
    scene.secret("bad", user=good, password=bad)


def arrived(driver):
    """Return the methods that received the secret, after checking its value."""
    content = json.dumps({"password": PLANTED, "user": PLANTED}, sort_keys=True).encode()
    calls = [call for call in driver.calls() if call.secrets_arrived]
    assert {call.secrets_sha256 for call in calls} == {hashlib.sha256(content).hexdigest()}
    return {call.method for call in calls}


def test_a_planted_secret_is_found_nowhere(tmp_path, driver, scene, watched):
    """The cases are success, errors that quote the secret, bad or missing Secrets, deletion."""
    secrets(scene)
    for name in ("good", "bad", "missing"):
        scene.storage_class(driver.name, name, parameters=parameters(scene.namespace, name))
    driver.set_rules(
        {"method": "CreateVolume", "code": "UNAUTHENTICATED", "message": ECHO, "times": 1},
        {"method": "CreateVolume", "code": "UNAUTHENTICATED", "message": SPELLED, "times": 1},
        {"method": "CreateVolume", "hang": True, "times": 1},
    )
    for name in ("good", "bad", "missing"):
        scene.claim(name, f"{scene.name}-{name}")
    scene.wait_event("good", "Unauthenticated")
    scene.wait_event("missing", "not found")
    scene.wait_event("bad", "not valid UTF-8")
    watched.keep()
    scene.wait_event("good", "context deadline exceeded")
    watched.keep()
    scene.wait_bound("good")
    driver.set_rules(
        {"method": "DeleteVolume", "code": "PERMISSION_DENIED", "message": ECHO, "times": 1}
    )
    watched.keep()
    scene.delete("good")
    wait_until(lambda: driver.volumes() == {}, 30, "deleted with its secret")
    watched.keep()
    watched.keep_rest()
    assert arrived(driver) == {"CreateVolume", "DeleteVolume"}
    assert any("claims.sync" in text and scene.namespace in text for text in watched.texts)
    # Flower shows the failed task with its cause.
    assert any("FAILURE" in text and "login as ***stripped***" in text for text in watched.texts)
    assert "***stripped***" in (tmp_path / "fleet.log").read_text()
    watched.check(tmp_path)


def test_no_operation_tells_its_secret(tmp_path, driver, scene, watched):
    """Each call fails with an error that quotes the secret, then hangs, then succeeds."""
    secrets(scene)
    life = Life(scene, driver, "good", recovers=False)  # the call of health has no secret
    try:
        life.prepare()
        methods = {one.method for one in life.operations().values()}
        life.answer_all(
            {"code": "UNAUTHENTICATED", "message": ECHO, "times": 1}, {"hang": True, "times": 1}
        )
        life.begin()
        for count in (2, 3):
            wait_until(
                lambda count=count: min(life.called().values()) >= count, 60, f"{count} calls each"
            )
            watched.keep()
        wait_until(lambda: life.undone() == [], 60, "everything is done")
        watched.keep()
    finally:
        life.clean_up()
        scene.clean_up()
    watched.keep_rest()
    assert arrived(driver) == methods
    watched.check(tmp_path)


def metrics(port):
    """Return the metrics of the endpoint that all parts of one `run` share."""
    answer = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5)
    assert answer.ok
    return answer.text
