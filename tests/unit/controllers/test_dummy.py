"""A new controller needs one folder and one line in the registry; the rest is derived.

The folder is `tests/support/dummy/echo`. `probe.py` adds it to the registry of a separate process
and returns everything that is derived from specs.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from tests.support.crash_world import CrashWorld
from tests.support.dummy.echo.controller import EchoController
from tests.support.dummy.echo.spec import SPEC
from watcher.hosted import Hosted
from workers.controllers import catalogue
from workers.engine.frame import run
from workers.explain import generic
from workers.explain.nouns import Noun
from workers.kube import paths
from workers.queue.keys import Key
from workers.queue.kinds import place_of

ROOT = Path(__file__).parents[3]
# Where a kind's name may be written: where it is defined. KNOWN lists the exceptions.
HOMES = (
    "workers/controllers/",
    "workers/queue/keys.py",
    # Names of Redis keys and of parts of the shared cache, not kinds of key.
    "workers/queue/names.py",
    "workers/queue/catalogkinds.py",
)
# Words that only look like kinds: Redis keys, JSON fields, Lua scripts and kinds of cached objects.
KNOWN = {
    ("workers/cli/adoptplan.py", "volumes"),
    ("workers/kube/reading.py", "volumes"),
    ("workers/cli/migrate.py", "volumes"),
    ("workers/explain/using.py", "volumes"),
    ("workers/custom/backend.py", "claims"),
    ("workers/custom/backend.py", "volumes"),
}
OTHER_MEANING = {"capacity", "sweep", "snapshots", "contents"}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """Return the output of a process that has the echo controller."""
    code = [sys.executable, "-m", "tests.support.dummy.probe"]
    output = subprocess.run(code, check=True, capture_output=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(output.stdout)
    return found


def test_its_flags_settings_and_command_appear(told):
    assert told["settings"] == {"loudness": 9}
    assert told["chosen"] == ["echo"]
    assert told["command"][1] == ["--controllers=echo", "--loudness=1"]


def test_its_keys_have_lanes_and_lists(told):
    assert told["lanes"] == {"echoes|d": 2}
    assert told["tasks"] == ["system.tick", "system.work"], "a kind costs Celery nothing"
    assert told["places"] == ["d#echo", "system-silences"]
    assert any("echoes" in line and "CALL_KINDS" in line for line in told["lua"])
    assert any("['echoes'] = '#echo'" in line for line in told["lua"])


def test_the_watcher_tells_it_of_events():
    """The watcher follows a resource because the spec names it.

    The controller's rules make the keys.
    """
    sent: list[Any] = []
    outbox = SimpleNamespace(add=lambda keys, *_, **__: sent.extend(keys), forget=sent.extend)
    hosted = Hosted(SPEC, outbox)  # type: ignore[arg-type]
    hosted.set_records([{"name": "d", "queue_name": "d"}])
    (watch,) = SPEC.watches
    meta = {"namespace": "a", "name": "b", "uid": "u", "resourceVersion": "7"}
    item = msgspec.convert({"metadata": meta}, watch.item_type)
    hosted.seen(watch.resource, item, is_listed=False)
    assert sent == [Key("echoes", "d", "a/b", "u")]
    assert hosted.all_keys() == sent


def test_workers_say_that_they_run_it(told):
    assert told["record"]["controllers"] == ["echo"]
    assert told["record_at"] == "d#echo"


def test_its_docs_appear(told):
    """docs/flags.md has its row among the controllers and a table of its flags with bounds."""
    assert "| `echo` | csi-echo | `csi-fleet csi-echo` |" in told["docs"]
    assert "## Flags of the echo controller" in told["docs"]
    (row,) = told["row"]
    assert "How loud. Must be at least 1." in row


def test_its_permissions_appear(told):
    """`doctor` asks the API server for the permissions and names the missing ones."""
    (lacking,) = told["permissions"]
    assert "shout claims" in lacking


def test_metrics_limits_explain_completion_and_lease_know_it(told):
    assert told["work_queue"] == "csi-echo"
    assert told["operation"] == "echoes"
    assert told["noun"] == "echo NAMESPACE/NAME"
    assert "echo" in told["words"]
    assert told["lease"] == "echo-d"


@pytest.mark.parametrize(
    ("key", "waiting"),
    [(Key("claims", "d", "a/b", "u"), "a/b d"), (Key("bindings", "", "x"), "x nobody")],
)
def test_a_message_becomes_a_pass_with_or_without_a_driver(redis_client, key, waiting):
    """The engine takes the controller's locks, runs it and releases the key.

    The kinds of the echo controller get the names of known kinds here, because this process's
    scripts know no others.
    """
    world = CrashWorld(redis_client)
    owner = world.owner()
    context = owner.runtime
    names = ("claims", "bindings")
    kinds = tuple(replace(kind, name=name) for kind, name in zip(SPEC.kinds, names, strict=True))
    echo = EchoController()
    echo.spec = replace(SPEC, kinds=kinds)
    controllers = dict.fromkeys(names, echo)
    context.driver_of = lambda _: SimpleNamespace(name="d", settings=world.settings)
    owner.queue.set_limits(key.lane, 1)
    owner.queue.add([key])
    outcomes = []
    context.shown = lambda task, key: nullcontext(outcomes.append)
    run(context, controllers, place_of(key.driver, key.kind))
    assert [outcome.reason for outcome in outcomes] == [waiting]
    work_queue = next(one.work_queue for one in kinds if one.name == key.kind)
    shown = generate_latest(context.metrics.registry).decode()
    assert f'workqueue_adds_total{{name="{work_queue}"}} 1.0' in shown
    assert owner.queue.stats()[key.lane].running == 0


def test_explain_tells_what_the_queue_knows(redis_client):
    """Without its own `explain.py` a controller gets the generic answer, with and without a key."""
    world = CrashWorld(redis_client)
    world.add_claim()
    claim = world.kube.get_claim("default", "data")
    kube: Any = SimpleNamespace(get=lambda *_, **__: claim)
    noun = Noun("echo", paths.CLAIMS, ((SPEC, SPEC.kinds[0]),))
    records = {"d": {"name": "d", "queue_name": "d", "controllers": ["echo"]}}
    registry = SimpleNamespace(alive=lambda: records)
    tools: Any = SimpleNamespace(kube=kube, registry=registry, redis=redis_client)

    def told() -> str:
        place = {"namespace": "default", "name": "data"}
        return generic.explain(tools, noun, **place).cause.code

    assert told() == "nothing-to-do"
    owner = world.owner()
    key = Key("echoes", "d", "default/data", claim["metadata"]["uid"])
    owner.queue.set_limits(key.lane, 1)
    owner.queue.add([key])
    assert told() == "no-free-worker"  # its message is published, but no worker has taken it


def test_no_kind_is_spelled_outside_of_its_controller():
    """Code that must know a kind reads it from the registry (STR-2)."""
    names = set(catalogue.kinds()) - OTHER_MEANING
    found = set()
    for folder in ("workers", "watcher", "csi_client"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if place.startswith(HOMES) or "_generated" in place:
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and node.value in names:
                    found.add((place, node.value))
    assert found - KNOWN == set()
