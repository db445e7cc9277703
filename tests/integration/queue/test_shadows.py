"""From a prediction to a verdict in the report, with a real Redis and objects in memory."""

from __future__ import annotations

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli.shadow import gather, show
from workers.engine.shadow.judging import LOOK_SECONDS, Judge
from workers.engine.shadow.recording import Prediction
from workers.kube import paths
from workers.observability.metrics import Metrics
from workers.queue import shadows
from workers.queue.keys import Key
from workers.queue.names import NAMES
from workers.queue.shadows import Shadows

pytestmark = pytest.mark.integration

DRIVER = "d.example.org"
KEY = Key("attachments", DRIVER, "va")
VA = paths.ATTACHMENTS.path("va")
PV = paths.VOLUMES.path("pvc-1")
CALL = {"method": "Controller/ControllerPublishVolume", "request": {"secrets": "***stripped***"}}


class Past:
    """The API server's history of objects, as far as a test sets it."""

    def __init__(self):
        self.kept = {}

    def version(self, path):
        del path
        return "7"

    def states(self, path, version):
        assert version, "from where?"
        return self.kept.get(path, [])


class World:
    def __init__(self, redis_client):
        self.past = Past()
        self.api, self.now = MemoryApi(), 1_000_000.0
        self.shadows, self.metrics = Shadows(redis_client), Metrics()
        # The judge reads objects by their paths, as a client does.
        self.judge = Judge(
            self.shadows,
            self.api.kube,
            self.metrics,
            drivers=lambda: [DRIVER],
            now=lambda: self.now,
            settle_seconds=30.0,
            history=self.past,
        )
        self.va = self.api.add(paths.ATTACHMENTS, {"metadata": {"name": "va"}, "status": {}})

    def predict(self, path, base, wanted):
        self.judge.predict(KEY, Prediction(path, base, wanted, (CALL,), self.now))

    def attached(self, value=True):
        return {**self.va, "status": {"attached": value}}

    def counts(self):
        self.judge.step()
        return gather(self.shadows)[DRIVER]["counts"] if self.shadows.drivers() else {}


@pytest.fixture
def world(redis_client):
    return World(redis_client)


def test_it_waits_for_the_sidecar_and_agrees(world):
    """A prediction stays open until the sidecar has written, however long that takes."""
    world.predict(VA, world.va, world.attached())
    world.now += 3600
    assert world.counts() == {}
    world.api.change(paths.ATTACHMENTS, "va", {"status": {"attached": True}})
    assert world.counts() == {"agrees": 1}
    report = gather(world.shadows)[DRIVER]
    assert (report["agreement"], report["open"], report["differences"]) == (1.0, 0, [])
    assert world.counts() == {"agrees": 1}, "a verdict counts once"


def test_a_difference_is_told_after_the_sidecar_had_time(world):
    """A difference is reported only after the sidecar had time for several writes.

    The note names the field, the values and the calls.
    """
    world.predict(VA, world.va, world.attached())
    world.api.change(paths.ATTACHMENTS, "va", {"metadata": {"labels": {"a": "b"}}})
    assert world.counts() == {}
    world.now += 30
    assert world.counts() == {}
    world.now += 1
    assert world.counts() == {"differs": 1}
    report = gather(world.shadows)[DRIVER]
    (note,) = report["differences"]
    assert note["found"] == ["status.attached: True, -"]
    assert note["calls"] == [CALL]
    assert report["agreement"] == 0.0


def test_a_later_prediction_keeps_the_earlier_base(world):
    """The sidecar's first write causes a new prediction, but earlier parts are still compared."""
    marked = {**world.va, "metadata": {**world.va["metadata"], "finalizers": ["ours"]}}
    world.predict(VA, world.va, {**marked, "status": {"attached": True}})
    theirs = world.api.change(paths.ATTACHMENTS, "va", {"metadata": {"finalizers": ["theirs"]}})
    world.predict(VA, theirs, {**theirs, "metadata": marked["metadata"], "status": {}})
    world.counts()
    world.now += 31
    world.counts()
    (note,) = gather(world.shadows)[DRIVER]["differences"]
    assert note["found"] == ["metadata.finalizers[ours]: ours, -"]


def test_volume_that_nobody_foresaw(world):
    """A volume without a prediction is counted as unforeseen.

    A shadow that predicts nothing must not look like a shadow that agrees.
    """
    made = "2100-01-01T00:00:00Z"
    annotations = {"pv.kubernetes.io/provisioned-by": DRIVER}
    for name, whose in (("pvc-1", DRIVER), ("pvc-2", DRIVER), ("pvc-3", "other")):
        annotations = {"pv.kubernetes.io/provisioned-by": whose}
        metadata = {"name": name, "creationTimestamp": made, "annotations": annotations}
        world.api.add(paths.VOLUMES, {"metadata": metadata, "spec": {}})
    known = world.api.of(paths.VOLUMES, "pvc-1")
    world.predict(PV, None, known)
    world.now += LOOK_SECONDS
    assert world.counts() == {"agrees": 1, "unforeseen": 1}
    world.now += LOOK_SECONDS
    assert world.counts() == {"agrees": 1, "unforeseen": 1}


