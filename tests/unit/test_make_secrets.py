"""k8s/make-secrets.sh: which Secret is created in which namespace (SEC-5)."""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "k8s/make-secrets.sh"
# The file with the command, and the file with the driver's pods.
DRIVERS = {
    "k8s/overlays/prod-sidecar/driver.yaml": "k8s/overlays/prod-sidecar/driver.yaml",
    "k8s/overlays/prod-node/driver.yaml": "k8s/overlays/prod-node/driver.yaml",
    "examples/nfs_csi_driver/manifests/kustomization.yaml": (
        "examples/nfs_csi_driver/manifests/controller.yaml"
    ),
}


def made(folder, *drivers):
    command = ["sh", SCRIPT, folder, "csi-fleet", *drivers]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "no folder is named"),
        (("--help",), "'--help' is no folder"),
        (("", "ns"), "'' is no folder"),
        (("secrets", "ns", "driver"), "'driver' is no DRIVER=ITS_NAMESPACE"),
        (("secrets", "ns", "a=n", "=n"), "'=n' is no DRIVER=ITS_NAMESPACE"),
    ],
)
def test_a_mistake_is_one_line_with_the_usage(words, problem, tmp_path):
    done = subprocess.run(
        ["sh", SCRIPT, *words], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"{problem}; usage: make-secrets.sh DIR [NAMESPACE [DRIVER=ITS_NAMESPACE[/SECRET]...]]\n"
    )
    assert not list(tmp_path.iterdir())


def test_drivers_of_one_namespace_have_secrets_of_their_own(tmp_path):
    found = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one.get("data")
        for one in yaml.safe_load_all(made(tmp_path, "a.b=ns", "c.d=ns/second").stdout)
    }
    first, second = found["ns", "redis-password-worker"], found["ns", "second"]
    assert set(first) == set(second) == {"username", "password", "records-key"}
    assert base64.b64decode(second["username"]) == b"worker.c.d"
    assert not set(first.values()) & set(second.values())
    passwords = found["csi-fleet", "redis-passwords"]
    assert passwords["worker.a.b"] == first["password"]
    assert passwords["worker.c.d"] == second["password"]


def test_two_drivers_with_one_secret_are_refused(tmp_path):
    """Otherwise both drivers would get the password of the later one."""
    done = made(tmp_path / "secrets", "a.b=ns", "c.d=ns")
    assert done.returncode == 1
    assert "two drivers share the Secret ns/redis-password-worker" in done.stderr
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize("told", DRIVERS)
def test_a_drivers_manifest_gets_what_it_mounts_by_the_command_in_it(told, tmp_path):
    """No Secret is copied by hand, and each driver has its own user and records key."""
    (driver,) = re.findall(r"make-secrets\.sh DIR csi-fleet (\S+) \|", (ROOT / told).read_text())
    name, _, namespace = driver.partition("=")
    objects = list(yaml.safe_load_all(made(tmp_path, driver).stdout))
    there = {(o["kind"], o["metadata"]["name"], o["metadata"]["namespace"]): o for o in objects}
    pods = [
        one["spec"]["template"]["spec"]
        for one in yaml.safe_load_all((ROOT / DRIVERS[told]).read_text())
        if one["kind"] in {"Deployment", "DaemonSet"}
    ]
    env = {e["name"]: e.get("value") for c in pods[0]["containers"] for e in c.get("env") or ()}
    assert env["CSI_FLEET_REDIS_USERNAME"] == f"worker.{name}"
    assert ("ConfigMap", "redis-ca", namespace) in there
    keys = there["Secret", "redis-password-worker", namespace]["data"]
    for variable in ("CSI_FLEET_REDIS_PASSWORD_FILE", "CSI_FLEET_RECORDS_KEY_FILE"):
        assert env[variable].rpartition("/")[2] in keys
