"""The environment that `csi-fleet run` passes to its parts."""

from __future__ import annotations

from typing import Any

import pytest

from workers.cli import embedded_redis
from workers.cli.run import Supervisor
from workers.config.flags import Command
from workers.config.load import parse

PRODUCTION = "/etc/production/kubeconfig"


class Stopped(Exception):  # noqa: N818 - no failure
    """Raised when the first part is about to start."""


def told(argv: list[str], directory: Any, environ: dict[str, str]) -> dict[str, str]:
    """Return the environment of the first part."""
    supervisor = Supervisor(parse(Command.RUN, argv, environ), argv, directory)
    seen: list[dict[str, str]] = []

    def add(_name: str, _command: Any, _module: Any, env: dict[str, str]) -> None:
        seen.append(env)
        raise Stopped

    supervisor.add = add  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        supervisor.start()
    return seen[0]


@pytest.mark.parametrize("flag", ["", "/etc/test/kubeconfig"])
def test_parts_have_the_kubeconfig_of_the_run(tmp_path, flag):
    """An explicit flag, even an empty one, overrides the variable, which is what the parts read."""
    environ = {"KUBECONFIG": PRODUCTION}
    argv = [f"--kubeconfig={flag}", "--master=http://127.0.0.1:1"]
    argv += ["--redis-url=redis://127.0.0.1:1"]
    part = parse(Command.WATCHER, argv, environ | told(argv, tmp_path, environ))
    assert part.kube.kubeconfig == flag


def test_records_of_a_redis_of_its_own_have_no_key(tmp_path, monkeypatch):
    """A key that is lost with the process would leave intent copies with invalid signatures."""
    monkeypatch.setattr(embedded_redis, "start", lambda _: (None, "unix:///tmp/x.sock"))
    assert "CSI_FLEET_RECORDS_KEY" not in told(["--master=http://127.0.0.1:1"], tmp_path, {})
