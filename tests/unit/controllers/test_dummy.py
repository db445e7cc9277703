"""A new controller costs one folder and one line in the catalogue; everything else follows.

The folder is `tests/support/dummy/echo`; `probe.py` puts it into the catalogue of a process of its
own and asks for everything that is derived from specs.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.support.crash_world import CrashWorld
from tests.support.dummy.echo.controller import CONTROLLER
from tests.support.dummy.echo.spec import SPEC
from watcher.hosted import Hosted
from workers.controllers import catalogue
from workers.engine.frame import run
from workers.queue.keys import Key

ROOT = Path(__file__).parents[3]
# Where a kind's name may stand: where it is built, and the rest is told in KNOWN.
HOMES = (
    "workers/controllers/",
    "workers/queue/keys.py",
    # Names of Redis keys and of the catalog's parts, not kinds of key.
    "workers/queue/names.py",
    "workers/queue/catalogkinds.py",
)
# Words that are kinds of key by chance: Redis keys, JSON fields, Lua scripts, the catalog's kinds.
KNOWN = {
    ("workers/explain/gather.py", "volumes"),
    ("workers/cli/migrate.py", "volumes"),
    ("workers/custom/backend.py", "claims"),
    ("workers/custom/backend.py", "volumes"),
}
OTHER_MEANING = {"capacity", "sweep", "snapshots", "contents"}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the process with the echo controller says."""
    code = [sys.executable, "-m", "tests.support.dummy.probe"]
    output = subprocess.run(code, check=True, capture_output=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(output.stdout)
    return found


def test_its_flags_settings_and_command_appear(told):
    assert told["settings"] == {"loudness": 9}
    assert told["chosen"] == ["echo"]
    assert told["command"][1] == ["--controllers=echo", "--loudness=1"]
    assert len(told["docs"]) == 1


def test_its_keys_have_lanes_tickets_and_tasks(told):
    assert told["lanes"] == {"echoes|d": 2}
    assert {"echoes.sync", "silences.sync"} <= set(told["tasks"])
    assert told["places"] == ["d#echo", "system-silences"]
    assert any("echoes" in line and "CALL_KINDS" in line for line in told["lua"])
    assert any("['echoes'] = '#echo'" in line for line in told["lua"])


def test_the_watcher_tells_it_of_events():
    """Followed because its spec says so; its rules make the keys."""
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


def test_metrics_limits_explain_completion_lease_and_rights_know_it(told):
    assert told["work_queue"] == "csi-echo"
    assert told["operation"] == "echoes"
    assert told["noun"] == "echo NAMESPACE/NAME"
    assert "echo" in told["words"]
    assert told["lease"] == "echo-d"
    assert "to be heard" in told["permissions"]


@pytest.mark.parametrize(
    ("key", "waiting"),
    [(Key("echoes", "d", "a/b", "u"), "a/b d"), (Key("silences", "", "x"), "x nobody")],
)
def test_a_ticket_becomes_a_pass_with_or_without_a_driver(redis_client, key, waiting):
    """The frame takes the controller's locks, runs it and releases the key."""
    world = CrashWorld(redis_client)
    owner = world.owner()
    context = owner.runtime
    controllers = {kind.name: CONTROLLER for kind in CONTROLLER.spec.kinds}
    context.driver_of = lambda _: SimpleNamespace(name="d", settings=world.settings)
    owner.queue.set_limits(key.lane, 1)
    owner.queue.add([key])
    run(context, controllers, key.text)
    assert context.metrics.tickets.labels(key.kind, "echoed")._value.get() == 1
    assert owner.queue.stats()[key.lane].running == 0
    assert owner.queue.stats()[key.lane].ticketed == 0


def test_no_kind_is_spelled_outside_of_its_controller():
    """Whatever must know a kind asks the catalogue (STR-2)."""
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
