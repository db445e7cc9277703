"""adopt --verify: one claim after the hand-over, whatever the class is and wherever it ends."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.cli.test_adopt import DRIVER, Killed, World
from workers.cli import adopt, adoptcentral
from workers.cli.tools import Tools
from workers.config.load import parse
from workers.constants import ANN_SELECTED_NODE
from workers.errors import ConfigError
from workers.kube import paths

CLAIM = "csi-fleet-ebs-csi-aws-com-verify"
PLACE = "kube-system"


class Served(World):
    """A driver that serves claims; `serves` ends that, `keeps` the deletion of volumes."""

    def __init__(self, *classes, **fields):
        super().__init__()
        self.serves, self.deletes, self.volumes, self.nodes = True, True, 0, []
        for name in classes:
            body = {"metadata": {"name": name}, "provisioner": DRIVER, **fields}
            self.api.add(paths.STORAGE_CLASSES, body)

    def claim(self):
        return self.api.of(paths.CLAIMS, CLAIM, PLACE)

    def settle(self):
        super().settle()
        if getattr(self, "serves", False) and (claim := self.claim()):
            self.bind(claim)
        for path in [one for one in self.api.objects if "/persistentvolumes/" in one]:
            volume = self.api.objects[path]
            policy = volume["spec"]["persistentVolumeReclaimPolicy"]
            if self.claim() is None and policy == "Delete" and self.deletes:
                del self.api.objects[path]

    def bind(self, claim):
        storage_class = self.api.of(paths.STORAGE_CLASSES, claim["spec"]["storageClassName"])
        notes = claim["metadata"].get("annotations") or {}
        is_delayed = storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        if claim["spec"].get("volumeName") or (is_delayed and ANN_SELECTED_NODE not in notes):
            return
        self.volumes += 1
        self.nodes.append(notes.get(ANN_SELECTED_NODE))
        spec = {"persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete")}
        self.api.add(paths.VOLUMES, {"metadata": {"name": f"pvc-{self.volumes}"}, "spec": spec})
        bound = {"spec": {"volumeName": f"pvc-{self.volumes}"}, "status": {"phase": "Bound"}}
        self.api.change(paths.CLAIMS, CLAIM, bound, PLACE)

    def left(self):
        kinds = ("/persistentvolumes/", "/persistentvolumeclaims/")
        return [one for one in self.api.objects if any(kind in one for kind in kinds)]


def node(world, name, *, ready=True, closed=False):
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    spec = {"unschedulable": True} if closed else {}
    world.api.add(paths.NODES, {"metadata": {"name": name}, "spec": spec, "status": status})
    drivers = {"drivers": [{"name": DRIVER}]}
    world.api.add(paths.CSI_NODES, {"metadata": {"name": name}, "spec": drivers})


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("command", ["adopt", "release"])
def test_a_claim_is_bound_and_nothing_is_left_of_it(command, policy, capsys):
    world = Served("gp3", reclaimPolicy=policy)
    if command == "release":
        world.run("adopt")
    assert world.run(command, "--verify") == 0
    assert world.volumes == 1
    assert world.left() == []
    assert "class gp3 was Bound" in capsys.readouterr().out


def test_a_class_that_waits_for_a_pod_gets_a_node_that_takes_pods():
    world = Served("gp3", volumeBindingMode="WaitForFirstConsumer")
    node(world, "a", ready=False)
    node(world, "b", closed=True)
    world.api.add(paths.CSI_NODES, {"metadata": {"name": "c"}, "spec": {"drivers": []}})
    assert world.run("adopt", "--verify", "--dry-run") == 1, "no node has the driver"
    node(world, "d")
    assert world.run("adopt", "--verify") == 0
    assert world.nodes == ["d"]


def test_a_node_that_the_driver_refused_is_named_again():
    """A failed attempt removes the annotation, and there is no scheduler that sets it."""
    world = Served("gp3", volumeBindingMode="WaitForFirstConsumer")
    node(world, "d")
    refused = []

    def sleep(seconds):
        claim = world.claim()
        world.serves = bool(refused)
        if claim and not refused:
            refused.append(claim["metadata"]["annotations"].pop(ANN_SELECTED_NODE))
            world.api.add(paths.CLAIMS, claim)
        world.sleep(seconds)

    assert world.run("adopt", "--verify", sleep=sleep) == 0
    assert refused == world.nodes == ["d"]


REFUSED = {
    "none": ([], [], "No StorageClass"),
    "several": (["gp2", "gp3"], [], "gp2, gp3"),
    "other": (["gp3"], ["--class=fast"], "--class=fast is no StorageClass"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_class_that_cannot_be_chosen_refuses_the_whole_command(case, capsys):
    classes, words, says = REFUSED[case]
    world = Served(*classes)
    before = world.workload
    assert world.run("adopt", "--verify", *words) == 1
    assert says in capsys.readouterr().out
    assert world.workload == before


def test_a_named_class_is_taken_of_several():
    world = Served("gp2", "gp3")
    assert world.run("adopt", "--verify", "--class=gp3") == 0
    (made,) = [one for one in world.api.requests if one.verb == "create" and CLAIM in one.path]
    assert made.body["spec"]["storageClassName"] == "gp3"


def test_a_claim_that_is_not_bound_is_told_with_its_cause(monkeypatch, capsys):
    world = Served("gp3")
    world.serves = False
    asked = []

    def answer(_, namespace, *command):
        asked.append((namespace, *command))
        return {"cause": "driver-lost", "text": "No worker is connected.", "advice": "Look there."}

    monkeypatch.setattr(adoptcentral, "asked_in_pod", answer)
    assert world.run("adopt", "--verify", "--wait=5s") == 1
    said = capsys.readouterr().out
    assert asked == [(PLACE, "explain", "pvc", f"{PLACE}/{CLAIM}", "-o", "json")]
    assert f"the claim {PLACE}/{CLAIM} was not Bound" in said
    assert "Cause (driver-lost): No worker is connected. Look there." in said
    assert f"csi-fleet release {DRIVER}" in said
    assert world.left() == []
    world.serves = True
    assert world.run("adopt", "--verify") == 0, "the driver is still adopted"


def test_without_a_pod_to_ask_the_newest_event_is_told(monkeypatch, capsys):
    world = Served("gp3")
    world.serves = False
    monkeypatch.setattr(adoptcentral, "asked_in_pod", lambda *_: None)
    for second in (1, 2):
        event = {"metadata": {"name": f"e{second}", "namespace": PLACE}, "reason": "Failed"}
        event |= {"message": f"said {second}", "lastTimestamp": f"2026-01-01T00:00:0{second}Z"}
        world.api.add(paths.EVENTS, event)
    assert world.run("adopt", "--verify", "--wait=5s") == 1
    assert "Newest event (Failed): said 2." in capsys.readouterr().out


def test_a_volume_that_stays_is_told(monkeypatch, capsys):
    world = Served("gp3")
    world.deletes = False
    monkeypatch.setattr(adoptcentral, "asked_in_pod", lambda *_: None)
    assert world.run("adopt", "--verify", "--wait=5s") == 1
    assert "its volume pvc-1 was not deleted" in capsys.readouterr().out


def test_a_claim_of_somebody_else_is_not_touched(capsys):
    world = Served("gp3")
    world.api.add(paths.CLAIMS, {"metadata": {"name": CLAIM, "namespace": PLACE}, "spec": {}})
    assert world.run("adopt", "--verify") == 1
    assert "--verify did not make" in capsys.readouterr().out
    assert world.claim() is not None


def test_a_command_that_dies_at_any_request_leaves_nothing_after_the_next():
    for dies_at in itertools.count(1):
        world = Served("gp3", reclaimPolicy="Retain")
        world.run("adopt")
        world.count, world.kills_at = 0, dies_at
        try:
            code = world.run("adopt", "--verify")
        except Killed:
            world.kills_at = None
            assert world.run("adopt", "--verify") == 0
            assert world.left() == []
            continue
        assert code == 0
        assert dies_at > 5
        break


def test_a_class_without_verify_is_a_mistake():
    with pytest.raises(ConfigError, match="--verify"):
        adopt.run(Tools(parse("adopt", [DRIVER, "--class=gp3"], {})))
