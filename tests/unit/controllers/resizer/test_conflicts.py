"""Conflicts of an expansion with writes of users, kubelet and other workers (section 11.3)."""

from __future__ import annotations

from tests.support.resizer_world import NAME, NAMESPACE, NODE_PENDING, ResizerWorld
from workers.kube.errors import ConflictError

STATUS = f"{NAME}/status"
CONFLICT = ConflictError(409, "Conflict", "the object has been modified")


def test_tr060_a_conflict_before_the_call_is_looked_at_anew():
    """DR-014, DR-028: It causes no failure and no event, and the user's change counts."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.api.before("patch", STATUS, lambda: world.resize(3))
    assert world.run().action.value == "done"
    assert world.sizes() == [3]
    assert world.reasons() == ["Resizing", "FileSystemResizeRequired"]


def test_tr061_a_conflict_after_the_call_is_written_again():
    """DR-014: csi-resizer calls the driver again and emits a warning."""
    world = ResizerWorld()
    label = {"metadata": {"labels": {"a": "b"}}}

    def edited(request):
        world.edit(label)
        return {
            "capacity_bytes": request.capacity_range.required_bytes,
            "node_expansion_required": True,
        }

    world.answers(edited)
    world.claim(2, 1)
    assert world.run().action.value == "done"
    assert world.sizes() == [2]
    assert world.state().part == NODE_PENDING
    assert world.seen["metadata"]["labels"] == {"a": "b"}
    assert world.reasons() == ["Resizing", "FileSystemResizeRequired"]


def test_conflicts_without_end_are_a_failure():
    """MR-040: After five tries the key backs off; the size stays pinned."""
    world = ResizerWorld()
    world.claim(2, 1)

    def crowd(request):
        world.api.fail("patch", STATUS, *[CONFLICT] * 5)
        return {"capacity_bytes": request.capacity_range.required_bytes}

    world.answers(crowd)
    assert world.run().action.value == "retry"
    assert world.messages()[-1].startswith(
        f'mark PVC "{NAMESPACE}/{NAME}" as resize finished failed: can\'t patch status of  PVC '
    )


def test_a_result_that_is_not_waited_for_any_more_is_dropped():
    """MR-040: The state that kubelet or another worker wrote is newer."""
    world = ResizerWorld()

    def overtaken(request):
        world.edit({"status": {"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}})
        return {
            "capacity_bytes": request.capacity_range.required_bytes,
            "node_expansion_required": True,
        }

    world.answers(overtaken)
    world.claim(2, 1)
    world.run()
    assert world.state().part == "NodeResizeInProgress"
