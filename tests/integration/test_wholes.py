"""`csi-fleet explain driver|class|namespace NAME` and of deleted objects, with a real Redis."""

from __future__ import annotations

import json

import pytest

from tests.support.taking import take
from tests.support.waiting_world import DRIVERS, World
from workers.cli import explain, pause
from workers.config.flags import Command
from workers.errors import ConfigError
from workers.kube import paths
from workers.observability import trail
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, lane_name
from workers.queue.registry import DriverRegistry

NOTHING = Key("claims", DRIVERS[0], "shop/gone", "uid-of-gone")


@pytest.fixture
def world(redis_client, redis_server):
    return World(redis_client, redis_server.url)


@pytest.fixture
def explained(world, capsys):
    """Return a function that returns an object's JSON explanation and the exit code."""

    def ask(*words):
        tools = world.tools(Command.EXPLAIN, words, output="json")
        code = explain.run(tools)
        found = json.loads(capsys.readouterr().out)
        assert found["kind"] == "Explanation"
        return found, code

    return ask


def test_a_driver_is_explained_by_what_most_of_it_waits_for(world, explained):
    for number in range(3):
        error = "rpc error: code = Internal desc = on fire"
        world.fail(world.claim(f"failing-{number}", "class2"), error)
    world.claim("of-another-driver", "class1")
    found, code = explained("driver", DRIVERS[2])
    assert (found["object"], found["name"], code) == ("driver", DRIVERS[2], 0)
    assert found["cause"] == "driver-error"
    assert found["text"].startswith(
        "Waiting for this reason: 3 (pvc shop/failing-0): The driver returned an error"
    )
    assert found["pending"]["waiting"] == 3
    assert "The driver's workers run attacher, provisioner." in found["facts"]
    assert "Storage classes that name it: class2." in found["facts"]
    assert any(fact.endswith("3 failing.") for fact in found["facts"])


def test_a_driver_for_which_nothing_waits(explained):
    found, code = explained("driver", DRIVERS[0])
    assert (found["cause"], found["problem"], code) == ("nothing-to-do", False, 0)


def test_what_holds_all_of_a_driver_comes_first(world, explained, capsys):
    world.fail(world.claim("failing", "class1"), "rpc error: code = Internal desc = x")
    held = world.tools(Command.PAUSE, driver=DRIVERS[1], reason="array upgrade")
    assert pause.run(held) == 0
    capsys.readouterr()
    for words in (("driver", DRIVERS[1]), ("class", "class1")):
        found, _ = explained(*words)
        assert found["cause"] == "paused", found
        assert found["advice"] == f"csi-fleet resume --driver={DRIVERS[1]}"
        assert found["pending"]["waiting"] == 1


def test_a_lease_of_one_controller_does_not_hold_the_driver(world, explained):
    lanes = [lane_name("attachments", DRIVERS[0]), lane_name("detachments", DRIVERS[0])]
    for lane in lanes:
        world.queue.pause(lane, "held by csi-attacher", seconds=100, kind="lease")
    assert explained("driver", DRIVERS[0])[0]["cause"] == "nothing-to-do"


def test_a_driver_that_nobody_serves(world, explained):
    world.api.add(
        paths.STORAGE_CLASSES, {"metadata": {"name": "old"}, "provisioner": "old.example.org"}
    )
    world.claim("data", "old")
    for words, cause in (
        (("driver", "old.example.org"), "driver-not-registered"),
        (("class", "old"), "unknown-provisioner"),
    ):
        found, code = explained(*words)
        assert found["cause"] == cause
        assert (found["pending"]["waiting"], code) == (1, 0)


def test_names_that_nobody_knows(world, explained):
    with pytest.raises(ConfigError, match=r'is unknown.*Did you mean "d0.csi.example.org"') as no:
        explain.run(world.tools(Command.EXPLAIN, ("driver", "d0.csi.example.or")))
    assert no.value.exit_code == 1
    found, code = explained("class", "clas0")
    assert (found["cause"], code) == ("class-missing", 1)
    assert 'Did you mean "class0"?' in found["text"]
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "shop"}})
    found, code = explained("namespace", "shopp")
    assert (found["cause"], code) == ("not-found", 1)
    assert 'Did you mean "shop"?' in found["text"]
    for word in ("driver", "class", "namespace"):
        with pytest.raises(ConfigError, match=f"the name of the {word} is missing"):
            explain.run(world.tools(Command.EXPLAIN, (word,)))


def test_a_paused_class_and_one_that_does_not_provision(world, explained, capsys):
    world.api.add(
        paths.STORAGE_CLASSES,
        {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"},
    )
    assert explained("sc", "local")[0]["cause"] == "static-class"
    assert pause.run(world.tools(Command.PAUSE, storage_class="class0", reason="full")) == 0
    capsys.readouterr()
    found, _ = explained("class/class0")
    assert (found["cause"], found["advice"]) == (
        "class-paused",
        "csi-fleet resume --class=class0",
    )


def test_a_class_is_explained_by_its_own_claims(world, explained):
    world.api.add(paths.STORAGE_CLASSES, {"metadata": {"name": "other"}, "provisioner": DRIVERS[0]})
    world.claim("of-other", "other")
    assert explained("class", "class0")[0]["pending"]["waiting"] == 0
    assert explained("class", "other")[0]["pending"]["waiting"] == 1


def test_a_namespace(world, explained):
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "shop"}, "status": {"phase": "Active"}})
    world.claim("a", "missing")
    world.claim("b", "missing", namespace="other")
    found, code = explained("ns", "shop")
    assert (found["cause"], found["pending"]["waiting"], code) == ("class-missing", 1, 0)


