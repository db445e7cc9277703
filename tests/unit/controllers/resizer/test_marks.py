"""The state that is kept of a claim between two reconciles (MR-020, MR-050, DR-027)."""

from __future__ import annotations

import pytest

from csi_client import errors
from csi_client.errors import CsiError, NoStatusError
from workers.controllers.resizer import results
from workers.controllers.resizer.marks import Call, Marks
from workers.controllers.resizer.results import Result
from workers.deadlines import NONE, Deadline

NOW = 50_000.0
FILLING = len(str({"k": ""}))


def said(*events):
    """Return a state with these events, each a (text, age)."""
    marks = Marks()
    for text, age in events:
        marks = marks.saying("Reason", text, NOW - age)
    return marks


LAST = Deadline(9.5, 2.0, 1.0)


@pytest.mark.parametrize(
    ("call", "more"),
    [
        (Call("5", Result.FINAL, 7.0), {}),
        (Call("5", Result.FINAL, 7.0, exhausted=2), {"exhausted": 2}),
        (
            Call("5", Result.FINAL, 7.0, deadline=Deadline(9.5, 2.0, 1.0)),
            {"deadline": [9.5, 2.0, 1.0]},
        ),
        (Call("5", Result.FINAL, 7.0, overtaken=Deadline(8.5)), {"overtaken": [8.5, 0.0, 0.0]}),
        (Call("5", Result.FINAL, 7.0, parameters={}), {"parameters": {}}),
        (Call("5", Result.FINAL, 7.0, parameters={"a": "b"}), {"parameters": {"a": "b"}}),
    ],
)
def test_a_call_is_spelled_without_what_is_empty(call, more):
    """MR-020: Empty fields are left out, and reading returns an equal call."""
    data = {"target": "5", "result": "final", "at": 7.0} | more
    assert call.data() == data
    assert Call.parse(data) == call
    assert Marks(modify=call).data() == {"modify": data}
    assert Marks(expand=call, in_use=True).data() == {"expand": data, "in_use": True}


@pytest.mark.parametrize(("size", "is_kept"), [(8191, True), (8192, True), (8193, False)])
def test_dr027_parameters_that_are_too_large_are_not_kept(size, is_kept):
    """DR-027: At most 8 KiB of the state are for parameters."""
    parameters = {"k": "x" * (size - FILLING)}
    assert len(str(parameters)) == size
    data = Call("b", Result.UNCERTAIN, 7.0, parameters=parameters).data()
    assert ("parameters" in data) is is_kept


def test_dr027_parameters_are_as_large_as_redis_has_them():
    """DR-027: Multi-byte characters count in bytes, otherwise Redis would refuse the state."""
    parameters = {"k": "\u20ac" * 4000}
    assert "parameters" not in Call("b", Result.UNCERTAIN, 7.0, parameters=parameters).data()


@pytest.mark.parametrize(
    "data",
    [
        {"target": "5", "result": "final"},
        {"target": "5", "at": 7.0},
        {"result": "final", "at": 7.0},
        {"target": "5", "result": "unknown", "at": 7.0},
        {"target": "5", "result": "final", "at": "soon"},
        {"target": "5", "result": "final", "at": 7.0, "exhausted": "x"},
        {"target": "5", "result": "final", "at": 7.0, "parameters": "x"},
        "text",
        None,
    ],
)
def test_what_is_no_call_of_ours_is_nothing(data):
    """MR-021: Unreadable data counts as if Redis had lost it."""
    assert Call.parse(data) is None


def test_a_result_is_of_its_target_alone():
    """R-032, R-101: Nothing is known about another size or class."""
    call = Call("5", Result.FINAL, 7.0)
    marks = Marks(expand=call)
    assert (marks.expansion_of(5), marks.expansion_of(6)) == (call, None)
    assert (marks.expansion_of(None), marks.modification_of("5")) == (None, None)
    marks = Marks(modify=call)
    assert (marks.modification_of("5"), marks.modification_of("b")) == (call, None)
    assert marks.expansion_of(5) is None


def test_mr010_a_call_that_was_answered_is_waited_for_no_more():
    """MR-010: Earlier calls are still waited for."""
    call = Call("b", Result.UNCERTAIN, NOW, deadline=Deadline(9.0), overtaken=Deadline(5.0))
    assert call.deadlines == (Deadline(9.0), Deadline(5.0))
    assert call.answered().deadlines == (NONE, Deadline(5.0))


@pytest.mark.parametrize(
    ("age", "text", "expected"),
    [(0, "m", True), (599, "m", True), (600, "m", False), (0, "another", False)],
)
def test_mr050_the_same_event_is_quiet_for_ten_minutes(age, text, expected):
    """MR-050: Another text or another reason is another event."""
    marks = said(("m", age))
    assert marks.has_said("Reason", text, NOW) is expected
    assert not marks.has_said("Another", text, NOW)
    assert not Marks().has_said("Reason", text, NOW)


def test_mr050_what_was_said_long_ago_is_forgotten():
    """MR-050: Each event is stored once, and expired events are dropped."""
    marks = said(("old", 600), ("young", 599), ("again", 300))
    found = marks.saying("Reason", "again", NOW)
    assert [at for _, at in found.said] == [NOW - 599, NOW]
    assert found.has_said("Reason", "young", NOW)
    assert not found.has_said("Reason", "old", NOW)


def test_mr050_the_newest_sixteen_events_are_remembered():
    """The state stays small, whatever a driver answers."""
    marks = said(*((str(number), 20 - number) for number in range(20)))
    assert len(marks.said) == 16
    known = [number for number in range(20) if marks.has_said("Reason", str(number), NOW)]
    assert known == list(range(4, 20))


@pytest.mark.parametrize(
    ("said", "expected"),
    [([[1, 2.0], ["3", "4"]], ((1, 2.0), (3, 4.0))), ([[1]], ()), ([["x", 1]], ()), (7, ())],
)
def test_what_was_said_is_read_with_care(said, expected):
    """Unreadable entries in Redis are ignored."""
    assert Marks.parse({"said": said}).said == expected


@pytest.mark.parametrize(
    ("error", "expand", "modify", "in_use"),
    [
        (CsiError(errors.INVALID_ARGUMENT, "x"), "infeasible", "infeasible", False),
        (CsiError(errors.OUT_OF_RANGE, "x"), "infeasible", "final", False),
        (CsiError(errors.NOT_FOUND, "x"), "infeasible", "final", False),
        (CsiError(errors.INTERNAL, "x"), "final", "final", False),
        (CsiError(errors.FAILED_PRECONDITION, "x"), "final", "final", True),
        (
            CsiError(errors.FAILED_PRECONDITION, "x", from_transport=True, is_final=False),
            *("uncertain", "uncertain", False),
        ),
        (CsiError(errors.RESOURCE_EXHAUSTED, "x", is_final=True), "uncertain", "uncertain", False),
        (CsiError(errors.ABORTED, "x"), "uncertain", "uncertain", False),
        (NoStatusError("x"), "uncertain", "uncertain", False),
    ],
)
def test_r050_what_an_answer_means(error, expand, modify, in_use):
    """R-050, R-111, R-083: Only a call with an uncertain result may still run."""
    assert results.expand_result(error) == expand
    assert results.modify_result(error) == modify
    assert results.is_in_use(error) is in_use
    assert {one for one in Result if one.may_run} == {Result.UNCERTAIN}