def test_volumes_of_before_and_of_other_drivers_are_nobody_s_to_foresee(world):
    """Volumes from before the shadow, and of drivers that it does not serve, need no prediction."""
    for name, whose, made in (("pvc-1", DRIVER, "1970"), ("pvc-2", "other", "2100")):
        annotations = {"pv.kubernetes.io/provisioned-by": whose}
        metadata = {"name": name, "creationTimestamp": f"{made}-01-01T00:00:00Z"}
        world.api.add(
            paths.VOLUMES, {"metadata": {**metadata, "annotations": annotations}, "spec": {}}
        )
    world.now += LOOK_SECONDS
    world.judge.step()
    assert world.shadows.drivers() == []


def test_open_predictions_have_a_bound(world, monkeypatch):
    """The number of open predictions is limited,
    because a sidecar that hangs must not fill Redis.
    """
    monkeypatch.setattr(shadows, "MOST_OPEN", 1)
    world.predict(VA, world.va, world.attached())
    world.predict(PV, None, {"metadata": {"name": "pvc-1"}, "spec": {}})
    report = gather(world.shadows)[DRIVER]
    assert (report["open"], report["counts"]) == (1, {"dropped": 1})


def test_metric_counts_as_the_report_does(world):
    """The metric csi_fleet_shadow_verdicts_total has the same count as the report."""
    world.predict(VA, world.va, world.attached())
    world.api.drop(paths.ATTACHMENTS, "va")
    assert world.counts() == {"gone": 1}
    name = "csi_fleet_shadow_verdicts_total"
    labels = {"driver_name": DRIVER, "verdict": "gone"}
    assert world.metrics.registry.get_sample_value(name, labels) == 1


def test_a_report_leaves_out_what_is_no_note_of_ours(world, redis_client):
    """Damaged notes are left out of the report, because
    the command that shows the report reads every field.
    """
    world.shadows.tell(DRIVER, VA, "differs", {"at": 1.0, "found": ["it"]})
    redis_client.lpush(NAMES["shadow_notes"].full + DRIVER, '{"at": "yesterday"}', "no JSON")
    assert [one["path"] for one in gather(world.shadows)[DRIVER]["differences"]] == [VA]


def volume(**changes):
    """Return a volume that a reconcile predicts for a claim."""
    claim = {"namespace": "shop", "name": "data", "uid": "c"}
    kind = {"apiVersion": "v1", "kind": "PersistentVolume"}
    return {**kind, "metadata": {"name": "pvc-1"}, "spec": {"claimRef": claim, **changes}}


def test_volume_that_lived_between_two_looks_is_judged(world):
    """A volume that was created and deleted between two
    checks is judged by the base of its deletion's prediction.
    """
    world.predict(PV, None, volume())
    live = world.api.add(paths.VOLUMES, volume(mountOptions=["ro"]))
    world.predict(PV, live, None)
    world.api.drop(paths.VOLUMES, "pvc-1")
    assert world.counts() == {"differs": 1, "agrees": 1}
    (note,) = gather(world.shadows)[DRIVER]["differences"]
    assert note["found"] == ["spec.mountOptions[ro]: -, ro"]


@pytest.mark.parametrize("is_there", [True, False])
def test_volume_of_a_claim_that_is_gone_waits_no_longer(world, is_there):
    """The prediction of a deleted claim is closed.

    If a driver always fails and a user deletes the claim, the record must not stay forever.
    """
    if is_there:
        world.api.add(paths.CLAIMS, {"metadata": {"namespace": "shop", "name": "data", "uid": "c"}})
    world.predict(PV, None, volume())
    world.now += LOOK_SECONDS
    assert world.counts() == {}, "it may be under way"
    world.now += LOOK_SECONDS
    assert world.counts() == ({} if is_there else {"gone": 1})


def test_report_says_what_is_open(world, capsys):
    """The report shows the open predictions, because
    a count alone does not show which object is open.
    """
    world.predict(PV, None, volume())
    found = gather(world.shadows)
    (record,) = found[DRIVER]["waiting"]
    assert (record["path"], record["base"], record["calls"]) == (PV, None, [CALL])
    show(found)
    line = f"{DRIVER} open {PV}: not created yet (Controller/ControllerPublishVolume)"
    assert line in capsys.readouterr().out


def test_a_created_object_counts_as_it_was_created(world):
    """A created object is compared as it was created.

    A user who changes it to Retain right afterwards causes no difference.
    """
    made = world.api.add(paths.VOLUMES, volume(mountOptions=["rw"]))
    world.past.kept[PV] = [made]
    world.predict(PV, None, volume(mountOptions=["rw"]))
    world.api.change(paths.VOLUMES, "pvc-1", {"spec": {"mountOptions": ["ro"]}})
    assert world.counts() == {"agrees": 1}


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_change_that_others_overwrote_counts(world, is_gone):
    """A change counts even if another client overwrote
    it before the next check, or deleted the object.
    """
    world.predict(VA, world.va, world.attached())
    world.past.kept[VA] = [
        world.api.change(paths.ATTACHMENTS, "va", {"status": {"attached": value}})
        for value in (True, False)
    ]
    if is_gone:
        world.api.drop(paths.ATTACHMENTS, "va")
    assert world.counts() == {"agrees": 1}