def test_a_namespace_that_cannot_go(world, explained):
    remaining = {
        "type": "NamespaceContentRemaining",
        "status": "True",
        "message": "persistentvolumeclaims. has 1 resource instances",
    }
    status = {"phase": "Terminating", "conditions": [remaining]}
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "shop"}, "status": status})
    found, code = explained("namespace", "shop")
    assert (found["cause"], code) == ("namespace-terminating", 0)
    assert "has 1 resource instances" in found["text"]


def test_work_of_a_namespace_that_is_gone(world, explained):
    world.fail(NOTHING, 'secrets "key" not found')
    found, code = explained("namespace", "shop")
    assert (found["cause"], code) == ("failed", 0)
    assert 'secrets "key" not found' in found["text"]


def test_a_deleted_claim_that_is_worked_on(world, explained):
    """The explanation of a deleted claim shows its history,
    its volume and the missing secret, but no other claim.
    """
    intent = {"key": NOTHING.text, "volume": "pvc-1234", "stage": "calling"}
    world.fail(NOTHING, 'error getting secret key in namespace shop: secrets "key" not found')
    IntentStore(world.client, driver=DRIVERS[0]).begin("pvc-uid-of-gone", intent)
    world.claim("gone", "class0", namespace="elsewhere")
    found, code = explained("pvc", "shop/gone")
    assert (found["cause"], found["move"], code) == (
        "deleted-failing",
        "the cluster's administrator",
        0,
    )
    assert (
        "pvc shop/gone was deleted, but csi-fleet is still working on volume pvc-1234."
        in (found["text"])
    )
    assert 'secrets "key" not found' in found["text"]
    assert "elsewhere" not in found["text"]
    assert "create that object again" in found["advice"]
    assert any("not found" in one["text"] for one in found["timeline"])
    assert found["queue"]["key"] == NOTHING.text


def test_a_deleted_claim_whose_attempt_runs_waits_or_is_held(world, explained, capsys):
    world.queue.set_limits(NOTHING.lane, 10)
    world.queue.add([NOTHING])
    lease = take(world.queue, NOTHING)
    assert explained("pvc", "shop/gone")[0]["cause"] == "running"
    with trail.collect():
        trail.note("error", "rpc error: code = Internal desc = x")
        world.queue.fail(lease, base_seconds=100, cap_seconds=100)
    assert explained("pvc", "shop/gone")[0]["cause"] == "deleted-failing"
    assert pause.run(world.tools(Command.PAUSE, driver=DRIVERS[0], reason="x")) == 0
    capsys.readouterr()
    assert explained("pvc", "shop/gone")[0]["cause"] == "paused"


def test_a_deleted_claim_that_nobody_can_end(world, explained):
    intent = {
        "key": NOTHING.text,
        "volume": "pvc-1234",
        "stage": "stranded",
        "problem": 'secrets "key" not found',
    }
    IntentStore(world.client, driver=DRIVERS[0]).begin("pvc-uid-of-gone", intent)
    found, _ = explained("pvc", "shop/gone")
    assert found["cause"] == "stranded"
    assert "csi-fleet audit --forget=pvc-1234" in found["advice"]


def test_a_deleted_claim_of_a_driver_without_a_worker(world, explained):
    world.fail(NOTHING, "x")
    DriverRegistry(world.client).register(DRIVERS[0], {"name": DRIVERS[0]}, ttl_seconds=0.001)
    found, _ = explained("pvc", "shop/gone")
    assert found["cause"] in {"driver-not-registered", "not-served"}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        pytest.param(NOTHING, ("pvc", "shop/gone"), id="a claim"),
        pytest.param(Key("volumes", DRIVERS[0], "pvc-1", "@shop"), ("pv", "pvc-1"), id="a volume"),
        pytest.param(Key("attachments", DRIVERS[0], "csi-1"), ("va", "csi-1"), id="an attachment"),
    ],
)
def test_what_ended_within_the_hour(world, explained, key, words):
    world.queue.set_limits(key.lane, 10)
    world.queue.add([key])
    lease = take(world.queue, key)
    with trail.collect():
        trail.note("end", "deleted")
        world.queue.done(lease)
    found, code = explained(*words)
    assert (found["cause"], found["problem"], code) == ("gone", False, 0)
    assert found["timeline"]


def test_a_name_that_is_a_pattern_finds_nothing(world, explained):
    world.fail(NOTHING, "x")
    for name in ("shop/*", "shop/go?e", "shop/[g]one", "*/gone"):
        assert explained("pvc", name)[0]["cause"] == "not-found", name
