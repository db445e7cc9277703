"""The command line of csi-attacher: which flags it refuses, and how it exits (section 11.7)."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.support.attach_cluster import ATTACHMENTS, CAPABILITIES, AttachCluster
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import ROOT, Fleet, environment, program
from tests.support.waiting import wait_until


def refused(kubeconfig, driver, *flags):
    """Return exit code and output of a start that must fail."""
    command = [*program(), "csi-attacher", f"--kubeconfig={kubeconfig}", *flags]
    command.append(f"--csi-address={driver.address}")
    found = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return found.returncode, found.stdout + found.stderr


@pytest.fixture(scope="module")
def attaching():
    with DirectoryDriver(arguments=[f"--capabilities={CAPABILITIES}"]) as driver:
        yield driver


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        pytest.param(
            ["--worker-threads=0"],
            "Option -worker-threads must be greater than zero",
            id="TA-111 no workers",
        ),
        pytest.param(
            ["--http-endpoint=127.0.0.1:0", "--metrics-address=127.0.0.1:0"],
            "nly one of `--metrics-address` and `--http-endpoint` can be set",
            id="TA-112 both addresses",
        ),
        pytest.param(["--feature-gates=NoSuchGate=true"], "NoSuchGate", id="unknown gate"),
    ],
)
def test_refused_at_the_start(kubeconfig, attaching, flags, text):
    """A-001, A-003, A-101: the program exits with 1 and csi-attacher's message."""
    code, output = refused(kubeconfig, attaching, *flags)
    assert code == 1, output
    assert text in output


def test_ta113_slow_handshake(kubeconfig, api, attaching, tmp_path):
    """DA-001: the handshake may take up to --timeout; csi-attacher allows one second."""
    slow = {"delay_seconds": 3, "times": 1}
    attaching.set_rules(
        *({"method": one, **slow} for one in ("GetPluginCapabilities", "GetPluginInfo"))
    )
    with Fleet(tmp_path / "f", kubeconfig, [attaching], "--controllers=attacher"):
        assert attaching.calls("ControllerGetCapabilities")
    attaching.set_rules()


def test_ta120_sigterm_during_a_publish(kubeconfig, api, attaching, tmp_path):
    """A-008: after SIGTERM, the program finishes the running call, then exits with 0."""
    cluster = AttachCluster(api, [attaching])
    fleet = Fleet(tmp_path / "f", kubeconfig, [attaching], "--controllers=attacher")
    fleet.start()
    try:
        (node,) = cluster.add_nodes(1)
        (volume,) = cluster.add_volumes(attaching, 1)
        attaching.set_rules({"method": "ControllerPublishVolume", "delay_seconds": 2})
        cluster.attach(f"{cluster.name}-va", attaching.name, volume, node)
        wait_until(
            lambda: any(c.ended_at is None for c in attaching.calls("ControllerPublishVolume")),
            30,
            "the call runs",
        )
        since = time.time()
        assert fleet.stop() == 0
        assert cluster.attached() == {(volume, node)}
        assert [c for c in attaching.calls("ControllerPublishVolume") if c.started_at > since] == []
    finally:
        fleet.stop()
        attaching.set_rules()
        cluster.clean_up()


def test_a_detach_does_not_wait_for_the_deadline_of_a_dead_workers_call(
    kubeconfig, api, attaching, tmp_path
):
    """BUG-16: a dead worker's call ended with its connection, so a detach need not wait."""
    cluster = AttachCluster(api, [attaching])
    flags = ("--controllers=attacher", "--timeout=5m")
    try:
        with Fleet(tmp_path / "f", kubeconfig, [attaching], *flags) as fleet:
            (node,) = cluster.add_nodes(1)
            (volume,) = cluster.add_volumes(attaching, 1)
            attaching.set_rules({"method": "ControllerPublishVolume", "hang": True, "times": 1})
            before = len(attaching.calls("ControllerPublishVolume"))
            name = f"{cluster.name}-va"
            cluster.attach(name, attaching.name, volume, node)
            wait_until(
                lambda: len(attaching.calls("ControllerPublishVolume")) > before,
                30,
                "the call runs",
            )
            api.request("DELETE", f"{ATTACHMENTS}/{name}")
            for worker in fleet.workers():
                os.kill(worker, signal.SIGKILL)
            cluster.wait_detached(45)
    finally:
        attaching.set_rules()
        cluster.clean_up()
