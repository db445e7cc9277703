"""What is done about a claim's attributes class: each row of R-100, R-101, R-105 and R-114."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.resizer_world import NAME, NAMESPACE, VOLUME, ResizerWorld
from workers.controllers.resizer.claim import read_claim, read_volume
from workers.controllers.resizer.decide import Skip
from workers.controllers.resizer.marks import Call, Marks
from workers.controllers.resizer.modifying import Cancel, Modify, modification, parameters
from workers.controllers.resizer.results import Result

NOW = 50_000.0
APPLIED, TAKEN_BACK = Skip("the class is applied"), Skip("the class was taken back")
OVERTAKEN = "an overtaken call for another class may still be running"
LEAVING = Skip("the claim is being deleted")
RESTS = (
    f"skipping volume modification for pvc {NAMESPACE}/{NAME}, because modification previously "
    "failed with infeasible error"
)
FINAL = Call("b", Result.FINAL, NOW)
UNCERTAIN = Call("b", Result.UNCERTAIN, NOW)


def again(name):
    return Modify(name, is_again=True)


def fresh(name):
    return Modify(name, is_again=False)


def views(spec, current, state=None, target="", **fields):
    """Return a claim and volume of (spec VAC, curVAC, mvs)."""
    status = {"currentVolumeAttributesClassName": current}
    if state is not None:
        found = {"status": state, "targetVolumeAttributesClassName": target}
        status["modifyVolumeStatus"] = found
    world = ResizerWorld()
    world.claim(1, 1, volumeAttributesClassName=spec, status=status, **fields)
    return read_claim(world.seen), read_volume(world.stored)


def plan(claim, volume, call=None, now=NOW, left=0.0):
    marks = Marks(modify=call)
    times = {"slow_seconds": 300.0, "now": now, "overtaken_seconds": left}
    return modification(claim, volume, marks, driver_name="csi/test", **times)


@pytest.mark.parametrize(
    ("start", "call", "expected"),
    [
        pytest.param(("a", "a"), None, APPLIED, id="R-100/6 as wanted"),
        pytest.param(("", ""), None, APPLIED, id="R-100/6 none"),
        pytest.param(("b", "a"), None, fresh("b"), id="R-100/9 another"),
        pytest.param(("a", "a", "Infeasible", "b"), None, fresh("a"), id="R-115 back to it"),
        pytest.param(("b", "a", "Pending", "b"), None, fresh("b"), id="R-100/9 pending"),
        pytest.param(("b", "a", "Pending", "c"), UNCERTAIN, fresh("b"), id="R-100/9 a new one"),
        pytest.param(("", "a", "Pending", "b"), None, TAKEN_BACK, id="R-100/7 pending"),
        pytest.param(("", "a", "Infeasible", "b"), None, TAKEN_BACK, id="R-100/7 infeasible"),
        pytest.param(("", "a"), None, TAKEN_BACK, id="R-100/7 an old class stays"),
        pytest.param(("b", "a", "InProgress", "b"), None, again("b"), id="R-100/8 restart"),
        pytest.param(("c", "a", "InProgress", "b"), None, again("b"), id="R-100/8 pinned"),
        pytest.param(("c", "a", "InProgress", "b"), UNCERTAIN, again("b"), id="R-101 uncertain"),
        pytest.param(("c", "a", "InProgress", "b"), FINAL, fresh("c"), id="R-101 final"),
        pytest.param(("b", "a", "InProgress", "b"), FINAL, fresh("b"), id="R-111 final, the same"),
        pytest.param(("", "a", "InProgress", "b"), None, again("b"), id="R-115 cleared"),
        pytest.param(("", "a", "InProgress", "b"), FINAL, again("b"), id="R-115 cleared, final"),
        pytest.param(
            ("c", "a", "InProgress", "b"),
            replace(FINAL, target="c"),
            again("b"),
            id="MR-020 a mark of another class",
        ),
    ],
)
def test_r100_the_class_that_is_asked_for(start, call, expected):
    """R-100: A call that may still run is finished before another class is requested."""
    assert plan(*views(*start), call) == expected


@pytest.mark.parametrize(
    ("start", "result", "left", "expected"),
    [
        pytest.param(("c", "b"), Result.OK, 5, Skip(OVERTAKEN, 5), id="another class"),
        pytest.param(("c", "b"), Result.OK, -1, fresh("c"), id="the deadline passed"),
        pytest.param(
            ("c", "a", "InProgress", "b"), Result.FINAL, 5, Skip(OVERTAKEN, 5), id="final"
        ),
        pytest.param(("b", "a", "InProgress", "b"), Result.FINAL, 5, fresh("b"), id="the same"),
        pytest.param(("c", "a", "InProgress", "b"), Result.UNCERTAIN, 5, again("b"), id="pinned"),
        pytest.param(("b", "b"), Result.OK, 5, APPLIED, id="nothing to do"),
        pytest.param(("", "a", "Infeasible", "b"), Result.INFEASIBLE, 5, TAKEN_BACK, id="none"),
    ],
)
def test_mr010_another_class_waits_for_an_overtaken_call(start, result, left, expected):
    """MR-010, I-2: The earlier call could end last; for the same class that makes no difference."""
    assert plan(*views(*start), Call("b", result, NOW), left=max(0.0, left)) == expected


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, TAKEN_BACK),
        ({"ModifyingVolume": "x"}, Cancel()),
        ({"ModifyVolumeError": "x"}, Cancel()),
        ({"Resizing": "x"}, TAKEN_BACK),
    ],
)
def test_r105_a_class_that_was_taken_back_is_tidied_once(conditions, expected):
    """R-105, DR-024: It is cancelled as long as the claim has one of its conditions."""
    assert plan(*views("", "a", "Infeasible", "b", conditions=conditions)) == expected


@pytest.mark.parametrize(
    ("start", "result", "age", "expected"),
    [
        pytest.param("b Infeasible b", Result.INFEASIBLE, 0, Skip(RESTS, 300.0), id="just said"),
        pytest.param("b Infeasible b", Result.INFEASIBLE, 299, Skip(RESTS, 1.0), id="nearly over"),
        pytest.param("b Infeasible b", Result.INFEASIBLE, 300, fresh("b"), id="over"),
        pytest.param("b Infeasible b", Result.INFEASIBLE, -1, fresh("b"), id="the clock went back"),
        pytest.param("c Infeasible b", Result.INFEASIBLE, 0, fresh("c"), id="another class"),
        pytest.param("b Infeasible b", Result.FINAL, 0, fresh("b"), id="the mark says final"),
        pytest.param("b InProgress b", Result.INFEASIBLE, 0, fresh("b"), id="the state is older"),
        pytest.param("b Pending b", Result.INFEASIBLE, 0, fresh("b"), id="pending"),
    ],
)
def test_r114_only_the_class_that_was_infeasible_rests(start, result, age, expected):
    """R-114, DR-023: It waits for the rest of the pause if claim and key state both show it."""
    spec, state, target = start.split()
    call = Call("b", result, NOW - age)
    assert plan(*views(spec, "a", state, target), call) == expected


def test_r114_without_a_mark_nothing_rests():
    """MR-021: Redis has lost the key's state."""
    assert plan(*views("b", "a", "Infeasible", "b")) == fresh("b")


