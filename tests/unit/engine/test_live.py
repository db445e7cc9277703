"""Helpers of a reconcile: live reads, writes that lose no change, calls that may still run."""

from __future__ import annotations

import pytest

from tests.support.fake_context import FakeWorld
from workers.deadlines import Deadline
from workers.engine.live import WRITE_TRIES, Gone, LivePass, OpenCalls
from workers.engine.outcome import Ended
from workers.kube import paths
from workers.kube.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from workers.queue.keys import Key
from workers.queue.leases import Session
from workers.queue.locks import Lock, Mode

FIN = "example.org/f"
PV = "persistentvolumes/pv"
CONFLICT = ConflictError(409, "Conflict", "the object has been modified")
UNSERVED = NotFoundError(404, "NotFound", "the server could not find the requested resource")


class Told(LivePass):
    component = "tester"


@pytest.fixture
def world():
    world = FakeWorld()
    world.api.add(paths.VOLUMES, {"metadata": {"name": "pv", "finalizers": ["x"]}, "spec": {}})
    return world


def live(world, uid=""):
    key = Key("volumes", "csi/test", "pv", uid)
    work = Told(world.context, key, world.lease(key), paths.VOLUMES)
    work.read()
    return work


def stored(world):
    return world.api.of(paths.VOLUMES, "pv")


def label(item):
    known = item["metadata"].get("labels") or {}
    return None if known.get("a") else {"metadata": {"labels": {"a": "b"}}}


def make_again(world):
    world.api.drop(paths.VOLUMES, "pv")
    world.api.add(paths.VOLUMES, {"metadata": {"name": "pv"}, "spec": {}})


def test_the_object_of_the_key_is_read(world):
    uid = stored(world)["metadata"]["uid"]
    assert live(world, uid).item["metadata"]["uid"] == uid
    assert live(world, "another").item == {}
    world.api.drop(paths.VOLUMES, "pv")
    assert live(world).read() is False


def test_a_kind_that_is_not_served_is_no_missing_object(world):
    work = live(world)
    world.api.fail("get", PV, UNSERVED)
    with pytest.raises(NotFoundError):
        work.read()


def test_a_write_is_decided_again_after_a_conflict(world):
    """Changes of other writers are kept, and a change that is already present is not repeated."""
    work = live(world)
    other = {"spec": {"storageClassName": "c"}}
    world.api.before("patch", PV, lambda: world.api.change(paths.VOLUMES, "pv", other))
    assert work.write("label", label) is True
    assert (work.item["metadata"]["labels"], work.item["spec"]) == (
        {"a": "b"},
        {"storageClassName": "c"},
    )
    assert work.write("label", label) is False
    assert world.steps.reached == ["label", "label"]


def test_what_others_wrote_already_is_no_write(world):
    work = live(world)
    same = label(stored(world))
    world.api.before("patch", PV, lambda: world.api.change(paths.VOLUMES, "pv", same))
    assert work.write("label", label) is False
    assert work.item == stored(world)
    assert work.write_status("status", lambda item: {"phase": "Bound"})[1] == stored(world)
    assert work.write_status("status", lambda _: None) is None


@pytest.mark.parametrize("conflicts", [WRITE_TRIES - 1, WRITE_TRIES])
def test_a_write_that_always_conflicts_fails(world, conflicts):
    work = live(world)
    world.api.fail("patch", PV, *[CONFLICT] * conflicts)
    if conflicts < WRITE_TRIES:
        assert work.write("label", label)
        return
    with pytest.raises(ConflictError):
        work.write("label", label)


@pytest.mark.parametrize("happens", ["gone", "made again", "made again, and the server says 422"])
@pytest.mark.parametrize("how", ["exact", "any version", "add", "remove"])
def test_no_newer_object_of_the_name_is_written(world, how, happens):
    work = live(world)

    def change():
        if happens == "gone":
            world.api.drop(paths.VOLUMES, "pv")
        else:
            make_again(world)
        if "422" in happens:
            raise InvalidError(422, "Invalid", "metadata.uid: Invalid value: field is immutable")

    writes = {
        "exact": lambda: work.write("label", label),
        "any version": lambda: work.write("label", label, is_exact=False),
        "add": lambda: work.add_finalizer(paths.VOLUMES, work.item, "finalizer", FIN),
        "remove": lambda: work.remove_finalizer(paths.VOLUMES, work.item, "finalizer", "x"),
    }
    world.api.before("patch", PV, change)
    with pytest.raises(Gone) as ended:
        writes[how]()
    assert ended.value.outcome.action.value == "done"
    assert "labels" not in ((stored(world) or {}).get("metadata") or {})


def test_a_refused_write_is_the_callers(world):
    work = live(world)
    world.api.fail("patch", PV, ForbiddenError(403, "Forbidden", "no"))
    with pytest.raises(ForbiddenError):
        work.write("label", label)
    world.api.fail("patch", PV, UNSERVED)
    with pytest.raises(NotFoundError):
        work.add_finalizer(paths.VOLUMES, work.item, "finalizer", FIN)


def test_finalizers_of_others_stay_in_one_request(world):
    """They appeared between read and write; the patch merges by value, so nothing conflicts."""
    work = live(world)
    other = {"metadata": {"finalizers": ["x", "y"]}}
    world.api.before("patch", PV, lambda: world.api.change(paths.VOLUMES, "pv", other))
    work.item = work.add_finalizer(work.resource, work.item, "add", FIN)
    assert work.item["metadata"]["finalizers"] == ["x", "y", FIN]
    work.item = work.remove_finalizer(work.resource, work.item, "remove", FIN)
    assert work.item["metadata"]["finalizers"] == ["x", "y"]
    assert [one.verb for one in world.api.writes] == ["patch", "patch"]
    work.remove_finalizer(work.resource, work.item, "remove", FIN)
    work.add_finalizer(work.resource, work.item, "add", "x")
    assert world.steps.reached == ["add", "remove"]


def test_a_busy_lock_ends_the_pass(world):
    work = live(world)
    world.queue.busy["pv"] = Mode.EXCLUSIVE
    with pytest.raises(Ended) as ended:
        work.acquire(Lock("pv"))
    assert ended.value.outcome.lock == Lock("pv")
    assert str(ended.value) == "pv is busy"


def test_a_mark_is_written_when_it_changes(world):
    work = live(world)
    for mark in ({"a": 1}, {"a": 1}, {}, {}):
        work.keep("mark", mark)
    assert world.steps.reached == ["mark", "mark"]


def test_an_event_names_its_object(world):
    live(world).event("Normal", "Done", "text")
    assert world.events.seen == [("Normal", "Done", "text")]
    assert world.events.objects[0]["kind"] == "PersistentVolume"


@pytest.mark.parametrize("overtaken", [0, 3.0, 4.0, 6.0])
@pytest.mark.parametrize("until", [0, 3.0, 4.0, 5.0])
def test_a_call_that_is_overtaken_is_waited_for(until, overtaken):
    """The earlier call is waited for, whatever the outcome of the later call is."""
    session = Session(clock=lambda: 4.0)
    before = OpenCalls.read(until, overtaken)
    calls = before.with_next(session, 3.0)
    assert calls.newest.until == 8.0
    assert calls.seconds_left(session) == 4.0
    assert calls.answered().seconds_left(session) == max(0.0, until - 4.0, overtaken - 4.0)
    assert calls.answered() == OpenCalls(earlier=before.may_run_until(session))


def test_unreadable_deadlines_are_none():
    assert not OpenCalls.read(None, "nonsense")
    assert OpenCalls.read(7.0, None).newest == Deadline(7.0)
