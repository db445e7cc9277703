"""The traces of a failed expansion on the claim, and when it is retried (section 11.3)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from csi_client import errors
from csi_client.errors import CsiError, NoStatusError, UndecodableAnswerError
from tests.support.resizer_world import (
    CONTROLLER_IN_PROGRESS,
    INFEASIBLE,
    NAME,
    NAMESPACE,
    NODE_PENDING,
    VOLUME,
    ResizerWorld,
)
from workers.controllers.resizer import results
from workers.controllers.resizer.controller import CONTROLLER
from workers.controllers.resizer.results import Result
from workers.errors import DriverAway
from workers.kube import paths
from workers.kube.errors import ConflictError, ForbiddenError, Unreachable

ERROR = "ControllerResizeError"
STATUS = f"{NAME}/status"
CONFLICT = ConflictError(409, "Conflict", "the object has been modified")


def failing(code, *more, **settings):
    world = ResizerWorld(**settings)
    world.answers({"code": code, "message": "no"}, *more)
    world.claim(10, 1)
    return world


def age(world, seconds):
    """Make the key's state older by this time."""
    for mark in world.queue.marks.values():
        for call in (mark.get("expand"), mark.get("modify")):
            if call:
                call["at"] -= seconds
        mark["said"] = [[digest, at - seconds] for digest, at in mark.get("said", [])]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("OUT_OF_RANGE", id="TR-050"),
        pytest.param("NOT_FOUND", id="TR-051"),
        pytest.param("INVALID_ARGUMENT", id="TR-050 the third"),
    ],
)
def test_an_infeasible_size_is_said_and_rests(code):
    """R-050, R-051, R-034: The pause also applies to the first retry (DR-008)."""
    world = failing(code)
    outcome = world.run()
    assert (outcome.action.value, outcome.delay_seconds) == ("retry", 300.0)
    assert world.state().part == INFEASIBLE
    go_name = code.title().replace("_", "")
    text = f"rpc error: code = {go_name} desc = no"
    assert world.conditions()[ERROR] == f"failed to expand pvc with {text}"
    assert world.messages()[-1] == (
        f'resize volume "{VOLUME}" by resizer "{world.driver_name}" failed: {text}'
    )
    outcome = world.run()
    assert outcome.action.value == "wait"
    assert 299 < outcome.delay_seconds <= 300
    assert outcome.reason.startswith(f"skipping volume expansion for pvc {NAMESPACE}/{NAME}")
    assert world.sizes() == [10]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("INTERNAL", id="TR-052"),
        *("UNKNOWN", "PERMISSION_DENIED", "UNAUTHENTICATED", "ALREADY_EXISTS"),
        *("UNIMPLEMENTED", "DATA_LOSS", "FAILED_PRECONDITION"),
    ],
)
def test_a_final_error_keeps_the_state_and_is_retried(code):
    """R-050, R-051: The user may lower the size now (TR-054)."""
    world = failing(code)
    outcome = world.run()
    assert (outcome.action.value, outcome.delay_seconds) == ("retry", 0.0)
    assert world.state().part == CONTROLLER_IN_PROGRESS
    assert ERROR in world.conditions()
    world.resize(5)
    world.run()
    assert world.sizes() == [10, 5]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("DEADLINE_EXCEEDED", id="TR-053"),
        *("CANCELED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"),
    ],
)
def test_an_uncertain_error_pins_the_size(code):
    """R-050, R-051, I-2: The first size is requested again, whatever the user requests now."""
    world = failing(code)
    assert world.run().action.value == "retry"
    assert world.state().part == CONTROLLER_IN_PROGRESS
    assert list(world.conditions()) == ["Resizing"]
    assert world.reasons() == ["Resizing", "VolumeResizeFailed"]
    world.resize(5)
    world.run()
    assert world.sizes() == [10, 10]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NoStatusError("closed"), Result.UNCERTAIN),
        (UndecodableAnswerError("garbage", rpc="x"), Result.UNCERTAIN),
        (CsiError(errors.INTERNAL, "Stream removed", is_final=False), Result.UNCERTAIN),
        (CsiError(errors.INTERNAL, "no"), Result.FINAL),
    ],
)
def test_what_the_transport_made_up_says_nothing_final(error, expected):
    """R-050: Each error without a status of the driver is uncertain."""
    assert results.expand_result(error) is expected
    assert results.modify_result(error) is expected


def test_tr054_a_final_answer_ends_the_pin():
    """After UNAVAILABLE and then INTERNAL for the same size, the lowered size is requested."""
    world = failing("DEADLINE_EXCEEDED", {"code": "INTERNAL"}, {})
    world.run()
    world.resize(5)
    world.run()
    world.run()
    assert world.sizes() == [10, 10, 5]


