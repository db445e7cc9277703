"""The node helpers take the Go programs' flags with their defaults, and load no heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from workers.errors import ConfigError
from workers.node import flags, registrar
from workers.node.main import main

MANIFEST = Path(__file__).parents[3] / "k8s/example/node.yaml"

LIVENESS = {
    "csi-address": "/run/csi/socket",
    "probe-timeout": 3.0,
    "health-port": "9808",
    "http-endpoint": "",
    "metrics-address": "",
    "metrics-path": "/metrics",
    "automaxprocs": False,
}
REGISTRAR = {
    "csi-address": "/run/csi/socket",
    "kubelet-registration-path": "",
    "plugin-registration-path": "/registration",
    "timeout": 1.0,
    "connection-timeout": 0.0,
    "health-port": 0,
    "http-endpoint": "",
    "enable-pprof": False,
    "mode": "",
    "version": False,
    "automaxprocs": False,
}


@pytest.mark.parametrize(
    ("program", "defaults"),
    [
        pytest.param(flags.LIVENESS, LIVENESS, id="LP-002"),
        pytest.param(flags.REGISTRAR, REGISTRAR, id="NR-003"),
    ],
)
def test_every_flag_of_the_reference_has_its_default(
    program: str, defaults: dict[str, object]
) -> None:
    """LP-002, NR-003: the defaults are those of the Go programs."""
    options = flags.read(program, [])
    assert isinstance(options, flags.Options)
    assert defaults.items() <= options.values.items()


@pytest.mark.parametrize("name", ["version", "kubeconfig", "leader-election"])
def test_the_liveness_probe_has_no_flag_of_a_controller(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """LP-002, LP-025: it needs no permission in the cluster."""
    assert main(flags.LIVENESS, [f"--{name}=x"]) == 2
    assert f"unknown flag: --{name}" in capsys.readouterr().err


def test_the_version_comes_before_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """NR-004: no other flag is checked."""
    argv = ["--version", "--health-port=1", "--http-endpoint=:1"]
    assert main(flags.REGISTRAR, argv) == 0
    assert capsys.readouterr().out.startswith("csi-node-driver-registrar ")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        pytest.param(
            ["--mode=kubelet-registration-probe", "--health-port=1", "--http-endpoint=:1"],
            "kubelet-registration-path is a required parameter",
            id="NRD-012",
        ),
        pytest.param(
            ["--kubelet-registration-path=/x/socket", "--health-port=1", "--http-endpoint=:1"],
            "only one of",
            id="NR-030",
        ),
    ],
)
def test_the_first_thing_wrong_is_told(argv: list[str], text: str) -> None:
    """NR-004, NRD-012: the required path, also in probe mode, and then the two listeners."""
    options = flags.read(flags.REGISTRAR, argv)
    assert isinstance(options, flags.Options)
    with pytest.raises(ConfigError, match=text):
        registrar.check(options)


def test_a_path_of_another_socket_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """NRD-010, NR-002: the kubelet needs the host's path of the same socket."""
    argv = ["--csi-address=/csi/csi.sock", "--kubelet-registration-path=/var/lib/p/other.sock"]
    options = flags.read(flags.REGISTRAR, argv)
    assert isinstance(options, flags.Options)
    registrar.check(options)
    assert "the kubelet uses --kubelet-registration-path" in caplog.text


def test_pprof_is_accepted_with_a_warning() -> None:
    """NRD-013: the flag has no effect."""
    options = flags.read(flags.REGISTRAR, ["--enable-pprof"])
    assert isinstance(options, flags.Options)
    assert options.warnings == [
        "flag --enable-pprof has no effect: SIGUSR1 writes the stacks of all threads"
    ]


def test_they_load_no_queue_and_no_cluster() -> None:
    """NR-050, NR-041, NR-032, LP-025: a node starts while Redis and the API server are down."""
    script = "import sys, workers.node.main; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {"redis", "celery", "kombu", "kubernetes", "workers.kube", "workers.queue"}
    assert not heavy & set(loaded)


def test_our_node_pods_follow_the_recommended_stanza() -> None:
    """LP-001, LP-024, LPD-008, LPD-009, NR-002: the kubelet's timeout exceeds that of one Probe."""
    objects = list(yaml.safe_load_all(MANIFEST.read_text()))
    pods = next(one for one in objects if one["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    driver, helper = pods["containers"]
    probe = driver["livenessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": "healthz"}
    assert probe["initialDelaySeconds"] == 10
    assert LIVENESS["probe-timeout"] < probe["timeoutSeconds"] < probe["periodSeconds"]  # type: ignore[operator]
    assert probe["failureThreshold"] == 5
    assert "livenessProbe" not in helper
    assert pods["automountServiceAccountToken"] is False
    assert "hostNetwork" not in pods
    folders = {one["name"]: one["hostPath"]["path"] for one in pods["volumes"]}
    path = next(one for one in helper["args"] if "kubelet-registration-path" in one)
    assert path.partition("=")[2] == f"{folders['socket']}/csi.sock"
    assert folders["registration"] == "/var/lib/kubelet/plugins_registry"
