"""Facts that `csi-fleet explain pvc` reads about size and class, and the announced next attempt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.fake_context import DRIVER
from tests.support.resizer_world import NAME, NAMESPACE, UID, VOLUME, ResizerWorld
from workers.controllers.resizer import explain
from workers.controllers.resizer.explain import ChangeFacts
from workers.explain.serving import Served
from workers.explain.words import moment
from workers.kube import paths
from workers.queue.inspect import KeyState, Note
from workers.queue.keys import Key

NOW = 1_800_000_000.0
DUE = NOW + 9
EBS = "ebs.csi.aws.com"
RESIZER = "volume.kubernetes.io/storage-resizer"
SERVED = {"name": DRIVER, "queue_name": "q", "controllers": ["attacher", "resizer"]}
OTHER = {"name": "a-second", "queue_name": "o", "controllers": ["resizer"]}
BUSY = {"name": "busy", "queue_name": "b", "controllers": ["attacher"]}
SILENT = {"name": "silent", "queue_name": "s", "controllers": None}
EVERY = (BUSY, SILENT, SERVED, OTHER)
ERROR = (Note(NOW - 3, "error", "boom"),)


class Asked:
    """The cluster and Redis of one explanation; `keys` has the keys that were looked up."""

    def __init__(self, monkeypatch, *, records=EVERY, **state):
        self.world = ResizerWorld()
        self.keys = []
        self.state = KeyState(Key("changes", "q", "shop/data", UID), NOW, **state)
        self.tools = SimpleNamespace(
            kube=self.world.api.kube,
            registry=SimpleNamespace(alive=lambda: {one["name"]: one for one in records}),
            redis="its Redis",
            presence=SimpleNamespace(workers=lambda: ["one", "two"]),
        )
        monkeypatch.setattr(explain, "read_key", self.read_key)

    def read_key(self, *arguments):
        self.keys.append(arguments)
        return self.state

    def facts(self):
        return explain.gather(self.tools, NAMESPACE, NAME)

    def cause(self):
        return explain.explain(self.tools, "pvc", NAMESPACE, NAME).cause


def test_everything_is_read_of_the_claim_and_its_driver(monkeypatch):
    """Only drivers whose workers run the resizer count as served."""
    asked = Asked(monkeypatch)
    asked.world.attributes_class("b", tier="b")
    asked.world.claim(2, 1, volumeAttributesClassName="b")
    assert asked.facts() == ChangeFacts(
        NAMESPACE,
        NAME,
        claim=asked.world.seen,
        volume=asked.world.stored,
        driver_name=DRIVER,
        driver=SERVED,
        served=Served("resizer", ("a-second", DRIVER), ("busy", "silent")),
        attributes_class=asked.world.api.of(paths.ATTRIBUTES_CLASSES, "b"),
        state=asked.state,
        workers=2,
    )
    assert asked.keys == [("its Redis", Key("changes", "q", f"{NAMESPACE}/{NAME}", UID))]


def test_what_is_missing_is_none(monkeypatch):
    """First there is no claim, then a claim without its volume and class."""
    asked = Asked(monkeypatch)
    assert asked.facts() == ChangeFacts(NAMESPACE, NAME)
    assert asked.cause().code == "not-found"
    asked.world.claim(2, 1, volumeAttributesClassName="b")
    asked.world.api.drop(paths.VOLUMES, VOLUME)
    found = asked.facts()
    assert (found.volume, found.attributes_class, found.driver_name) == (None, None, "")
    assert asked.cause().code == "volume-missing"


def test_nothing_is_asked_for_without_a_name(monkeypatch):
    """The claim has neither a class nor a volume."""
    asked = Asked(monkeypatch)
    asked.world.claim(2, 1)
    asked.world.edit({"spec": {"volumeName": None}})
    asked.world.api.requests.clear()
    found = asked.facts()
    assert (found.volume, found.attributes_class) == (None, None)
    assert len(asked.world.api.requests) == 1


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param(EVERY, "q", id="served"),
        pytest.param((BUSY,), DRIVER, id="no worker serves it"),
        pytest.param((BUSY | {"name": DRIVER},), DRIVER, id="none with the resizer"),
    ],
)
def test_the_queue_of_the_driver(monkeypatch, records, expected):
    """The queue of a driver that no worker serves has the driver's name."""
    asked = Asked(monkeypatch, records=records)
    asked.world.claim(2, 1)
    found = asked.facts()
    assert asked.keys[0][1].driver == expected
    assert found.driver == (SERVED if records == EVERY else None)


