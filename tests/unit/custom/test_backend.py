"""A plug-in behind the engine, in memory: cases that a real API server cannot show quickly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_cluster import World
from workers.config.settings import NodeSettings, Settings
from workers.constants import ANN_SELECTED_NODE, FINALIZER_VOLUME
from workers.controllers.provisioner.claims import claim_volume
from workers.controllers.provisioner.controller import CONTROLLER
from workers.custom import (
    INVALID_ARGUMENT,
    Ignored,
    Options,
    ProvisionError,
    ProvisionResult,
    State,
    VolumeStore,
)
from workers.custom.driver import custom_driver
from workers.engine.outcome import Action
from workers.errors import ConfigError
from workers.kube.errors import ForbiddenError
from workers.queue.copies import NAME_PREFIX
from workers.queue.keys import claim_key

NAME = "test-driver"  # the driver of the fake cluster
FORBIDDEN = ForbiddenError(403, "Forbidden", "no")


class Plugin:
    """A plug-in whose answers come from a list; the last one is repeated."""

    name = NAME
    options = Options()

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.answers = list(answers) or ["ok"]
        self.delete_answers: list[Any] = ["ok"]
        self.seen: list[Any] = []
        self.deleted: list[str] = []
        self.options = Options(**options)

    def provision(self, options):
        self.seen.append(options)
        answer = _next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        if answer != "ok":
            return answer
        return result(options.pv_name)

    def delete(self, volume):
        self.deleted.append(volume["metadata"]["name"])
        answer = _next(self.delete_answers)
        if isinstance(answer, Exception):
            raise answer


def _next(answers):
    return answers.pop(0) if len(answers) > 1 else answers[0]


def result(name, **metadata):
    spec = {
        "capacity": {"storage": "1Ki"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Delete",
        "hostPath": {"path": f"/data/{name}"},
    }
    return ProvisionResult({"metadata": {"name": name, **metadata}, "spec": spec})


def world_of(plugin, **class_fields):
    world = World()
    world.driver = custom_driver(plugin, Settings())
    world.add_class(**class_fields)
    return world


def test_the_options_are_copies_with_the_name_and_the_node():
    """L-100, C-018: changes that the plug-in makes to them have no effect."""
    plugin = Plugin()
    world = world_of(plugin, parameters={"type": "fast"})
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})

    def provision(options):
        plugin.seen.append(options)
        options.claim["metadata"]["uid"] = "changed"
        options.storage_class["provisioner"] = "changed"
        return result(options.pv_name)

    plugin.provision = provision
    world.claim_pass(claim)
    (options,) = plugin.seen
    assert (options.pv_name, options.selected_node) == ("pvc-u1", "n1")
    assert (options.parameters, options.requested_size) == ({"type": "fast"}, "1Ki")
    volume = world.volumes()["pvc-u1"]
    assert volume["spec"]["claimRef"]["uid"] == "u1"
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == NAME
    assert (volume["kind"], volume["spec"]["storageClassName"]) == ("PersistentVolume", "fast")


@pytest.mark.parametrize("has_method", [None, False, True], ids=["no method", "says no", "yes"])
@pytest.mark.parametrize("mode", [None, "Filesystem", "Block"])
def test_c005_block_support(has_method, mode):
    plugin = Plugin()
    if has_method is not None:
        plugin.supports_block = lambda: has_method
    world = world_of(plugin)
    claim = world.add_claim(**({"volumeMode": mode} if mode else {}))
    outcome = world.claim_pass(claim)
    is_refused = mode == "Block" and not has_method
    assert outcome.action is Action.DONE
    assert bool(plugin.seen) is not is_refused
    assert ("ProvisioningFailed" in world.events.reasons()) is is_refused


STATES = [
    pytest.param(
        ProvisionError("disk full"), "disk full", Action.RETRY, "failed", id="C-025 final"
    ),
    pytest.param(
        ProvisionError("still at it", State.BACKGROUND), "still at it", Action.RETRY, "background",
        id="C-026 background",
    ),
    pytest.param(RuntimeError("oops"), "RuntimeError: oops", Action.RETRY, "background",
                 id="L-101 a bare exception is background"),
    pytest.param("nonsense", "provision returned str, not ProvisionResult", Action.RETRY,
                 "background", id="no result"),
    pytest.param(
        result("other"),
        "provision returned a volume named 'other'; its name must be options.pv_name, 'pvc-u1'",
        Action.RETRY, "background", id="wrong name",
    ),
    pytest.param(Ignored("not mine"), None, Action.DONE, None, id="C-023 ignored"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "event", "action", "stage"), STATES)
def test_every_end_of_provision(answer, event, action, stage):
    """L-050, L-101: each answer has its event, its outcome and its recorded stage."""
    world = world_of(Plugin(answer))
    outcome = world.claim_pass(world.add_claim())
    assert outcome.action is action
    assert world.events.warnings() == ([event] if event else [])
    record = world.intents.intents.get("pvc-u1")
    assert (record["stage"] if record else None) == stage
    assert world.volumes() == {}


def test_c027_no_change_leaves_what_was_remembered():
    plugin = Plugin(
        ProvisionError("x", State.BACKGROUND), ProvisionError("y", State.NO_CHANGE), "ok"
    )
    world = world_of(plugin)
    claim = world.add_claim()
    world.claim_pass(claim)
    world.claim_pass(claim)
    assert world.intents.intents["pvc-u1"]["stage"] in {"background", "calling"}
    world.drop_claim()
    world.claim_pass(claim)
    assert set(world.volumes()) == {"pvc-u1"}


def test_c044_invalid_argument_waits_the_longest_interval():
    world = world_of(Plugin(ProvisionError("no such type", code=INVALID_ARGUMENT)))
    claim = world.add_claim()
    outcome = world.claim_pass(claim)
    assert outcome.delay_seconds == Settings().provision.retry_interval_max_seconds
    world.claim_pass(claim)
    assert len(world.driver.backend.provisioner.seen) == 1


@pytest.mark.parametrize("add_finalizer", [False, True])
def test_c021_c022_finalizer_only_when_asked_and_once(add_finalizer):
    """The plug-in's own finalizers stay."""
    plugin = Plugin(result("pvc-u1", finalizers=["example.com/x"]), add_finalizer=add_finalizer)
    world = world_of(plugin)
    world.claim_pass(world.add_claim())
    found = world.volumes()["pvc-u1"]["metadata"]["finalizers"]
    assert found == ["example.com/x", *([FINALIZER_VOLUME] * add_finalizer)]


