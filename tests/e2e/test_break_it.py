"""Runs docs/tutorials/break-it.md next to a demo and checks that nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kube_api import KubeApi
from tests.support.processes import start_process
from tests.support.waiting import wait_until
from tests.support.walkthrough import kubectl

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "break-it.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def demo(tmp_path):
    """The running demo, its log, and the file that it asks the user to source."""
    log = tmp_path / "demo.log"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = start_process(
        "demo", [sys.executable, "-m", "examples.demo"], log=log, env=env, cwd=ROOT
    )

    def invited():
        assert process.is_running(), log.read_text()
        return re.search(r"in another terminal, once: \. (\S+)", log.read_text())

    try:
        place = wait_until(invited, 200, "the demo invites", fatal=AssertionError).group(1)
        yield process, log, Path(place)
    finally:
        process.signal(signal.SIGTERM)
        process.stop(30)


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


def nothing_is_lost(place):
    """Wait until claims are Bound and the drivers' volumes belong to PersistentVolumes."""
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", place.read_text(), re.MULTILINE))
    with KubeApi(Path(variables["KUBECONFIG"])) as api:

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
            return phases == {"Bound"} and len(volumes) == len(claims) and handles == made

        wait_until(is_settled, 90, "claims, volumes and storage agree")
