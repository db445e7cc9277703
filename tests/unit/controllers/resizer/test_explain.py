"""Why a claim is not larger yet, or its class not applied: causes and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.resizer_world import SHORT
from workers.controllers.resizer.explain import ChangeFacts, change_cause
from workers.explain.serving import Served
from workers.queue.inspect import KeyState, Note, Pause
from workers.queue.keys import Key
from workers.queue.limits import LaneLimits

DRIVER = "csi/test"
NOW = 1_800_000_000.0
STATE = KeyState(Key("changes", DRIVER, "shop/data", "u1"), NOW, limits=LaneLimits(2))
ERROR = Note(NOW - 3, "error", "rpc error: code = Unavailable desc = rebooting")
VOLUME = {
    "metadata": {"name": "pv", "uid": "v1"},
    "spec": {
        "csi": {"driver": DRIVER, "volumeHandle": "h"},
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "shop", "name": "data", "uid": "u1"},
    },
}
CLASS = {"metadata": {"name": "b"}, "driverName": DRIVER}


def claim(spec="2Gi", cap="1Gi", alloc="", part="", *, name="", modify=None, conditions=()):
    status = {"phase": "Bound", "capacity": {"storage": cap}}
    if alloc:
        status["allocatedResources"] = {"storage": alloc}
    if part:
        status["allocatedResourceStatuses"] = {"storage": SHORT[part]}
    if modify:
        status["modifyVolumeStatus"] = dict(
            zip(("status", "targetVolumeAttributesClassName"), modify, strict=True)
        )
    status["conditions"] = [
        {"type": kind, "status": "True", "message": text} for kind, text in conditions
    ]
    return {
        "metadata": {"namespace": "shop", "name": "data", "uid": "u1"},
        "spec": {
            "volumeName": "pv",
            "resources": {"requests": {"storage": spec}},
            "volumeAttributesClassName": name,
        },
        "status": status,
    }


FACTS = ChangeFacts(
    "shop",
    "data",
    claim=claim(),
    volume=VOLUME,
    driver_name=DRIVER,
    driver={"name": DRIVER},
    served=Served("resizer", (DRIVER,)),
    attributes_class=CLASS,
    state=STATE,
    workers=1,
)


def of(item=None, **changes):
    state = changes.pop("state", {})
    facts = replace(FACTS, claim=item or claim(), state=replace(STATE, **state), **changes)
    return change_cause(facts)


INFEASIBLE = claim(alloc="9Gi", part="C-INF", conditions=[("ControllerResizeError", "too large")])
NODE = claim(alloc="2Gi", part="N-INF", conditions=[("NodeResizeError", "xfs says no")])
REFUSED = claim(
    "1Gi", name="b", modify=("Infeasible", "b"), conditions=[("ModifyVolumeError", "no such tier")]
)


@pytest.mark.parametrize(
    ("cause", "code", "words"),
    [
        (lambda: change_cause(ChangeFacts("shop", "data")), "not-found", "shop/data"),
        (lambda: of(claim("1Gi")), "as-wanted", "1Gi"),
        (lambda: of(volume=None), "volume-missing", "pv"),
        (
            lambda: of(volume={**VOLUME, "spec": {**VOLUME["spec"], "claimRef": {}}}),
            "volume-of-another",
            "pv",
        ),
        (lambda: of(driver=None), "driver-not-registered", DRIVER),
        (
            lambda: of(driver=None, served=Served("resizer", (), (DRIVER,))),
            "not-served",
            "none of them runs the resizer",
        ),
        (lambda: of(driver_name="", driver=None), "not-ours", "does not belong to a CSI driver"),
        (lambda: of(driver=None, workers=0), "no-worker", "worker"),
        (
            lambda: of(state={"pauses": (Pause("operator", "upgrade", 0.0),)}),
            "paused",
            "upgrade",
        ),
        (lambda: of(claim(alloc="2Gi", part="N-P")), "waits-for-node", "pod"),
        (lambda: of(claim(spec="9Gi", alloc="2Gi", part="N-IP")), "waits-for-node", "9Gi follows"),
        (lambda: of(NODE), "node-failed", "xfs says no"),
        (lambda: of(INFEASIBLE), "size-infeasible", "too large"),
        (
            lambda: of(claim(alloc="9Gi", part="C-IP"), state={"trail": (ERROR,)}),
            "size-pinned",
            "may still be expanding the volume to 9Gi",
        ),
        (lambda: of(REFUSED), "class-infeasible", "no such tier"),
        (lambda: of(claim("1Gi", name="b"), attributes_class=None), "class-missing", '"b"'),
        (
            lambda: of(claim("1Gi", name="b"), attributes_class={"driverName": "other"}),
            "class-of-another-driver",
            "other",
        ),
        (
            lambda: of(claim("1Gi", name="b", modify=("InProgress", "c"))),
            "class-pinned",
            '"b" after that',
        ),
        (lambda: of(claim("1Gi", modify=("Infeasible", "c"))), "class-taken-back", "cancelled"),
        (lambda: of(state={"lease": ("host:1:x", NOW - 1)}), "running", "host:1"),
        (lambda: of(state={"position": 1, "waiting": 1}), "queued", "position 1"),
        (
            lambda: of(state={"trail": (ERROR,), "due": NOW + 9, "fails": 2}),
            "change-failed",
            "rebooting",
        ),
        (of, "change-unseen", "1Gi of 2Gi"),
    ],
)
def test_the_first_cause(cause, code, words):
    """The causes follow the order of the work, and each text names the object to check."""
    found = cause()
    assert found.code == code
    assert words in found.text


def test_an_unbound_claim_is_somebody_elses_question():
    """The provisioner explains such a claim."""
    item = claim()
    item["status"]["phase"] = "Pending"
    assert not of(item).is_problem


@pytest.mark.parametrize(
    ("item", "is_problem"),
    [
        pytest.param(claim("1Gi"), False, id="as wanted"),
        pytest.param(claim("1Gi", modify=("Infeasible", "c")), False, id="taken back"),
        pytest.param(claim(), True, id="too small"),
    ],
)
def test_a_claim_that_has_what_it_wants_is_no_problem(item, is_problem):
    """Otherwise `explain` would hide the problem that another controller reports."""
    assert of(item).is_problem is is_problem
