"""Liveness monitors every thread of csi-fleet: each repeated task is a `Loop` (STR-9).

The list of threads is read from the source, so a new thread is either a `Loop`, whose every step
has a heartbeat, or is listed here with the reason why it cannot hang unnoticed.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from workers.loop import Loop
from workers.observability.health import Heartbeats

ROOT = Path(__file__).resolve().parents[2]
MAKERS = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor"}

ALLOWED = {
    "workers/loop.py": "the loop itself",
    "workers/engine/leadership.py": "requests about Leases; each runs within HEARTBEATS.during",
    "workers/drivers/fleet.py": "talks with drivers within _seen; a timer that closes a channel",
    "workers/controllers/resizer/sync.py": "ends with its pass, which has a heart",
    "workers/controllers/health/reading.py": "ends with its pass; each call has a deadline",
    "workers/custom/attempt.py": "a timer that writes one record; ends with its pass",
    "workers/observability/http.py": "serves the probes: if it hangs, they fail",
    "csi_client/blockserver.py": "a pool; each step ends with its request to the API server",
    "csi_client/connection.py": "stands alone; worker.py asks links_silent_seconds",
    "csi_client/registration.py": "gRPC's own pool for the kubelet's calls (node helpers)",
    "workers/cli/kubectl.py": "a command that ends; copies what kubectl writes",
    "workers/cli/fleetweb.py": "reads for one view of the page in Flower, which waits for it",
    "workers/cli/patience.py": "a command that ends; says what it waits for",
    "workers/conformance/plugin.py": "a command that ends",
    "workers/conformance/creating.py": "a command that ends",
    "workers/node/main.py": "node helper: one driver, whose answers are what its probe asks for",
    "workers/node/http.py": "node helper: serves the probe",
    "workers/node/liveness.py": "node helper: one request",
    "workers/node/probe.py": "node helper: one request with a deadline",
}


def made_in(path: Path) -> set[str]:
    """Return the thread-creating names that a module calls."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    names = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in calls
    }
    return names & MAKERS


def sources():
    return [
        path
        for package in ("workers", "watcher", "csi_client")
        for path in (ROOT / package).rglob("*.py")
    ]


def test_nothing_but_a_loop_starts_a_thread_that_goes_round():
    """A new background loop without a heartbeat fails here."""
    found = {str(path.relative_to(ROOT)) for path in sources() if made_in(path)}
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "path", ["workers/engine/leadership.py", "workers/drivers/fleet.py"], ids=["leases", "drivers"]
)
def test_what_a_pool_runs_has_a_heart(path):
    """Each function given to a pool of the engine has a heartbeat while it works."""
    tree = ast.parse((ROOT / path).read_text())
    given = {
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".submit")
    }
    bodies = {
        f"self.{node.name}": ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert given
    assert [name for name in given if "HEARTBEATS.during" not in bodies[name]] == []


def test_each_loop_of_the_product_is_named_when_it_hangs():
    """All loops use one mechanism: none is created with its own heartbeats or without any."""
    loops = [
        node
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Loop"
    ]
    assert len(loops) >= 14
    assert not [loop for loop in loops if "heartbeats" in {one.arg for one in loop.keywords}]
    now = [0.0]
    beats = Heartbeats(lambda: now[0])
    seen = []

    def hang() -> None:
        now[0] += 1e6
        seen.append(beats.check())
        loop.stop()

    loop = Loop("any", hang, heartbeats=beats)
    loop.run()
    assert seen == ["any: no progress for 1000000 s"]
    assert beats.check() == ""
