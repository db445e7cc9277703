"""What is done about a claim's size: each row of R-020 to R-034, MR-031 and R-090."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.resizer_world import GIB, NAME, NAMESPACE, ResizerWorld, gib
from workers.controllers.resizer.claim import Size, read_claim, read_volume
from workers.controllers.resizer.decide import (
    Expand,
    Policy,
    Resizer,
    Skip,
    drops_pre_resize,
    expansion,
    is_ours,
)
from workers.controllers.resizer.marks import Call, Marks
from workers.controllers.resizer.results import Result

NOW = 50_000.0
EBS = "ebs.csi.aws.com"
PENDING = {"FileSystemResizePending": "waits"}
LATER = Skip("waits for the node")
PART_BEFORE = Skip("waits for the node to finish the part before")
RESTS = (
    f"skipping volume expansion for pvc {NAMESPACE}/{NAME}, because expansion previously failed "
    "with infeasible error"
)


def grow(size, *, is_new, is_legacy=False):
    return Expand(Size(size * GIB, gib(size)), is_new, is_legacy)


def views(*start, **fields):
    """Return a claim and volume of (spec, cap, alloc, ars, pvcap)."""
    world = ResizerWorld()
    world.claim(*start, **fields)
    return read_claim(world.seen), read_volume(world.stored)


def plan(start, *, call=None, policy=None, **fields):
    claim, volume = views(*start, **fields)
    return expansion(claim, volume, Marks(expand=call), policy or Policy(), NOW)


def called(size, result=Result.UNCERTAIN, age=0.0, exhausted=0):
    return Call(str(size * GIB), result, NOW - age, exhausted)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ((5, 3), grow(5, is_new=True)),
        ((5, 3, 3, "", 3), grow(5, is_new=True)),
        ((5, 3, 5, "", 3), grow(5, is_new=False)),
        ((5, 3, 10, "C-INF", 3), grow(5, is_new=True)),
        ((5, 3, 5, "C-INF", 3), grow(5, is_new=False)),
        ((5, 3, 10, "Unknown", 3), grow(5, is_new=True)),
        ((5, 3, 10, "C-IP", 3), grow(10, is_new=False)),
        ((5, 3, None, "C-IP", 3), grow(5, is_new=True)),
        ((10, 1, 3, "N-P", 2), grow(3, is_new=False)),
        ((10, 1, 3, "N-IP", 2), grow(3, is_new=False)),
        ((10, 1, 3, "N-P", 3), PART_BEFORE),
        ((10, 1, 3, "N-IP", 4), PART_BEFORE),
        ((10, 1, None, "N-P", 3), grow(10, is_new=True)),
        ((10, 1, 3, "N-INF", 2), grow(3, is_new=False)),
        ((10, 1, None, "N-INF", 2), grow(10, is_new=True)),
    ],
)
def test_r032_while_the_volume_is_smaller_than_wanted(start, expected):
    """R-032: A call that may still run comes first, then the size that the user wants now."""
    assert plan(start) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ((5, 3, 10, "N-P", 5), LATER),
        ((5, 3, 10, "N-IP", 10), LATER),
        ((5, 3, 10, "N-INF", 10), grow(10, is_new=False)),
        ((5, 3, None, "N-INF", 10), grow(5, is_new=True)),
        ((5, 3, 10, "C-IP", 10), grow(10, is_new=False)),
        ((5, 3, 10, "C-INF", 10), grow(10, is_new=False)),
        ((5, 3, None, "C-IP", 10), grow(5, is_new=True)),
        ((5, 3, 10, "", 10), grow(10, is_new=False)),
        ((5, 3, None, "", 5), grow(5, is_new=True)),
        ((5, 3, 10, "Unknown", 10), grow(5, is_new=True)),
    ],
)
def test_r033_once_the_volume_has_the_size(start, expected):
    """R-033: The node must continue, or the same size is requested again to update the claim."""
    assert plan(start) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ((5, 3, None, "", 5), LATER),
        ((5, 3, 10, "Unknown", 10), LATER),
        ((5, 3, None, "", 4), grow(5, is_new=True)),
        ((5, 3, 10, "", 10), grow(10, is_new=False)),
        ((5, 3, 10, "C-IP", 10), grow(10, is_new=False)),
    ],
)
def test_r033_an_old_api_server_has_a_condition_in_place_of_the_state(start, expected):
    """R-033, last row: The condition counts if no state is set."""
    assert plan(start, conditions=PENDING) == expected


def test_r033_with_the_trivial_resizer_a_lowered_size_counts():
    """R-072: No storage was expanded yet."""
    trivial = Policy(resizer=Resizer.TRIVIAL)
    assert plan((5, 3, 10, "N-INF", 10), policy=trivial) == grow(5, is_new=True)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(called(10), grow(10, is_new=False), id="uncertain"),
        pytest.param(called(10, Result.FINAL), grow(5, is_new=True), id="final"),
        pytest.param(called(10, Result.INFEASIBLE), grow(5, is_new=True), id="infeasible"),
        pytest.param(called(10, Result.UNSENT), grow(5, is_new=True), id="never sent"),
        pytest.param(called(7, Result.FINAL), grow(10, is_new=False), id="of another size"),
    ],
)
def test_mr020_what_is_known_of_the_last_call(call, expected):
    """I-2: The user's size follows only if the outcome of the last call is known."""
    assert plan((5, 3, 10, "C-IP", 3), call=call) == expected


