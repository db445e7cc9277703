"""The demo survives the kills of docs/tutorials/break-it.md, random kills, and its own death."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kube_api import KubeApi
from tests.support.processes import start_process
from tests.support.waiting import let_pass, wait_until
from tests.support.walkthrough import kubectl

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "break-it.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# A run on a busy machine starts the demo eleven times.
pytestmark = pytest.mark.timeout(900)
KILLS = 10
# KILLS_WITHIN=120 spreads the ten kills over two minutes, SEED=n repeats a run.
WITHIN_SECONDS = float(os.environ.get("KILLS_WITHIN", "30"))
SEED = int(os.environ.get("SEED", random.randrange(10_000)))
INVITED = re.compile(r"in another terminal, once: \. (\S+)")


@contextmanager
def started(folder):
    """Run a demo below `folder`; yield its process and its log."""
    log = folder / "demo.log"
    log.unlink(missing_ok=True)
    env = {**os.environ, "TMPDIR": str(folder)}
    process = start_process(
        "demo", [sys.executable, "-m", "examples.demo"], log=log, env=env, cwd=ROOT
    )
    try:
        yield process, log
    finally:
        process.signal(signal.SIGTERM)
        process.stop(30)


def invited(process, log):
    """Wait until the demo invites to break it; return the file that it asks the user to source."""

    def found():
        assert process.is_running(), log.read_text()
        return INVITED.search(log.read_text())

    return Path(wait_until(found, 200, "the demo invites", fatal=AssertionError).group(1))


@pytest.fixture
def folder():
    """A folder with a short path, because the path of Redis's socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        yield Path(folder)


@pytest.fixture
def demo(folder):
    """The running demo, its log, and the file that it asks the user to source."""
    with started(folder) as (process, log):
        yield process, log, invited(process, log)


def test_the_page_is_true(demo, tmp_path):
    process, log, place = demo
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "kubectl").symlink_to(kubectl())
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 7
    script = "\n".join([f". {place}", f'PATH={tools}:"$PATH"', "set -ex", *blocks])
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=280, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()
    assert "secret-missing" in done.stdout
    assert "-> Create the secret" in done.stdout
    for name in ("worker-1", "redis", "beta", "watcher"):
        text = f"{name} is started again"
        wait_until(lambda text=text: text in log.read_text(), 30, text)
    assert process.is_running()
    nothing_is_lost(place)


@pytest.mark.parametrize("who", ["worker", ""], ids=["workers", "any part"])
def test_ten_kills_at_random_moments_lose_nothing(demo, who):
    """Meanwhile claims are created and deleted. See `KILLS` for the seed and the time."""
    process, log, place = demo
    chance, names = random.Random(f"{SEED} {who}"), set()
    moments = sorted(chance.uniform(0, WITHIN_SECONDS) for _ in range(KILLS))
    parts = sorted(one.name for one in (place.parent / "pids").glob(f"{who}*"))
    killed, since = [], time.monotonic()
    with cluster(place) as (api, variables):
        user = User(api, variables["DEMO_NAMESPACE"], chance)
        user.repair()
        while moments:
            names ^= user.act(names)
            let_pass(0.2)
            if time.monotonic() - since >= moments[0]:
                moments.pop(0)
                part = chance.choice(parts)
                pid = int((place.parent / "pids" / part).read_text())
                os.kill(pid, signal.SIGKILL)
                killed.append(part)
                text = f"{part} is started again"
                count = killed.count(part)
                wait_until(
                    lambda text=text, count=count: log.read_text().count(text) >= count, 30, text
                )
        print(f"SEED={SEED}: killed {killed}; {len(names)} claims of {user.created}")
    assert process.is_running(), log.read_text()
    nothing_is_lost(place, names)


def test_a_demo_that_is_killed_itself_continues_and_loses_nothing(folder):
    """It is killed ten times at random moments, from its start to the end of its story."""
    chance, names, survived = random.Random(SEED), set(), set()
    for _ in range(KILLS):
        with started(folder) as (process, log):
            end = time.monotonic() + chance.uniform(0, WITHIN_SECONDS)
            while time.monotonic() < end:
                assert process.is_running(), log.read_text()
                if found := INVITED.search(log.read_text()):
                    place = Path(found.group(1))
                    with cluster(place) as (api, variables):
                        user = User(api, variables["DEMO_NAMESPACE"], chance)
                        user.repair()
                        names ^= user.act(names)
                let_pass(0.2)
            process.kill()
        assert len(survived | {one.name for one in folder.glob("csi-fleet-demo-*")}) <= 1
        survived |= {one.name for one in folder.glob("csi-fleet-demo-*")}
    with started(folder) as (process, log):
        place = invited(process, log)
        assert place.parent.name in survived
        assert "continuing the demo" in log.read_text()
        with cluster(place) as (api, variables):
            User(api, variables["DEMO_NAMESPACE"], chance).repair()
        print(f"SEED={SEED}: {len(names)} claims")
        nothing_is_lost(place, names)
    wait_until(lambda: not list(folder.glob("csi-fleet-demo-*")), 30, "nothing is left behind")


class User:
    """Creates and deletes claims of the demo, one at a time."""

    def __init__(self, api, namespace, chance):
        self.api, self.chance, self.created = api, chance, 0
        self.path = f"/api/v1/namespaces/{namespace}"
        classes = api.items("/apis/storage.k8s.io/v1/storageclasses")
        found = sorted(one["metadata"]["name"] for one in classes)
        self.classes = [name for name in found if not name.endswith("-login")]

    def repair(self):
        """Create the secret that one claim of the demo needs, unless it exists."""
        if self.api.find(f"{self.path}/secrets/storage-login") is None:
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "storage-login"}}
            self.api.request("POST", f"{self.path}/secrets", secret)

    def act(self, names):
        """Create a claim, or delete one of `names`; return the name in a set."""
        claims = f"{self.path}/persistentvolumeclaims"
        if names and self.chance.random() < 0.3:
            name = self.chance.choice(sorted(names))
            self.api.delete(f"{claims}/{name}")
            return {name}
        name = f"mine-{time.monotonic_ns()}"
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.chance.choice(self.classes),
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        self.api.request("POST", claims, body)
        self.created += 1
        return {name}


@contextmanager
def cluster(place):
    """Yield a client of the demo's cluster and the variables that a user of the demo has."""
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", place.read_text(), re.MULTILINE))
    with KubeApi(Path(variables["KUBECONFIG"])) as api:
        yield api, variables


def nothing_is_lost(place, names=frozenset()):
    """Wait until the claims, with all of `names`, are Bound and each has its own volume.

    The drivers' volumes are exactly those of the PersistentVolumes.
    """
    with cluster(place) as (api, variables):

        def is_settled():
            claims = api.items(
                f"/api/v1/namespaces/{variables['DEMO_NAMESPACE']}/persistentvolumeclaims"
            )
            volumes = api.items("/api/v1/persistentvolumes")
            handles = {one["spec"]["csi"]["volumeHandle"] for one in volumes}
            made = {
                one.name
                for driver in ("alpha", "beta")
                for one in (place.parent / driver / "volumes").iterdir()
                if not one.name.startswith(".")
            }
            phases = {one["status"]["phase"] for one in claims}
            there = {one["metadata"]["name"] for one in claims}
            assert there >= names
            assert phases == {"Bound"}, phases
            assert len(volumes) == len(claims), (len(volumes), len(claims))
            assert handles == made, handles ^ made
            return True

        wait_until(is_settled, 90, "claims, volumes and storage agree")
