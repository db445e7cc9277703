"""`csi-fleet pending` shows all waiting work by cause, with a real Redis."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from tests.support.waiting_world import DRIVERS, World
from workers.cli import pause, pending
from workers.config.flags import Command
from workers.errors import ConfigError
from workers.kube import paths
from workers.queue.keys import Key

MANY = 2000


@pytest.fixture
def world(redis_client, redis_server):
    return World(redis_client, redis_server.url)


def test_everything_is_in_the_group_of_its_cause(world, capsys):
    held = world.tools(Command.PAUSE, driver=DRIVERS[1], reason="array upgrade")
    assert pause.run(held) == 0
    capsys.readouterr()
    for number in range(5):
        world.queue.add([world.claim(f"held-{number}", "class1")])
    for number in range(3):
        key = world.claim(f"failing-{number}", "class2")
        world.fail(key, f"rpc error: code = Internal desc = disk {number} on fire")
    world.claim("nowhere", "missing9")
    world.claim("done", "class0", phase="Bound")
    found = {one["cause"]: one for one in world.groups(capsys)}
    assert {name: one["count"] for name, one in found.items()} == {
        "paused": 5,
        "driver-error": 3,
        "class-missing": 1,
    }
    assert found["paused"]["command"] == f"csi-fleet resume --driver={DRIVERS[1]}"
    assert found["paused"]["driver"] == DRIVERS[1]
    assert "array upgrade" in found["paused"]["text"]
    assert found["driver-error"]["move"] == "the driver's operator"
    assert found["driver-error"]["command"] == "csi-fleet explain pvc shop/failing-0"
    assert found["class-missing"]["class"] == "missing9"
    assert found["class-missing"]["oldest"] == "2026-01-01T00:00:00.000Z"
    age = time.time() - datetime.fromisoformat(found["class-missing"]["oldest"]).timestamp()
    assert abs(age - found["class-missing"]["oldest_seconds"]) < 60
    assert found["class-missing"]["examples"] == ["pvc shop/nowhere"]


def test_a_namespace_a_driver_and_all(world, capsys):
    world.claim("a", "missing", namespace="one")
    world.claim("b", "missing", namespace="two")
    world.claim("c", "class0", namespace="two")
    count = lambda **tool: sum(one["count"] for one in world.groups(capsys, **tool))  # noqa: E731
    assert count() == count(all_namespaces=True) == 3
    assert count(namespace="one") == 1
    assert count(namespace="two") == 2
    assert count(driver=DRIVERS[0]) == 1
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "quiet-shop"}})
    assert count(namespace="quiet-shop") == 0
    with pytest.raises(ConfigError, match='mean "quiet-shop"') as caught:
        pending.run(world.tools(namespace="quiet-shp"))
    assert caught.value.exit_code == 1
    with pytest.raises(ConfigError, match="-n NAMESPACE and -A cannot"):
        pending.run(world.tools(namespace="one", all_namespaces=True))
    with pytest.raises(ConfigError, match="is unknown"):
        pending.run(world.tools(driver="d0.csi.example.or"))


def test_work_on_an_object_that_is_gone_is_shown(world, capsys):
    key = Key("claims", DRIVERS[0], "shop/gone", "uid")
    world.fail(key, "no secret")
    (group,) = world.groups(capsys)
    assert (group["cause"], group["examples"]) == ("failed", ["pvc shop/gone"])
    assert "no secret" in group["text"]


def test_two_thousand_claims_are_a_page(world, capsys):
    keys = [world.claim(f"c{number}", f"class{number % 3}") for number in range(MANY)]
    for driver in DRIVERS:
        world.queue.set_limits(Key("claims", driver, "", "").lane, 4)
    world.queue.add(keys)
    groups = world.groups(capsys)
    assert sum(one["count"] for one in groups) == MANY
    assert {one["cause"] for one in groups} <= {"limit-reached", "queued", "no-free-worker"}
    pending.run(world.tools())
    text = capsys.readouterr().out
    assert text.startswith(f"waiting: {MANY}, for ")
    assert len(text.splitlines()) < 60
