"""SIGTERM ends every process at once, even if it waits for an absent service."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import yaml

from tests.support.fleet import ROOT, environment
from tests.support.processes import free_port
from tests.support.waiting import wait_until

NOBODY = "redis://127.0.0.1:1"
# This is longer than a start on a slow machine and shorter than the waits themselves.
SECONDS = 15


@pytest.fixture
def kubeconfig(tmp_path):
    """Write a kubeconfig for an API server that does not answer."""
    path = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    lists = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    path.write_text(yaml.safe_dump({"current-context": "c", **lists}))
    return path


@pytest.mark.parametrize(
    ("command", "sign"),
    [
        ("worker", "Still connecting"),
        ("beat", "Retrying Redis connection"),
        ("watcher", "redis: "),
        ("flower", "Inspect method"),
    ],
)
def test_a_process_that_waits_ends_at_once(command, sign, kubeconfig, tmp_path):
    words = [f"--redis-url={NOBODY}", f"--state-dir={tmp_path}"]
    if command in {"worker", "watcher"}:
        words.append(f"--kubeconfig={kubeconfig}")
    if command == "flower":
        words.append(f"--flower-port={free_port()}")
    if command == "worker":
        words.append(f"--csi-address={tmp_path}/none.sock")
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers", command, *words],
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=environment(),
        )
    try:
        wait_until(lambda: sign in log.read_text(), 30, f"{command} waits")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
