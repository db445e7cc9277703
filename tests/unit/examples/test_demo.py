"""make demo: a mistake is told before anything is started, and its end lets the user go on."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from examples.demo import __main__ as demo
from examples.demo.stack import Stack


def test_a_kubeconfig_that_is_not_there_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda **_: pytest.fail("a folder"))
    monkeypatch.setattr(sys, "argv", ["demo", "--kubeconfig", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as caught:
        demo.main()
    assert caught.value.code == 2
    assert f"--kubeconfig {tmp_path / 'none'}: no such file" in capsys.readouterr().err


def test_the_command_to_try_names_redis_and_the_cluster(tmp_path):
    stack = Stack(tmp_path, tmp_path / "config", "x", print)
    stack._redis = SimpleNamespace(url="redis://127.0.0.1:7000/0")
    line = stack.command("status")
    assert line.endswith(
        f"csi-fleet status --redis-url=redis://127.0.0.1:7000/0 --kubeconfig={tmp_path / 'config'}"
    )