def test_tr055_after_its_pause_an_infeasible_size_is_tried_again():
    """R-034, DR-007: The state becomes in progress again before the call."""
    world = failing("OUT_OF_RANGE")
    world.run()
    parts = []
    world.answers(lambda _: parts.append(world.state().part) or {"code": "OUT_OF_RANGE"})
    age(world, 301)
    world.run()
    assert parts == [CONTROLLER_IN_PROGRESS]
    assert world.state().part == INFEASIBLE
    assert world.sizes() == [10, 10]


def test_tr056_another_size_is_never_slowed_down():
    """R-034: The pause applies only to the infeasible size."""
    world = failing("OUT_OF_RANGE", {})
    world.run()
    world.resize(5)
    world.run()
    assert world.sizes() == [10, 5]


def test_tr057_an_answer_that_gets_lost_pins_an_infeasible_size():
    """DR-007, MR-030: csi-resizer would request the new size while the call may still run."""
    world = failing("OUT_OF_RANGE", {"code": "UNAVAILABLE"}, {})
    world.run()
    age(world, 301)
    world.run()
    assert world.state().part == CONTROLLER_IN_PROGRESS
    world.resize(5)
    world.run()
    assert world.sizes() == [10, 10, 10]


def test_tr058_a_missing_secret_is_reported_and_sends_nothing():
    """R-040, MR-032: No call was made, so a lowered size follows at once (DR-029)."""
    world = ResizerWorld()
    reference = {"name": "s", "namespace": "n"}
    source = {"driver": world.driver_name, "volumeHandle": "h"}
    world.volume(1, csi={**source, "controllerExpandSecretRef": reference})
    world.claim(10, 1)
    assert world.run().action.value == "retry"
    text = 'error getting secret s in namespace n: secrets "s" not found'
    assert world.messages()[-1].endswith(text)
    assert world.client.methods == []
    world.api.add(paths.SECRETS, {"metadata": reference, "data": {"user": "dQ=="}})
    world.resize(5)
    world.run()
    assert world.sizes() == [5]
    assert dict(world.client.requests("ControllerExpandVolume")[0].secrets) == {"user": "u"}


def test_a_local_error_does_not_loosen_a_call_that_may_run():
    """MR-032: Only a size that was never sent is given up."""
    world = failing("UNAVAILABLE")
    world.run()
    world.api.change(paths.VOLUMES, VOLUME, {"spec": {"accessModes": []}})
    world.run()
    world.resize(5)
    world.api.change(paths.VOLUMES, VOLUME, {"spec": {"accessModes": ["ReadWriteOnce"]}})
    world.run()
    assert world.sizes() == [10, 10]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(
            {"csi": {"volumeHandle": None}}, "failed: empty volume handle", id="TR-059 handle"
        ),
        pytest.param(
            {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]},
            f"failed to get capabilities of volume {VOLUME} with CSI does not support "
            "ReadOnlyMany and ReadWriteOnce on the same PersistentVolume",
            id="TR-059 access modes",
        ),
    ],
)
def test_a_volume_that_cannot_be_described_is_reported(change, text):
    """R-040: An event reports why the request cannot be built."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.api.change(paths.VOLUMES, VOLUME, {"spec": change})
    world.run()
    assert world.messages()[-1].endswith(text)
    assert world.client.methods == []


def test_tr062_a_volume_that_cannot_be_written_is_reported():
    """R-060: The next reconcile requests the same size again."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.api.fail("patch", VOLUME, ForbiddenError(403, "Forbidden", "denied"))
    assert world.run().action.value == "retry"
    name = VOLUME
    assert world.messages()[-1] == (
        f'error updating pv "{name}" by resizer: updating capacity of PV "{name}" to 2Gi failed: '
        f"update capacity of PV {name} failed: denied"
    )
    world.resize(5)
    world.run()
    assert world.sizes() == [2, 2]