@pytest.mark.parametrize(
    ("source", "annotation", "expected"),
    [
        (DRIVER, None, DRIVER),
        (DRIVER, EBS, DRIVER),
        (None, EBS, EBS),
        (None, "kubernetes.io/aws-ebs", ""),
        (None, None, ""),
    ],
)
def test_r021_whose_volume_it_is(monkeypatch, source, annotation, expected):
    """R-021: Its CSI source decides, else the annotation of a driver that replaces a plug-in."""
    asked = Asked(monkeypatch)
    asked.world.volume(1, csi={"driver": source, "volumeHandle": "h"} if source else None)
    asked.world.claim(2, 1, annotations={RESIZER: annotation} if annotation else None)
    assert asked.facts().driver_name == expected


@pytest.mark.parametrize("due", [0.0, DUE])
def test_r034_an_infeasible_size_says_when_it_is_tried_again(monkeypatch, due):
    """The time is shown if it is known."""
    asked = Asked(monkeypatch, due=due)
    asked.world.claim(9, 1, 9, "C-INF", 1, conditions={"ControllerResizeError": "too large"})
    found = asked.cause()
    again = f" The expansion is retried at {moment(due)}." if due else ""
    assert (found.code, found.until) == ("size-infeasible", due)
    assert found.text == "The driver rejects the size 9Gi: too large"
    expected = f"Request a smaller size; csi-fleet retries as soon as the size changes.{again}"
    assert found.advice == expected


def of_class(asked, spec, state=None, target="b", **conditions):
    asked.world.attributes_class("b", tier="b")
    asked.world.attributes_class("c", tier="c")
    found = {"status": state, "targetVolumeAttributesClassName": target}
    status = {"modifyVolumeStatus": found} if state else {}
    asked.world.claim(1, 1, volumeAttributesClassName=spec, status=status, conditions=conditions)


@pytest.mark.parametrize("due", [0.0, DUE])
def test_r114_an_infeasible_class_says_until_when(monkeypatch, due):
    asked = Asked(monkeypatch, due=due)
    of_class(asked, "b", "Infeasible", ModifyVolumeError="no such tier")
    found = asked.cause()
    assert (found.code, found.until) == ("class-infeasible", due)
    assert found.text == 'The driver rejects VolumeAttributesClass "b": no such tier'


@pytest.mark.parametrize("due", [0.0, DUE])
@pytest.mark.parametrize("what", ["size-pinned", "class-pinned", "change-failed"])
def test_what_is_tried_again_says_when(monkeypatch, what, due):
    """The advice is the time of the next attempt, if it is known."""
    asked = Asked(monkeypatch, due=due, trail=ERROR, fails=2)
    if what == "class-pinned":
        of_class(asked, "c", "InProgress")
    elif what == "size-pinned":
        asked.world.claim(9, 1, 5, "C-IP", 1)
    else:
        asked.world.claim(9, 1, 9, "C-IP", 1)
    found = asked.cause()
    assert found.code == what
    start = f"Attempt 3 starts at {moment(DUE)}, in "
    assert found.advice.startswith(start) if due else found.advice == ""


def test_mr010_a_class_that_waits_for_a_dead_workers_call_says_until_when(monkeypatch):
    """MR-010: No error reports this."""
    asked = Asked(monkeypatch, due=DUE)
    of_class(asked, "c")
    found = asked.cause()
    assert (found.code, found.until) == ("change-waits", DUE)
    assert found.advice.startswith(f"Attempt 1 starts at {moment(DUE)}, in ")


@pytest.mark.parametrize("state", [None, "Pending", "InProgress"])
def test_a_class_that_is_at_work_waits_for_no_other(monkeypatch, state):
    """R-101: Only a different target pins the class."""
    asked = Asked(monkeypatch, lease=("host:1:x", NOW - 1))
    of_class(asked, "b", state)
    assert asked.cause().code == "running"


def test_without_a_state_nothing_is_said_of_the_queue(monkeypatch):
    """Without the key's state in Redis, no time is known."""
    asked = Asked(monkeypatch)
    asked.state = None
    asked.world.claim(9, 1, 9, "C-INF", 1)
    found = asked.cause()
    assert (found.code, found.until) == ("size-infeasible", 0.0)
    assert found.text == "The driver rejects the size 9Gi: no message"
    asked.world.edit({"status": {"allocatedResourceStatuses": None}})
    assert asked.cause().code == "change-unseen"