@pytest.mark.parametrize(
    ("start", "call", "expected"),
    [
        pytest.param(
            (10, 3, 10, "C-INF", 3), called(10, Result.INFEASIBLE, 100), Skip(RESTS, 200.0), id="on"
        ),
        pytest.param(
            (10, 3, 10, "C-INF", 3),
            called(10, Result.INFEASIBLE, 300),
            grow(10, is_new=False),
            id="over",
        ),
        pytest.param((10, 3, 10, "C-INF", 3), None, grow(10, is_new=False), id="no mark"),
        pytest.param(
            (10, 3, 10, "C-INF", 3), called(10, Result.FINAL), grow(10, is_new=False), id="final"
        ),
        pytest.param(
            (10, 3, 10, "C-IP", 3),
            called(10, Result.INFEASIBLE),
            grow(10, is_new=False),
            id="the state was not written",
        ),
        pytest.param(
            (5, 3, 10, "C-INF", 3),
            called(5, Result.INFEASIBLE),
            grow(5, is_new=True),
            id="another size than the state is about",
        ),
    ],
)
def test_r034_only_the_size_that_was_infeasible_rests(start, call, expected):
    """R-034: Both the claim and the key's state must show this very size."""
    assert plan(start, call=call) == expected


@pytest.mark.parametrize(
    ("spec", "seconds", "call", "size"),
    [
        pytest.param(5, 20.0, called(10, age=20, exhausted=3), 5, id="three answers, long ago"),
        pytest.param(5, 20.0, called(10, age=20, exhausted=4), 5, id="four answers"),
        pytest.param(5, 20.0, called(10, age=20, exhausted=2), 10, id="two answers"),
        pytest.param(5, 20.0, called(10, age=19, exhausted=3), 10, id="too soon"),
        pytest.param(5, 20.0, None, 10, id="no mark"),
        pytest.param(5, 20.0, called(7, age=20, exhausted=3), 10, id="of another size"),
        pytest.param(12, 20.0, called(10, age=20, exhausted=3), 10, id="raised"),
        pytest.param(10.0, 20.0, called(10, age=20, exhausted=3), 10, id="spelt differently"),
        pytest.param(5, None, called(10, age=9999, exhausted=9), 10, id="not allowed"),
    ],
)
def test_mr031_when_a_full_storage_is_believed(spec, seconds, call, size):
    """MR-031: It takes three answers in a row, a lower size, and two timeouts without a call."""
    policy = Policy(exhausted_seconds=seconds)
    found = plan((spec, 3, 10, "C-IP", 3), call=call, policy=policy)
    assert found == grow(size, is_new=size == 5)


def test_mr031_without_an_allocated_size_there_is_nothing_to_give_up():
    policy = Policy(exhausted_seconds=20.0)
    assert plan((5, 3, None, "C-IP", 3), policy=policy) == grow(5, is_new=True)


