"""A command that waits shows the reason, and Ctrl-C at any moment causes no traceback."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.support.fleet import ROOT, environment
from tests.support.hostile_tools import cluster
from workers.cli import explain
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.settings import RedisSettings, Settings
from workers.kube import paths

# Prints a line when it begins to load the command's modules; before that only Python itself runs.
PROGRAM = """
import signal, sys, workers.entry

# Where the suite runs in the background SIGINT may be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Told:
    def find_spec(name, *_):
        if name == "workers.__main__":
            print("begun", flush=True)

sys.meta_path.insert(0, Told)
sys.exit(workers.entry.main())
"""


@pytest.fixture
def silent():
    """Return the URL of a Redis that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )


def test_a_redis_that_hangs_is_named_at_two_seconds_and_given_up_soon(silent):
    with start("status", f"--redis-url={silent}") as process:
        _, errors = process.communicate(timeout=60)
    first, *more, last = errors.splitlines()
    assert len(more) <= 2, "it was given up at a first time-out"
    assert first == "csi-fleet status: waiting for Redis (2 s)"
    assert last.startswith("csi-fleet status: redis: Timeout")
    assert process.returncode == 1


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_ctrl_c_leaves_no_traceback(silent, seconds):
    """Ctrl-C leaves no traceback while modules load,
    while the command connects, and while it waits.
    """
    with start("status", f"--redis-url={silent}") as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode in {130, -signal.SIGINT}


@pytest.mark.parametrize(
    ("storage_class", "cause", "said"),
    [
        ("missing", "class-missing", 'Storage class "missing" does not exist.'),
        ("one", "redis-away", "The last error recorded on the object: rpc error: no room"),
    ],
)
def test_explain_says_what_the_api_server_knows(silent, capsys, storage_class, cause, said):
    """While Redis hangs, the command shows everything that needs no Redis within three seconds."""
    api = cluster("d")
    claim = api.of(paths.CLAIMS, "own", "team")
    claim["metadata"]["uid"] = "u2"  # no volume belongs to it
    api.add(paths.CLAIMS, claim | {"spec": {"storageClassName": storage_class}})
    event = {"involvedObject": {"uid": "u2"}, "type": "Warning", "message": "rpc error: no room"}
    api.add(paths.EVENTS, {"metadata": {"name": "e", "namespace": "team"}, **event})
    settings = Settings(
        command=Command.EXPLAIN, arguments=("pvc", "team/own"), redis=RedisSettings(url=silent)
    )
    tools = Tools(settings)
    tools.__dict__.update(kube=api.kube)
    started = time.monotonic()
    assert explain.run(tools) == 1
    assert time.monotonic() - started < 3
    found = capsys.readouterr()
    assert found.out.startswith(f"pvc team/own: {cause}\n")
    assert said in found.out
    assert found.err.startswith("csi-fleet explain: redis: ")


def test_of_other_objects_their_status_is_said(silent, capsys):
    api = cluster("d")
    error = {"attachError": {"message": "the node is full"}}
    api.add(paths.ATTACHMENTS, api.of(paths.ATTACHMENTS, "attached") | {"status": error})
    settings = Settings(
        command=Command.EXPLAIN, arguments=("va", "attached"), redis=RedisSettings(url=silent)
    )
    tools = Tools(settings)
    tools.__dict__.update(kube=api.kube)
    assert explain.run(tools) == 1
    assert "The last error recorded on the object: the node is full" in capsys.readouterr().out