@pytest.mark.parametrize(
    ("start", "call", "expected"),
    [
        (("b", "a"), None, LEAVING),
        (("b", "a", "InProgress", "b"), None, again("b")),
        (("b", "a", "InProgress", "b"), UNCERTAIN, again("b")),
        (("b", "a", "InProgress", "b"), FINAL, LEAVING),
        (("b", "a", "Infeasible", "b"), None, LEAVING),
        (("b", "a", "Pending", "b"), None, LEAVING),
    ],
)
def test_dr022_a_claim_that_goes_only_ends_what_may_run(start, call, expected):
    """DR-022: If the volume is being deleted too, not even that is done."""
    claim, volume = views(*start)
    claim = replace(claim, is_deleting=True)
    assert plan(claim, volume, call) == expected
    volume = replace(volume, is_deleting=True)
    assert plan(claim, volume, call) == Skip("the volume is being deleted")


@pytest.mark.parametrize(
    ("changes", "driver", "reason"),
    [
        ({"phase": "Lost"}, "csi/test", "phase is Lost"),
        ({"phase": ""}, "csi/test", "phase is not set"),
        ({}, "other", "not a csi volume of the driver"),
        ({}, "", "not a csi volume of the driver"),
    ],
)
def test_r100_why_no_class_is_looked_at(changes, driver, reason):
    """R-100/3, R-100/4: The reason names the claim's phase or the driver."""
    claim, volume = views("b", "a")
    claim, volume = replace(claim, **changes), replace(volume, csi_driver=driver)
    assert plan(claim, volume) == Skip(reason)


@pytest.mark.parametrize("with_metadata", [False, True])
def test_r104_the_parameters_of_the_request(with_metadata):
    """R-104: The names replace equal keys, and the class itself is not changed."""
    claim, volume = views("b", "a")
    given = {"tier": "b", "csi.storage.k8s.io/pvc/name": "mine"}
    names = {
        "csi.storage.k8s.io/pvc/name": NAME,
        "csi.storage.k8s.io/pvc/namespace": NAMESPACE,
        "csi.storage.k8s.io/pv/name": VOLUME,
    }
    found = parameters(given, claim, volume, with_metadata=with_metadata)
    assert found == given | (names if with_metadata else {})
    assert given["csi.storage.k8s.io/pvc/name"] == "mine"
