"""A ControllerPublishVolume with unknown outcome, followed by a later one (MA-016, I-1, I-4).

The detach waits for the deadline of each such call. A publish that ends later would leave the
volume on a node without an attachment, and no worker would detach it (A-096).
"""

from __future__ import annotations

from typing import Any

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.attach_world import AttachWorld
from tests.support.fake_context import Death
from workers.errors import DriverAway, LeaseLost
from workers.kube import paths

UNHEARD = [
    pytest.param(Death("publish"), id="the worker dies"),
    pytest.param(DriverAway("socket closed"), id="the connection breaks"),
    pytest.param(LeaseLost("cancelled: others may work now"), id="the Lease is lost"),
]


def begins_unheard(world: AttachWorld, end: BaseException) -> Any:
    """Send a publish whose caller gets no answer; return a function that ends it at the driver."""
    world.add_volume(finalizers=["x"])
    key = world.add_attachment()
    client, call = world.client, world.client.call
    out: list[tuple[Any, ...]] = []

    def begun(method: str, request: Any, answer: Any, **_: Any) -> Any:
        out.append((method, request, answer))
        raise end

    client.call = begun  # type: ignore[method-assign]
    with pytest.raises(type(end)):
        world.run(key)
    client.call = call  # type: ignore[method-assign]
    return key, lambda: call(*out[0])


@pytest.mark.parametrize("end", UNHEARD)
def test_ma016_the_detach_waits_for_a_publish_that_another_overtook(end):
    """The second publish ends and its status shows that, but the first one may still run."""
    world = AttachWorld()
    key, ends = begins_unheard(world, end)
    assert world.run(key).action.value == "done"
    assert world.attachment()["status"]["attached"] is True
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    outcome = world.run(key)
    ends()  # within its deadline
    assert not (world.is_gone() and world.client.published["handle1"]), "nobody takes it off again"
    assert outcome.action.value == "wait"


def test_ma016_an_answer_to_the_next_call_does_not_end_the_first():
    """The second publish is refused; that ends only this call, not the first one."""
    world = AttachWorld()
    key, ends = begins_unheard(world, Death("publish"))
    world.client.respond({"ControllerPublishVolume": [{"code": "INTERNAL"}, {}]})
    assert world.run(key).action.value == "retry"
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    outcome = world.run(key)
    ends()
    assert not (world.is_gone() and world.client.published["handle1"]), "nobody takes it off again"
    assert outcome.action.value == "wait"


def test_ma016_a_broken_stream_is_no_end_of_a_publish():
    """The status is the transport's.

    The driver answered nothing and may still work (csi_client).
    """
    world = AttachWorld()
    broken = CsiError(
        errors.UNKNOWN, "Stream removed", from_transport=True, is_final=False, rpc="/x"
    )
    world.add_volume(finalizers=["x"])
    key = world.add_attachment()
    world.client.respond({"ControllerPublishVolume": [broken, {}]})
    assert world.run(key).action.value == "retry"
    request = world.client.requests("ControllerPublishVolume")[0]
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    outcome = world.run(key)
    world.client.published.setdefault("handle1", set()).add(request.node_id)  # it ends
    assert not world.is_gone(), "unpublished while the first publish may run"
    assert outcome.action.value == "wait"
