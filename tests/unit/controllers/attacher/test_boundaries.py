"""Limits of times, sizes and numbers: the last value on each side."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.support.attach_world import FIN, LISTS, NOW, AttachWorld
from workers.controllers.attacher import attach, compare
from workers.controllers.attacher.volume import AttachError
from workers.engine import live
from workers.kube import paths

START = datetime.fromisoformat(NOW)
HERE = {"volume_id": "handle1", "published_node_ids": ["nodeID1"]}


@pytest.mark.parametrize(("seconds", "is_told"), [(9, False), (10, False), (11, True)])
def test_ma012_the_first_ten_seconds_are_silent(monkeypatch, seconds, is_told):
    """MA-012: Most detaches end within that time, and an error would only alarm users."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return (START + timedelta(seconds=seconds)).astimezone(tz)

    monkeypatch.setattr(attach, "datetime", Clock)
    world = AttachWorld()
    world.add_volume(modes=["ReadWriteOnce"])
    world.add_attachment("pv1-node0", node="node0", is_marked=True, is_deleting=True)
    outcome = world.run(world.add_attachment())
    assert (outcome.action.value, outcome.delay_seconds) == ("wait", 1.0)
    assert outcome.reason == "waits for the detach from node node0"
    assert bool(world.message()) is is_told


@pytest.mark.parametrize(
    ("other", "is_waited_for"),
    [
        pytest.param({"is_marked": True, "is_deleting": True}, True, id="detach is due"),
        pytest.param({"is_marked": True, "attached": True}, False, id="stays attached"),
        pytest.param({"finalizers": ["x"], "is_deleting": True}, False, id="off its node already"),
        pytest.param(
            {"is_marked": True, "is_deleting": True, "node": "node1"}, False, id="the same node"
        ),
    ],
)
def test_ma012_what_is_waited_for(other, is_waited_for):
    """MA-012: Only a detach that is due is waited for; otherwise the driver decides."""
    world = AttachWorld()
    world.add_volume(modes=["ReadWriteOnce"])
    world.add_attachment("other", **{"node": "node0"} | other)
    outcome = world.run(world.add_attachment())
    assert (outcome.action.value == "wait") is is_waited_for
    assert bool(world.calls) is not is_waited_for


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_da017_an_attachment_holds_256_kib(excess):
    """DA-017: Keys and values count together, as in the API server."""
    world = AttachWorld()
    world.add_volume()
    context = {"k": "v" * (256 * 1024 - 1 + excess)}
    world.client.respond({"ControllerPublishVolume": [{"publish_context": context}]})
    outcome = world.run(world.add_attachment())
    assert outcome.action.value == ("retry" if excess > 0 else "done")
    assert world.status().get("attachmentMetadata") == (None if excess > 0 else context)


@pytest.mark.parametrize("length", [1023, 1024, 1025])
def test_da017_a_message_has_1024_bytes(length):
    """DA-017: A message within the limit stays whole."""
    text = "x" * length
    assert attach.cut(text) == (text if length <= 1024 else "x" * 1021 + "...")


@pytest.mark.parametrize("field", ["attachError", "detachError"])
@pytest.mark.parametrize(("seconds", "is_written"), [(0, False), (59, False), (60, True)])
def test_da020_an_unchanged_error_is_renewed_each_minute(field, seconds, is_written):
    """DA-020: After a minute only its time changes."""
    code = {"errorCode": 13} if field == "attachError" else {}
    known = {"message": "boom", "time": NOW, **code}
    attachment = {"metadata": {"uid": "u"}, "status": {field: known}}
    now = START + timedelta(seconds=seconds)
    error = AttachError("boom", code=13)
    body = attach.error_content(attachment, field, error, with_code=True, now=now)
    renewed = {"message": "boom", "time": now.strftime("%Y-%m-%dT%H:%M:%SZ"), **code}
    assert body == (renewed if is_written else None)


@pytest.mark.parametrize(
    ("known", "error"),
    [
        pytest.param({"message": "boom", "errorCode": 8}, AttachError("boom", code=13), id="code"),
        pytest.param({"message": "boom"}, AttachError("boom", code=13), id="first code"),
        pytest.param({"message": "boom", "errorCode": 13}, AttachError("boom"), id="no code"),
        pytest.param({"message": "old", "errorCode": 13}, AttachError("new", code=13), id="text"),
    ],
)
def test_da020_a_changed_error_is_written_at_once(known, error):
    """DA-020: A changed text or code is written at once."""
    attachment = {"metadata": {"uid": "u"}, "status": {"attachError": known | {"time": NOW}}}
    body = attach.error_content(attachment, "attachError", error, with_code=True, now=START)
    assert body is not None
    assert (body["message"], body["errorCode"]) == (error.message, error.code)