def test_thresholds_hold_for_failures_but_not_for_saving():
    """L-016, G8: saving a volume that exists is retried without limit."""
    plugin = Plugin(failed_provision_threshold=3, failed_delete_threshold=5)
    world = world_of(plugin)
    backend = world.driver.backend
    assert [backend.threshold(kind) for kind in ("claims", "volumes", "other")] == [3, 5, 0]

    def given_up_after(name, uid):
        world.add_claim(name, uid)
        key = claim_key(NAME, "default", name, uid)
        lease = world.lease(key, claim_volume(world.driver, key))
        return CONTROLLER.sync(world.runtime, world.driver, key, lease).give_up_after

    world.kube.fail["create_volume"] = [FORBIDDEN]
    assert given_up_after("one", "u1") == 0
    plugin.answers = [ProvisionError("x")]
    assert given_up_after("two", "u2") == 3


def backoff_world(**fields):
    plugin = Plugin(
        volume_store=VolumeStore.BACKOFF, save_attempts=3, save_interval_seconds=0.0, **fields
    )
    return plugin, world_of(plugin)


def test_c054_backoff_store_deletes_after_its_tries():
    """L-081: the attempts count no failure and cause one event; then the claim starts over."""
    plugin, world = backoff_world()
    claim = world.add_claim()
    world.kube.fail["create_volume"] = [FORBIDDEN] * 3
    outcomes = [world.claim_pass(claim) for _ in range(3)]
    assert [one.action for one in outcomes] == [Action.WAIT, Action.WAIT, Action.RETRY]
    assert plugin.deleted == ["pvc-u1"]
    assert world.events.warnings() == [
        "Error creating provisioned PV object for claim default/data: no. Deleting the volume."
    ]
    assert (world.intents.intents, world.intents.unsaved) == ({}, {})
    world.claim_pass(claim)
    assert (len(plugin.seen), set(world.volumes())) == (2, {"pvc-u1"})


def test_c055_backoff_store_gives_up_the_deletion_too():
    """An Ignored counts as a failure here."""
    plugin, world = backoff_world()
    plugin.delete_answers = [ProvisionError("cannot"), RuntimeError("cannot"), Ignored("not mine")]
    claim = world.add_claim()
    world.kube.fail["create_volume"] = [FORBIDDEN] * 3
    outcomes = [world.claim_pass(claim) for _ in range(5)]
    assert [one.action for one in outcomes[2:]] == [Action.WAIT, Action.WAIT, Action.RETRY]
    assert world.events.reasons()[-2:] == ["ProvisioningFailed", "ProvisioningCleanupFailed"]
    assert world.events.warnings()[-1] == (
        "Error cleaning provisioned volume for claim default/data: not mine. "
        "Please delete manually."
    )


