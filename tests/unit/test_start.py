"""What each command loads at its start: no heavy library that it does not use.

The unit is modules, not seconds: a module takes about 0.5 ms, and all of them a third of a second.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Libraries that others import but csi-fleet does not need.
NEEDLESS = {
    *("kubernetes", "pydantic", "requests", "oauthlib", "requests_oauthlib", "websocket"),
    *("flower", "tornado", "unittest"),  # redis-py loads OpenTelemetry if it is installed
}
DRIVERS = {"grpc", "google.protobuf"}
TICKETS = {"celery", "kombu", "amqp"}
# The command's module, what it must not load, and its module limit (about 40 above today).
STARTS = {
    "workers.cli.run": ({*DRIVERS, *TICKETS, "redis", "pycurl", "yaml"}, 330),
    "workers.cli.explain": ({*DRIVERS, *TICKETS, "prometheus_client", "rich"}, 600),
    "workers.cli.beat": (DRIVERS, 700),
    "watcher.__main__": (DRIVERS, 790),
    "workers.cli.worker": ({"rich", "workers.custom", "redbeat"}, 940),
}


def loaded_by(program: str) -> set[str]:
    """Return the names of all modules that a new interpreter has loaded after this program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("command", STARTS)
def test_a_command_loads_what_it_uses(command):
    forbidden, most = STARTS[command]
    loaded = loaded_by(f"import workers.__main__, {command}")
    assert sorted((NEEDLESS | forbidden) & loaded) == []
    assert len(loaded) <= most


def test_garbage_is_collected_again_once_a_command_runs():
    """`workers.entry` disables the garbage collector while modules are loaded."""
    loaded_by(
        "import gc, sys\n"
        "from workers.cli import completion\n"
        "seen = []\n"
        "completion.run = lambda _: seen.append(gc.isenabled()) or 0\n"
        "sys.argv = ['csi-fleet', 'completion', 'bash']\n"
        "from workers import entry\n"
        "assert entry.main() == 0\n"
        "assert seen == [True]\n"
    )