@pytest.mark.parametrize("time", [{"time": None}, {}])
def test_da020_an_error_without_a_time_is_old(time):
    """DA-020: Another program wrote it; the next error has a time."""
    known = {"message": "boom", "errorCode": 13} | time
    attachment = {"metadata": {"uid": "u"}, "status": {"attachError": known}}
    error = AttachError("boom", code=13)
    body = attach.error_content(attachment, "attachError", error, with_code=True, now=START)
    assert body is not None
    assert body["time"] == NOW


@pytest.mark.parametrize(
    ("found", "total", "is_wrong"),
    [
        pytest.param(20, 20, False, id="twenty are always believed"),
        pytest.param(21, 21, True, id="one more is not"),
        pytest.param(21, 210, False, id="a tenth of all is"),
        pytest.param(21, 209, True, id="more than a tenth is not"),
        pytest.param(30, 300, False, id="a tenth of many"),
        pytest.param(31, 300, True, id="more than a tenth of many"),
    ],
)
def test_ma040_how_many_differences_are_believed(found, total, is_wrong):
    """MA-040, DA-012: At most 10 percent are accepted, but always twenty and all of one node."""
    differing = [{"spec": {"nodeName": f"n{number % 2}"}} for number in range(found)]
    assert compare.are_too_many(differing, total) is is_wrong
    assert not compare.are_too_many([{"spec": {"nodeName": "n"}}] * found, total)


def test_fifty_attachments_are_read_one_by_one_each_object_once():
    """With one attachment more, all PVs and nodes are listed instead."""
    world = AttachWorld(capabilities=LISTS)
    world.add_volume()
    for number in range(50):
        world.add_attachment(f"va{number}", is_marked=True, attached=True)
    world.client.respond({"ListVolumes": [{"entries": [HERE]}]})
    world.compare()
    read = [one.path for one in world.api.requests]
    assert read == ["volumeattachments", "persistentvolumes/pv1", "csinodes/node1"]


def test_a_list_of_all_volumes_is_asked_for_no_single_one():
    """A PV that is not in the list does not exist."""
    world = AttachWorld(capabilities=LISTS)
    world.add_volume()
    world.add_attachment("lost", is_marked=True, source={"persistentVolumeName": "gone"})
    for number in range(50):
        world.add_attachment(f"va{number}", is_marked=True, attached=True)
    world.client.respond({"ListVolumes": [{"entries": [HERE]}]})
    world.compare()
    read = [one.path for one in world.api.requests]
    assert read == ["volumeattachments", "persistentvolumes", "csinodes"]


class Seconds:
    """A fake of the module `time` for the comparison; each page takes some time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("page_seconds", "is_read"), [(5.0, True), (5.5, False)])
def test_da010_time_for_all_pages_together(monkeypatch, page_seconds, is_read):
    """DA-010, A-113: After that time no further page is requested; the duration is reported."""
    clock = Seconds()
    for module in (compare, live):
        monkeypatch.setattr(module, "time", clock)
    world = AttachWorld(capabilities=LISTS, reconcile_timeout_seconds=10.0)
    world.add_volume()
    world.add_attachment(is_marked=True, attached=True)

    def page(request):
        clock.now += page_seconds
        token = {"": "2", "2": "3"}.get(request.starting_token, "")
        return {"entries": [HERE], "next_token": token}

    world.client.respond({"ListVolumes": [page]})
    assert world.compare().reason == ("0 differences" if is_read else "listing failed")
    pages = 3 if is_read else 2
    assert world.client.methods == ["ListVolumes"] * pages
    value = world.context.metrics.registry.get_sample_value
    name = "csi_fleet_attachments_compare_seconds_sum"
    assert value(name, {"driver_name": "csi/test"}) == pages * page_seconds


@pytest.mark.parametrize(
    ("known", "is_listed", "finding"),
    [
        pytest.param("nodeID1", True, "same", id="where the publish was sent"),
        pytest.param("nodeID1", False, "different", id="not there any more"),
        pytest.param(None, False, "skipped", id="nobody knows where"),
    ],
)
def test_a093_attachment_of_a_node_that_is_gone(known, is_listed, finding):
    """A-056, A-093: The node ID of its publish is compared; without one it is skipped."""
    world = AttachWorld(capabilities=LISTS, has_node=False)
    world.add_volume()
    world.add_attachment(attached=True, finalizers=[FIN], node_id=known)
    world.client.respond({"ListVolumes": [{"entries": [HERE] if is_listed else []}]})
    world.compare()
    value = world.context.metrics.registry.get_sample_value
    labels = {"driver_name": "csi/test"}
    findings = ("same", "different", "untold", "skipped")
    name = "csi_fleet_attachments_compared_total"
    counts = {one: value(name, labels | {"finding": one}) for one in findings}
    assert {one for one, count in counts.items() if count} == {finding}
    assert len(world.queue.added) == (finding == "different")
    assert world.api.of(paths.CSI_NODES, "node1") is None
