"""Which size is requested from the driver, and the claim's status afterwards (section 11.2)."""

from __future__ import annotations

import pytest

from tests.support.resizer_world import GIB, ResizerWorld, State
from workers.controllers.resizer.claim import read_claim, read_volume
from workers.controllers.resizer.decide import Expand, Policy, expansion
from workers.controllers.resizer.marks import Call, Marks
from workers.controllers.resizer.results import Result

FINAL = {"expand": Call("10737418240", Result.FINAL, 0.0).data()}
PENDING = {"FileSystemResizePending": "waits"}


@pytest.mark.parametrize(
    ("start", "sizes", "end"),
    [
        pytest.param((2, 1), [2], State(1, 2, "N-P", 2), id="TR-020 growth"),
        pytest.param((5, 3, 10, "C-INF", 3), [5], State(3, 5, "N-P", 5), id="TR-022 lowered"),
        pytest.param((5, 3, 10, "C-IP", 3), [10], State(3, 10, "N-P", 10), id="TR-024 pinned"),
        pytest.param((10, 1, 3, "N-P", 3), [], State(1, 3, "N-P", 3), id="TR-027 node first"),
        pytest.param((10, 1, 3, "N-IP", 3), [], State(1, 3, "N-IP", 3), id="TR-028 node at work"),
        pytest.param((10, 1, 3, "N-P", 2), [3], State(1, 3, "N-P", 3), id="TR-029 PV patch lost"),
        pytest.param((1, 1, 1, "N-P", 1), [], State(1, 1, "N-P", 1), id="TR-030 nothing wanted"),
        pytest.param((2, 1, 2, "N-INF", 2), [2], State(1, 2, "N-P", 2), id="TR-031 node failed"),
        pytest.param((5, 3, 10, "N-INF", 10), [10], State(3, 10, "N-P", 10), id="TR-032 real"),
        pytest.param((2, 1, 2, "C-IP", 2), [2], State(1, 2, "N-P", 2), id="TR-034 status lost"),
        pytest.param((2, 1, 2, "", 2), [2], State(1, 2, "N-P", 2), id="TR-035 no state"),
        pytest.param((2, 1, None, "", 2), [2], State(1, 2, "N-P", 2), id="TR-037 old API server"),
        pytest.param((10, 1, 3, "N-INF", 2), [3], State(1, 3, "N-P", 3), id="TR-038 node failed"),
        pytest.param((2, 1, 2, "FutureValue", 1), [2], State(1, 2, "N-P", 2), id="TR-039 unknown"),
    ],
)
def test_the_target_follows_the_recorded_state(start, sizes, end):
    """R-031, R-032, R-033, R-060: One reconcile of each state has the specified result."""
    world = ResizerWorld()
    world.claim(*start)
    world.run()
    assert world.sizes() == sizes
    assert world.state() == end.written()


def test_tr021_without_a_node_part_the_claim_is_done():
    """The claim has its size, no state is left, and an annotation keeps kubelet away."""
    world = ResizerWorld()
    world.answers({})
    world.claim(2, 1)
    world.run()
    assert world.state() == State(2, 2, "", 2)
    assert world.conditions() == {}
    assert world.annotation("volume.kubernetes.io/node-expansion-not-required") == "true"
    assert world.reasons() == ["Resizing", "VolumeResizeSuccessful"]


