"""k8s/make-secrets.sh: whose Secret lies where (SEC-5)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).resolve().parents[2] / "k8s/make-secrets.sh"


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
    assert set(first) == set(second) == {"password", "records-key"}
    assert not set(first.values()) & set(second.values())
    passwords = found["csi-fleet", "redis-passwords"]
    assert passwords["worker.a.b"] == first["password"]
    assert passwords["worker.c.d"] == second["password"]


def test_two_drivers_with_one_secret_are_refused(tmp_path):
    """The later one's password would be the earlier one's too."""
    done = made(tmp_path / "secrets", "a.b=ns", "c.d=ns")
    assert done.returncode == 1
    assert "two drivers share the Secret ns/redis-password-worker" in done.stderr
    assert not (tmp_path / "secrets").exists()