@pytest.mark.parametrize(
    ("start", "conditions", "expected"),
    [
        ((2, 1), {}, grow(2, is_new=True, is_legacy=True)),
        ((2, 1, None, "", 2), {}, grow(2, is_new=True, is_legacy=True)),
        ((2, 1, None, "", 1), PENDING, grow(2, is_new=True, is_legacy=True)),
        ((2, 1, None, "", 2), PENDING, LATER),
        ((2, 1, None, "", 3), PENDING, LATER),
    ],
)
def test_r090_without_the_recovery_states(start, conditions, expected):
    """R-090: The node's part is pending if the volume has the size and the condition exists."""
    policy = Policy(recovers=False)
    assert plan(start, policy=policy, conditions=conditions) == expected


@pytest.mark.parametrize(
    ("start", "fields", "policy", "reason"),
    [
        ((2, 1), {}, Policy(resizer=Resizer.NONE), "the driver cannot expand volumes"),
        ((2, 1), {"phase": "Lost"}, None, "phase is Lost"),
        ((2, 1), {"phase": ""}, None, "phase is not set"),
        ((2, 2), {}, None, "large enough"),
        ((1, 2), {}, None, "large enough"),
    ],
)
def test_r020_why_nothing_is_done(start, fields, policy, reason):
    """R-020/5: `explain` and the logs show this reason."""
    assert plan(start, policy=policy, **fields) == Skip(reason)


@pytest.mark.parametrize(
    ("start", "call", "expected"),
    [
        ((5, 3), None, Skip("the claim is being deleted")),
        ((5, 3, 10, "C-IP", 3), None, grow(10, is_new=False)),
        ((5, 3, 10, "C-IP", 3), called(10), grow(10, is_new=False)),
        ((5, 3, 10, "C-IP", 3), called(10, Result.FINAL), Skip("the claim is being deleted")),
        ((5, 3, 10, "C-INF", 3), None, Skip("the claim is being deleted")),
    ],
)
def test_dr022_a_claim_that_goes_only_ends_what_may_run(start, call, expected):
    """DR-022: If the volume is being deleted too, not even that is done."""
    claim, volume = views(*start)
    claim, marks = replace(claim, is_deleting=True), Marks(expand=call)
    assert expansion(claim, volume, marks, Policy(), NOW) == expected
    volume = replace(volume, is_deleting=True)
    assert expansion(claim, volume, marks, Policy(), NOW) == Skip("the volume is being deleted")


@pytest.mark.parametrize(
    ("driver", "annotation", "source", "expected"),
    [
        pytest.param("csi/test", "", "csi/test", True, id="its csi volume"),
        pytest.param("csi/test", "", "other", False, id="another's"),
        pytest.param(EBS, EBS, "other", False, id="another's, annotated (DR-016)"),
        pytest.param("csi/test", "csi/test", None, False, id="in-tree, no driver of the table"),
        pytest.param(EBS, EBS, None, True, id="in-tree, migrated to it"),
        pytest.param(EBS, "", None, False, id="in-tree, not annotated"),
    ],
)
@pytest.mark.parametrize(
    ("reference", "is_named"),
    [({}, True), ({"claim_uid": "another"}, False), ({"claim_namespace": "another"}, False)],
)
def test_r021_whose_volume_it_is(driver, annotation, source, expected, reference, is_named):
    """R-021: The volume must be the driver's, and name the claim by namespace and UID."""
    claim, volume = views(2, 1)
    claim = replace(claim, resizer=annotation)
    volume = replace(volume, csi_driver=source or "", has_csi=source is not None, **reference)
    assert is_ours(claim, volume, driver) is (expected and is_named)


@pytest.mark.parametrize(
    ("cap", "note", "expected"),
    [(2, "1Gi", True), (3, "1Gi", True), (1, "1Gi", False), (2, None, False), (2, "", True)],
)
def test_r020_when_the_note_of_the_size_before_goes(cap, note, expected):
    """R-020/4: It is removed once the claim has the volume's size."""
    claim, volume = views(5, cap, None, "", 2)
    assert drops_pre_resize(claim, replace(volume, pre_resize=note)) is expected