def test_backoff_store_waits_for_its_interval_and_knows_its_own_volume():
    plugin, world = backoff_world()
    claim = world.add_claim()
    world.kube.fail["create_volume"] = [FORBIDDEN, FORBIDDEN]
    world.claim_pass(claim)
    record = world.intents.intents["pvc-u1"]
    record["store"]["due"][0] += 3600
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.delay_seconds > 3000) == (Action.WAIT, True)
    record["store"]["due"] = 0
    world.claim_pass(claim)  # refused once more
    world.kube.add("persistentvolumes", world.intents.unsaved["pvc-u1"])
    assert world.claim_pass(claim).reason == "provisioned"
    assert (len(plugin.seen), plugin.deleted) == (1, [])


def released(world, **metadata):
    volume = result("pvc-u1", **metadata).volume
    volume["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": NAME}
    return world.kube.add("persistentvolumes", {**volume, "status": {"phase": "Released"}})


def test_c076_the_guard_is_asked():
    plugin = Plugin()
    plugin.should_delete = lambda volume: volume["metadata"].get("labels") is not None
    world = world_of(plugin)
    released(world)
    assert world.volume_pass("pvc-u1").reason == "nothing to do"
    released(world, labels={})
    assert world.volume_pass("pvc-u1").reason == "deleted"
    assert plugin.deleted == ["pvc-u1"]


@pytest.mark.parametrize(
    ("error", "reason", "events"),
    [
        pytest.param(Ignored("not mine"), "not mine", [], id="C-077 ignored"),
        pytest.param(ProvisionError("stuck"), "delete failed", ["stuck"], id="C-063 failed"),
        pytest.param(KeyError("nfs"), "delete failed", ["KeyError: 'nfs'"], id="bare exception"),
    ],
)
def test_a_deletion_that_does_not_work(error, reason, events):
    plugin = Plugin()
    plugin.delete_answers = [error]
    world = world_of(plugin)
    released(world)
    assert world.volume_pass("pvc-u1").reason == reason
    assert world.events.warnings() == events
    assert set(world.volumes()) == {"pvc-u1"}


def test_a_slow_call_is_remembered_outside_of_redis(monkeypatch):
    """M-010: this happens after two seconds, or at once in this test."""
    monkeypatch.setattr("workers.custom.attempt.SLOW_AFTER_SECONDS", 0.0)
    plugin = Plugin()
    world = world_of(plugin)

    def provision(options):
        name = f"{NAME_PREFIX}pvc-u1"
        seen.wait(5)
        assert name in world.kube.kind("configmaps")
        return result(options.pv_name)

    import threading  # noqa: PLC0415 - only here

    seen = threading.Event()
    apply = world.kube.apply_config_map

    def applied(body):
        found = apply(body)
        seen.set()
        return found

    world.kube.apply_config_map = applied
    plugin.provision = provision
    assert world.claim_pass(world.add_claim()).reason == "provisioned"
    assert world.kube.kind("configmaps") == {}


def test_additional_names_are_answered_to():
    """C-006, L-026: the PV carries the class's name."""
    plugin = Plugin(additional_names=("old.example.com/x",))
    world = world_of(plugin, provisioner="old.example.com/x")
    claim = world.add_claim(
        annotations={"volume.kubernetes.io/storage-provisioner": "old.example.com/x"}
    )
    world.claim_pass(claim)
    annotations = world.volumes()["pvc-u1"]["metadata"]["annotations"]
    assert annotations["pv.kubernetes.io/provisioned-by"] == "old.example.com/x"
    record = world.driver.record()
    assert record["additional_names"] == ["old.example.com/x"]
    assert (record["add_finalizer"], record["custom"]) == (False, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"name": ""}, "has no name", id="name"),
        pytest.param({"delete": None}, "no method delete", id="method"),
        pytest.param({"options": {}}, "not an instance of workers.custom.Options", id="options"),
        pytest.param({"options": Options(save_attempts=0)}, "save_attempts", id="attempts"),
    ],
)
def test_an_unusable_plugin_is_refused_at_start(change, words):
    plugin = Plugin()
    for name, value in change.items():
        setattr(plugin, name, value)
    with pytest.raises(ConfigError, match=words):
        custom_driver(plugin, Settings())


def test_a_plugin_does_not_run_per_node():
    with pytest.raises(ConfigError, match="node-deployment"):
        custom_driver(Plugin(), Settings(node=NodeSettings(enabled=True, node_name="n")))


def test_there_is_no_socket_to_lose():
    driver = custom_driver(Plugin(), Settings())
    assert (driver.client.is_connected, driver.client.connection_losses) == (True, 0)
    driver.client.close()
    assert not driver.publishes_capacity