def test_an_api_server_that_is_away_blames_nobody():
    """The engine waits, and the next reconcile repeats the size; no event and no condition."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.api.fail("patch", VOLUME, Unreachable("gone"))
    with pytest.raises(Unreachable):
        world.run()
    assert world.reasons() == ["Resizing"]
    world.run()
    assert world.sizes() == [2, 2]
    assert world.state().part == NODE_PENDING


def test_a_driver_that_is_away_blames_nobody():
    """DriverAway ends the reconcile; the size stays pinned."""
    world = ResizerWorld()
    world.answers(DriverAway("no connection"), {})
    world.claim(10, 1)
    with pytest.raises(DriverAway):
        world.run()
    world.resize(5)
    world.run()
    assert world.sizes() == [10, 10]


def test_tr063_tr034_a_death_after_the_volume_was_written_is_made_good():
    """MR-042: The volume is written before the claim, so the next owner repeats the call."""
    world = ResizerWorld()
    world.claim(2, 1, 2, "C-IP", 2)
    world.run()
    assert world.sizes() == [2]
    assert world.state().part == NODE_PENDING


def test_tr064_an_answer_without_a_size_is_the_requested_one():
    """DR-005: The API server would refuse a volume without a size forever."""
    world = ResizerWorld()
    world.answers({"capacity_bytes": 0, "node_expansion_required": True})
    world.claim(2, 1)
    world.run()
    assert world.state().pvcap == 2
    assert [kind for kind, _, _ in world.events.seen].count("Warning") == 1


def test_tr065_a_smaller_answer_is_a_failure():
    """DR-005: The volume never shrinks, and the error states both sizes."""
    world = ResizerWorld()
    world.answers({"capacity_bytes": 2**30})
    world.claim(3, 2)
    assert world.run().action.value == "retry"
    assert world.state().pvcap == 2
    assert f"{2**30} bytes, but {3 * 2**30} were requested" in world.conditions()[ERROR]


def test_tr066_a_larger_answer_is_taken():
    """R-060: Volume and claim get the answered size; the request stays unchanged."""
    world = ResizerWorld()
    world.answers({"capacity_bytes": 4 * 2**30})
    world.claim(3, 2)
    world.run()
    state = world.state()
    assert (state.pvcap, state.cap, state.alloc) == (4, 4, 3)


def test_tr067_a_final_answer_is_remembered_over_a_restart():
    """MR-020: Without the key's state the allocated size is requested again (MR-021)."""
    world = failing("INTERNAL")
    world.run()
    world.resize(5)
    world.run()
    assert world.sizes() == [10, 5]
    world = failing("INTERNAL")
    world.run()
    world.queue.marks.clear()
    world.resize(5)
    world.run()
    assert world.sizes() == [10, 10]


def test_tr069_success_clears_the_error():
    """DR-010: csi-resizer keeps the error until the node is done."""
    world = failing("INTERNAL", {"node_expansion_required": True})
    world.run()
    world.run()
    assert ERROR not in world.conditions()
    assert world.state().part == NODE_PENDING
    assert world.queue.marks == {}


def test_tr070_marks_of_many_claims_stay_apart():
    """Twenty claims fail at the same time in as many threads; each has its own state."""
    world = failing("INTERNAL")
    keys = [replace(world.key, object=f"{NAMESPACE}/c{n}", uid=f"u{n}") for n in range(20)]
    for n, key in enumerate(keys):
        claim, volume = world.seen, world.stored
        claim["metadata"] |= {"name": f"c{n}", "uid": key.uid}
        claim["spec"]["volumeName"] = f"pv{n}"
        volume["metadata"] |= {"name": f"pv{n}", "uid": f"pv-uid-{n}"}
        volume["spec"]["claimRef"] = {"namespace": NAMESPACE, "name": f"c{n}", "uid": key.uid}
        world.api.add(paths.CLAIMS, claim)
        world.api.add(paths.VOLUMES, volume)
    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(lambda key: world.sync(CONTROLLER, key), keys))
    assert {one.action.value for one in outcomes} == {"retry"}
    results_of = {text: mark["expand"]["result"] for text, mark in world.queue.marks.items()}
    assert results_of == {key.text: "final" for key in keys}


def test_tr071_retries_write_nothing_new():
    """DR-009, MR-050: Ten failures cause one state, one condition and one event of each kind."""
    world = failing("INTERNAL")
    for _ in range(10):
        world.run()
    assert world.status_writes() == 2
    assert world.reasons() == ["Resizing", "VolumeResizeFailed"]
    assert len(world.sizes()) == 10


def test_an_unchanged_event_comes_again_after_ten_minutes():
    """MR-050: The event is then emitted again."""
    world = failing("INTERNAL")
    world.run()
    age(world, 601)
    world.run()
    assert world.reasons().count("VolumeResizeFailed") == 2


@pytest.mark.parametrize(("is_on", "expected"), [(False, 10), (True, 5)])
def test_tr072_a_full_storage_may_be_asked_for_less(is_on, expected):
    """MR-031, DR-029: It takes three answers and twice the timeout, if the operator allows it."""
    world = failing("RESOURCE_EXHAUSTED", exhausted_is_final=is_on)
    for _ in range(3):
        world.run()
    world.resize(5)
    age(world, 19)
    world.run()
    assert world.sizes()[-1] == 10
    age(world, 21)
    world.run()
    assert world.sizes()[-1] == expected


def test_tr072_the_third_answer_is_enough():
    """MR-031: After twice the timeout, no fourth call is made for the old size."""
    world = failing("RESOURCE_EXHAUSTED", exhausted_is_final=True)
    for _ in range(3):
        world.run()
    world.resize(5)
    age(world, 21)
    world.run()
    assert world.sizes() == [10, 10, 10, 5]


def test_an_aborted_call_is_tried_again_soon():
    """MR-013, MA-014: Another call is in progress; five retries follow without doubling."""
    world = failing("ABORTED")
    for _ in range(5):
        assert world.run().cap_seconds == 1.0
    assert world.run().cap_seconds is None