def test_tr020_the_node_part_is_announced():
    """A growth that kubelet finishes has these conditions and events."""
    world = ResizerWorld()
    world.claim(2, 1)
    outcome = world.run()
    assert outcome.action.value == "done"
    assert set(world.conditions()) == {"Resizing", "FileSystemResizePending"}
    assert world.conditions()["FileSystemResizePending"].startswith("Waiting for user to")
    assert world.reasons() == ["Resizing", "FileSystemResizeRequired"]


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        pytest.param({"node_expansion_required": True}, "N-P", id="TR-023 the new size"),
        pytest.param({"code": "FAILED_PRECONDITION"}, "C-IP", id="TR-025 refused again"),
        pytest.param({"code": "INVALID_ARGUMENT"}, "C-INF", id="TR-026 infeasible too"),
    ],
)
def test_a_size_that_failed_for_good_is_given_up(answer, part):
    """R-032: After a final error, the user's lowered size is requested at once."""
    world = ResizerWorld()
    world.answers(answer)
    world.claim(5, 3, 10, "C-IP", 3)
    world.queue.marks[world.key.text] = FINAL
    world.run()
    assert world.sizes() == [5]
    assert world.state().alloc == 5
    assert world.state().part == State(0, 0, part, 0).written().part
    assert ("ControllerResizeError" in world.conditions()) == ("code" in answer)


def test_tr033_the_trivial_resizer_follows_a_lowered_size():
    """R-042, R-072: Nothing changed in the storage, so the smaller size is right."""
    world = ResizerWorld(capabilities=(), node=("EXPAND_VOLUME",))
    world.claim(5, 3, 10, "N-INF", 10)
    world.run()
    assert world.client.methods == []
    assert world.state() == State(3, 5, "N-P", 5).written()


def test_tr036_an_old_api_server_shows_the_node_part_as_a_condition_alone():
    """R-033, last row: The condition counts as the state."""
    world = ResizerWorld()
    world.claim(2, 1, None, "", 2, conditions=PENDING)
    world.run()
    assert world.sizes() == []
    assert world.api.writes == []


def test_tr040_the_rest_follows_once_the_node_is_done():
    """R-071: The size was raised while the node was working.

    Then kubelet finished the first part.
    """
    world = ResizerWorld()
    world.claim(10, 1, 3, "N-IP", 3)
    world.run()
    assert world.sizes() == []
    world.edit({"status": {"capacity": {"storage": "3Gi"}, "allocatedResourceStatuses": None}})
    world.run()
    assert world.sizes() == [10]
    assert world.state() == State(3, 10, "N-P", 10).written()


def test_what_is_written_before_the_call_pins_the_size():
    """R-030, R-035, I-6: After a death during the call, the claim shows the size of that call."""
    world = ResizerWorld()
    before = []
    world.answers(lambda _: before.append(world.state()) or {"code": "UNAVAILABLE"})
    world.claim(2, 1, conditions={"ControllerResizeError": "old", "ModifyingVolume": "other"})
    world.run()
    assert before == [State(1, 2, "C-IP", 1).written()]
    assert set(world.conditions()) == {"Resizing", "ModifyingVolume"}


def test_marks_survive_their_spelling():
    """MR-020: State written to Redis is read back as it was; unreadable text is ignored."""
    call = Call("5", Result.UNCERTAIN, 7.5, exhausted=2, parameters={"a": "b"})
    marks = Marks(expand=call, in_use=True).saying("Resizing", "text", 9.0)
    assert Marks.parse(marks.data()) == marks
    assert Marks().data() == {}
    assert Marks.parse({"expand": {"target": 1}, "said": "x", "modify": 7}) == Marks()


@pytest.mark.parametrize(
    ("seconds", "is_asked"),
    [
        pytest.param(0.0, False, id="just refused"),
        pytest.param(299.0, False, id="the pause runs"),
        pytest.param(300.0, True, id="the pause is over"),
        pytest.param(-1.0, True, id="the clock was set back"),
    ],
)
def test_an_infeasible_size_rests_for_its_pause(seconds, is_asked):
    """R-034: A key that has waited for the whole pause does not wait again."""
    world = ResizerWorld()
    world.claim(10, 1, 10, "C-INF", 1)
    marks = Marks(expand=Call(str(10 * GIB), Result.INFEASIBLE, 1000.0))
    plan = expansion(
        read_claim(world.seen),
        read_volume(world.stored),
        marks,
        Policy(slow_seconds=300.0),
        1000.0 + seconds,
    )
    assert isinstance(plan, Expand) is is_asked
