"""adopt --verify: one claim after the hand-over, for every kind of class and every outcome."""

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
BEFORE, MADE_AT = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
BOUND_BY_KUBERNETES = "pv.kubernetes.io/bound-by-controller"


class Served(World):
    """A driver that provisions claims if `serves` is set, and deletes volumes if `deletes` is."""

    def __init__(self, *classes, **fields):
        super().__init__()
        self.serves, self.deletes, self.volumes, self.nodes = True, True, 0, []
        for name in classes:
            body = {"metadata": {"name": name}, "provisioner": DRIVER, **fields}
            self.api.add(paths.STORAGE_CLASSES, body)
        create = self.api.create

        def dated(path, body):
            if path.endswith("/persistentvolumeclaims"):
                body["metadata"]["creationTimestamp"] = MADE_AT
            return create(path, body)

        self.api.create = dated

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
        policy = storage_class.get("reclaimPolicy", "Delete")
        self.add_volume(f"pvc-{self.volumes}", policy, claim, made=MADE_AT)
        self.bound_to(f"pvc-{self.volumes}")

    def add_volume(
        self, name, policy, claim=None, *, made=BEFORE, size="1Gi", notes=(), phase=None
    ):
        spec = {"persistentVolumeReclaimPolicy": policy, "storageClassName": "gp3"}
        spec["capacity"] = {"storage": size}
        if claim:
            known = claim["metadata"]
            spec["claimRef"] = {one: known[one] for one in ("name", "namespace", "uid")}
        metadata = {
            "name": name,
            "creationTimestamp": made,
            "annotations": dict.fromkeys(notes, ""),
        }
        status = {"phase": phase or ("Bound" if claim else "Available")}
        item = {"metadata": metadata, "spec": spec, "status": status}
        return self.api.add(paths.VOLUMES, item)

    def bound_to(self, name):
        bound = {"spec": {"volumeName": name}, "status": {"phase": "Bound"}}
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
    """A failed attempt removes the annotation, and no scheduler sets it again."""
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
    "other": (["gp3"], ["--class=fast"], "--class=fast is not a StorageClass"),
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
    assert "its volume pvc-1 has not been deleted" in capsys.readouterr().out


def test_a_claim_of_somebody_else_is_not_touched(capsys):
    world = Served("gp3")
    world.api.add(paths.CLAIMS, {"metadata": {"name": CLAIM, "namespace": PLACE}, "spec": {}})
    assert world.run("adopt", "--verify") == 1
    assert "--verify did not create it" in capsys.readouterr().out
    assert world.claim() is not None


class Taking(Served):
    """A cluster that binds the claim to a volume that was not created for it."""

    def __init__(self, policy, how):
        super().__init__("gp3")
        self.policy, self.how = policy, how
        self.volume = None

    def bind(self, claim):
        if self.volume is None:
            made, notes = {"older": (BEFORE, ()), "free": (MADE_AT, (BOUND_BY_KUBERNETES,))}.get(
                self.how, (MADE_AT, ())
            )
            other = {"metadata": claim["metadata"] | {"uid": "another"}}
            owner = other if self.how == "another claim's" else claim
            self.volume = self.add_volume("data", self.policy, owner, made=made, notes=notes)
            self.bound_to("data")


@pytest.mark.parametrize("how", ["older", "free", "another claim's"])
@pytest.mark.parametrize("policy", ["Retain", "Delete", "Recycle"])
def test_a_volume_that_was_there_before_is_neither_changed_nor_deleted(policy, how, capsys):
    """Deleting the claim deletes the volume too, unless the volume's policy is Retain."""
    world = Taking(policy, how)
    for _ in ("the claim that this command made", "an earlier command's"):
        assert world.run("adopt", "--verify") == 1
        assert world.api.of(paths.VOLUMES, "data") == world.volume
        said = capsys.readouterr().out
        assert (
            "PersistentVolume data, which was not created for it. The volume is unchanged" in said
        )
        assert "kubectl patch pv data" in said
        assert (world.claim() is None) == (policy == "Retain")
        if policy == "Retain":
            break


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_an_earlier_volume_of_a_claim_that_was_left_is_not_touched(policy):
    """Any user who creates claims in that namespace can set the label on one."""
    world = Served("gp3")
    metadata = {"name": CLAIM, "namespace": PLACE, "labels": dict([adoptcentral.MADE])}
    metadata |= {"uid": "u", "creationTimestamp": MADE_AT}
    spec = {"storageClassName": "gp3", "volumeName": "data"}
    claim = world.api.add(paths.CLAIMS, {"metadata": metadata, "spec": spec})
    before = world.add_volume("data", policy, claim)
    assert world.run("adopt", "--verify") == 1
    assert world.api.of(paths.VOLUMES, "data") == before
    assert (world.claim() is None) == (policy == "Retain")


def test_a_volume_that_is_made_but_not_bound_yet_goes_with_the_claim(monkeypatch):
    world = Served("gp3", reclaimPolicy="Retain")
    world.bound_to = lambda name: world.api.change(
        paths.CLAIMS, CLAIM, {"metadata": {"annotations": {"made": name}}}, PLACE
    )
    world.bind_once = world.bind
    world.bind = lambda claim: world.volumes or world.bind_once(claim)
    monkeypatch.setattr(adoptcentral, "asked_in_pod", lambda *_: None)
    assert world.run("adopt", "--verify", "--wait=5s") == 1
    world.settle()
    assert world.left() == []


TAKEN = {
    "free": ({}, {}, True),
    "too small": ({"size": "900Mi"}, {}, False),
    "Released": ({"phase": "Released"}, {}, False),
    "free and delayed": ({}, {"volumeBindingMode": "WaitForFirstConsumer"}, False),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_free_volume_that_the_claim_would_take_refuses_the_whole_command(case, capsys):
    fields, of_class, is_refused = TAKEN[case]
    world = Served("gp3", **of_class)
    node(world, "n")
    volume = world.add_volume("data", "Retain", **fields)
    before = world.workload
    assert world.run("adopt", "--verify") == int(is_refused)
    assert ("PersistentVolume data is Available" in capsys.readouterr().out) == is_refused
    assert (world.workload == before) == is_refused
    assert world.api.of(paths.VOLUMES, "data") == volume


def test_a_volume_that_waits_for_the_claim_by_name_refuses_the_whole_command(capsys):
    world = Served("gp3", volumeBindingMode="WaitForFirstConsumer")
    node(world, "n")
    waiting = {"metadata": {"name": CLAIM, "namespace": PLACE, "uid": ""}}
    world.add_volume("data", "Delete", waiting, phase="Available")
    assert world.run("adopt", "--verify") == 1
    assert "PersistentVolume data is Available" in capsys.readouterr().out


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
