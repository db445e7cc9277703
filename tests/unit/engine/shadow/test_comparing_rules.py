"""Rare cases of a comparison: errors that existed before, objects being deleted, quantities."""

from __future__ import annotations

import pytest

from workers.engine.shadow.comparing import UNKNOWN, Verdict, compare, leaves

PV = "/api/v1/persistentvolumes/pvc-1"
VA = "/apis/storage.k8s.io/v1/volumeattachments/va"
ERROR, OTHER = {"message": "no"}, {"message": "still no"}


def attachment(status=None, **metadata):
    body = {"metadata": {"name": "va", "uid": "u", **metadata}, "spec": {}}
    return body if status is None else {**body, "status": status}


@pytest.mark.parametrize("field", ["attachError", "detachError", "error"])
@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        pytest.param({}, ERROR, Verdict.FAILED, id="a new one"),
        pytest.param(ERROR, OTHER, Verdict.FAILED, id="another one"),
        pytest.param(ERROR, ERROR, Verdict.WAITS, id="that of before"),
        pytest.param(ERROR, {}, Verdict.WAITS, id="it went"),
        pytest.param(None, ERROR, Verdict.FAILED, id="the first status"),
        pytest.param(None, None, Verdict.WAITS, id="no status at all"),
    ],
)
def test_only_a_new_error_says_that_the_driver_failed(field, before, now, verdict):
    """An earlier error says nothing about this attempt, in which the shadow calls no driver."""

    def of(error):
        return None if error is None else {field: error} if error else {}

    base, live = attachment(of(before)), attachment(of(now))
    wanted = attachment({"attached": True})
    assert compare(VA, base, wanted, live)[0] is verdict


GOING = {"deletionTimestamp": "t"}


@pytest.mark.parametrize(
    ("base", "wanted", "live", "verdict"),
    [
        ({}, GOING, {}, Verdict.WAITS),
        ({}, GOING, GOING, Verdict.AGREES),
        ({}, GOING, None, Verdict.AGREES),
        ({}, {**GOING, "labels": {"a": "b"}}, GOING, Verdict.AGREES),
        (GOING, {**GOING, "labels": {"a": "b"}}, GOING, Verdict.WAITS),
        (GOING, {**GOING, "labels": {"a": "b"}}, {**GOING, "labels": {"a": "b"}}, Verdict.AGREES),
        (GOING, {**GOING, "labels": {"a": "b"}}, None, Verdict.GONE),
    ],
)
def test_a_deletion_is_foreseen_once(base, wanted, live, verdict):
    """For an object that was already being deleted, its other fields are compared."""
    live = None if live is None else attachment(**live)
    assert compare(VA, attachment(**base), attachment(**wanted), live)[0] is verdict


def volume(**spec):
    return {"metadata": {"name": "pvc-1"}, "spec": spec}


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ({"capacity": {"storage": "1Gi"}}, {"capacity": {"storage": "1024Mi"}}, Verdict.AGREES),
        ({"capacity": {"storage": "1Gi"}}, {"capacity": {"storage": "1025Mi"}}, Verdict.AGREES),
        ({"capacity": {"storage": "1Gi"}}, {"capacity": {"storage": "1023Mi"}}, Verdict.DIFFERS),
        ({"capacity": {"storage": "1Gi"}}, {}, Verdict.DIFFERS),
        ({}, {"capacity": {"storage": "1Gi"}}, Verdict.DIFFERS),
        ({"disk": {"name": f"x-{UNKNOWN}-y"}}, {"disk": {"name": "z"}}, Verdict.AGREES),
        ({"disk": {"name": f"x-{UNKNOWN}-y"}}, {}, Verdict.DIFFERS),
        ({"volumeMode": "Filesystem"}, {}, Verdict.AGREES),
        ({}, {"volumeMode": "Filesystem"}, Verdict.AGREES),
        ({}, {"volumeMode": "Block"}, Verdict.DIFFERS),
        ({"empty": {}, "none": None, "text": "", "list": []}, {}, Verdict.AGREES),
        ({"flag": False}, {}, Verdict.DIFFERS),
        ({"number": 0}, {}, Verdict.DIFFERS),
    ],
)
def test_when_two_values_are_the_same(ours, theirs, verdict):
    """The driver may add fields, its own must be present, and defaults may be omitted."""
    assert compare(PV, None, volume(**ours), volume(**theirs))[0] is verdict


def test_values_by_their_place():
    """List members are named by type, name or uid, whichever comes first, or else by number."""
    value = {
        "a": {"b": 1},
        "conditions": [{"type": "T", "name": "n", "x": 1}],
        "names": [{"name": "n", "x": 2}, {"x": 3}],
        "plain": ["p"],
    }
    assert dict(leaves(value)) == {
        "a.b": 1,
        "conditions[T].type": "T",
        "conditions[T].name": "n",
        "conditions[T].x": 1,
        "names[n].name": "n",
        "names[n].x": 2,
        "names[1].x": 3,
        "plain[p]": "p",
    }
