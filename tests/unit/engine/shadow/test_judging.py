"""When a prediction is judged, against which state of the object, and when it is abandoned."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tests.integration.queue.test_shadows import DRIVER, KEY, PV, VA, World, volume
from workers.cli.shadow import gather
from workers.engine.shadow import judging
from workers.engine.shadow.judging import LOOK_SECONDS
from workers.engine.shadow.recording import Prediction
from workers.kube import paths

ANNOTATIONS = {"pv.kubernetes.io/provisioned-by": DRIVER}
# The judge of `World` starts at 1,000,000 s.
STARTED = "1970-01-12T13:46:40Z"
LATER = "1970-01-12T13:46:41Z"


@pytest.fixture
def world(redis_client):
    return World(redis_client)


def verdicts(world):
    """Return the counts without making the judge run again."""
    return gather(world.shadows)[DRIVER]["counts"] if world.shadows.drivers() else {}


def make(world, name, created=LATER):
    metadata = {"name": name, "annotations": ANNOTATIONS, "creationTimestamp": created}
    world.api.add(paths.VOLUMES, {"metadata": metadata, "spec": {}})


def label(world, text):
    """Write a label that no prediction contains, as another client would."""
    return world.api.change(paths.ATTACHMENTS, "va", {"metadata": {"labels": {"a": text}}})


def test_volumes_that_nobody_foresaw_are_looked_for_now_and_then(world):
    """Not at once: the reconcile that predicts one may still run. The metric counts each too."""
    make(world, "one")
    assert world.counts() == {}
    world.now += LOOK_SECONDS
    assert world.counts() == {"unforeseen": 1}
    make(world, "two")
    world.now += LOOK_SECONDS / 2
    assert world.counts() == {"unforeseen": 1}
    world.now += LOOK_SECONDS / 2
    assert world.counts() == {"unforeseen": 2}
    labels = {"driver_name": DRIVER, "verdict": "unforeseen"}
    sample = world.metrics.registry.get_sample_value("csi_fleet_shadow_verdicts_total", labels)
    assert sample == 2


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize(
    ("created", "counts"), [(STARTED, {}), (LATER, {"unforeseen": 1}), (None, {})]
)
def test_what_was_there_at_the_start_was_foreseen_by_nobody(
    redis_client, monkeypatch, zone, created, counts
):
    """A volume created in the starting second counts as older; times are UTC in any time zone."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        world = World(redis_client)
        make(world, "one", created)
        world.now += LOOK_SECONDS
        assert world.counts() == counts
    finally:
        monkeypatch.undo()
        time.tzset()


def test_summer_time_makes_nothing_younger(monkeypatch):
    """Times are read as UTC even while the machine's time zone has daylight saving time."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
        made = {"creationTimestamp": "2026-07-01T12:00:00Z"}
        assert judging._seconds(made) == noon.timestamp()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_object_that_nobody_touched_waits_for_ever(world):
    """Such a prediction stays open however often it is judged."""
    world.predict(VA, world.va, world.attached())
    for _ in range(3):
        assert world.counts() == {}
        world.now += 31


def test_each_version_s_past_is_read_once(world):
    """Reading it blocks for a second, so it happens only once per resource version."""
    asked, states = [], world.past.states
    world.past.states = lambda *what: asked.append(what) or states(*what)
    world.predict(VA, world.va, world.attached())
    world.counts()
    assert asked == [], "nothing changed"
    for number in (1, 2):
        label(world, str(number))
        world.counts()
        world.counts()
        assert len(asked) == number
    assert asked[0] == (VA, world.va["metadata"]["resourceVersion"])


def test_a_change_counts_whichever_of_its_states_is_the_right_one(world):
    """The matching state may be neither the first one nor the current one."""
    world.predict(VA, world.va, world.attached())
    world.past.kept[VA] = [
        label(world, "x"),
        world.api.change(paths.ATTACHMENTS, "va", {"status": {"attached": True}}),
        world.api.change(paths.ATTACHMENTS, "va", {"status": {"attached": False}}),
    ]
    assert world.counts() == {"agrees": 1}


def test_a_new_prediction_has_its_own_time_and_its_own_past(world):
    """A verdict ends what is recorded about the object, so the next prediction starts afresh."""
    world.predict(VA, world.va, world.attached())
    label(world, "x")
    world.counts()
    world.now += 31
    assert world.counts() == {"differs": 1}
    world.predict(VA, world.va, world.attached())
    assert world.counts() == {"differs": 1}, "the sidecar has its time again"
    world.now += 31
    assert world.counts() == {"differs": 2}
    world.predict(VA, world.va, world.attached())
    world.past.kept[VA] = [{**world.va, "status": {"attached": True}}]
    assert world.counts() == {"differs": 2, "agrees": 1}


def test_what_is_foreseen_to_be_made_again_is_no_verdict_on_the_last(world):
    """Only the object that the reconcile saw shows what the sidecar did about the prediction."""
    world.predict(VA, world.va, world.attached())
    world.judge.predict(KEY, Prediction(VA, None, world.attached(), (), world.now))
    assert verdicts(world) == {}


@pytest.mark.parametrize(
    ("seconds", "counts"), [(30, {}), (30.5, {"gone": 1})], ids=["in time", "over"]
)
def test_a_volume_whose_claim_went_is_given_up_after_a_while(world, seconds, counts):
    """The sidecar still has time at the very last moment."""
    world.predict(PV, None, volume())
    world.now += seconds
    assert world.counts() == counts


@pytest.mark.parametrize(("uid", "counts"), [("c", {}), ("another", {"gone": 1})])
def test_a_claim_of_the_same_name_is_another_one(world, uid, counts):
    metadata = {"namespace": "shop", "name": "data", "uid": uid}
    world.api.add(paths.CLAIMS, {"metadata": metadata})
    world.predict(PV, None, volume())
    world.now += 31
    assert world.counts() == counts


@pytest.mark.parametrize(
    ("base", "wanted"),
    [
        pytest.param({}, volume(), id="there was one"),
        pytest.param(None, {"metadata": {"name": "pvc-1"}, "spec": {}}, id="made for nobody"),
        pytest.param(None, {"metadata": {"name": "pvc-1"}}, id="without a spec"),
    ],
)
def test_what_was_made_for_nobody_is_not_given_up(world, base, wanted):
    """Without a claim there is no sign that the volume is no longer wanted."""
    if base is not None:
        base = world.api.add(paths.VOLUMES, volume(mountOptions=["rw"]))
        world.past.kept[PV] = []
    world.predict(PV, base, wanted)
    world.now += 31
    assert world.counts() == {}
