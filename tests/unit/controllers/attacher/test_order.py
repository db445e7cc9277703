"""The order of steps, locks, and the state that is kept (MA-010 to MA-032)."""

from __future__ import annotations

import hashlib
import time

import pytest

from tests.support.attach_world import AttachWorld
from workers.controllers.attacher import names
from workers.controllers.attacher.attach import AttachmentPass, attach
from workers.controllers.attacher.controller import CONTROLLER
from workers.kube import paths
from workers.observability import trail
from workers.queue.locks import Lock, Mode

SECRET = {"controllerPublishSecretRef": {"name": "secret", "namespace": "default"}}


@pytest.fixture
def world():
    world = AttachWorld()
    world.add_volume()
    return world


def fail(world, code, times=1):
    steps = [{"code": code, "message": "boom", "times": times}, {}]
    world.client.respond({"ControllerPublishVolume": steps})


def test_da020_unchanged_error_is_not_written_again(world):
    """DA-020: Otherwise thousands of failing attachments would starve the others."""
    fail(world, "INTERNAL", times=2)
    key = world.add_attachment()
    world.run(key)
    before = len(world.written)
    world.run(key)
    assert len(world.written) == before


def test_ma014_aborted_is_no_failure_at_first(world):
    """A-121, MA-014: The first interval is used five times; then the back-off starts."""
    fail(world, "ABORTED", times=7)
    key = world.add_attachment()
    outcomes = [world.run(key) for _ in range(6)]
    assert [one.action.value for one in outcomes] == ["wait"] * 5 + ["retry"]
    assert all(1.0 <= one.delay_seconds <= 1.5 for one in outcomes[:5])


def test_ma013_busy_volume_parks_the_key(world):
    """MA-010: The lock on the PV's name excludes creation, deletion and offline expansion."""
    world.queue.busy["pv1"] = Mode.EXCLUSIVE
    outcome = world.run(world.add_attachment())
    assert (outcome.action.value, outcome.lock) == ("blocked", Lock("pv1", Mode.SHARED))
    assert world.written == []


@pytest.mark.parametrize(
    ("modes", "is_blocked"), [(["ReadWriteOnce"], True), (["ReadWriteMany"], False)]
)
def test_ma011_calls_for_several_nodes(world, modes, is_blocked):
    """DA-022, MA-011: Only a volume that may be on several nodes allows parallel calls."""
    world.add_volume(modes=modes)
    world.queue.busy["csi/test#handle1"] = Mode.SHARED
    outcome = world.run(world.add_attachment())
    assert (outcome.action.value == "blocked") is is_blocked
    assert bool(world.calls) is not is_blocked


def test_i3_two_attachments_of_one_volume_and_node(world):
    """MA-060, I-3: The second one publishes after the first one's unpublish, not in parallel."""
    world.queue.busy["csi/test#handle1@nodeID1"] = Mode.EXCLUSIVE
    assert world.run(world.add_attachment()).action.value == "blocked"
    assert world.calls == []


@pytest.mark.parametrize("is_by_file", [False, True], ids=["flag", "drivers file"])
def test_ma010_limit_per_node(is_by_file):
    """MA-010: With one slot per node, a second call for that node waits."""
    world = AttachWorld(max_ops_per_node=0 if is_by_file else 1)
    world.per_node = {"attach": 1} if is_by_file else {}
    world.add_volume()
    world.queue.busy["csi/test@nodeID1#0"] = Mode.EXCLUSIVE
    assert world.run(world.add_attachment()).action.value == "blocked"
    assert world.calls == []


@pytest.mark.parametrize("is_strict", [True, False])
def test_ma012_next_node_waits_for_the_detach_from_the_last_one(is_strict):
    """MA-012: The driver need not refuse the call.

    After a long wait the error names the other node.
    """
    world = AttachWorld(is_strict_single_node=is_strict)
    world.add_volume(modes=["ReadWriteOnce"])
    world.add_attachment("pv1-node0", node="node0", is_marked=True, is_deleting=True)
    key = world.add_attachment()
    outcome = world.run(key)
    assert outcome.action.value == ("wait" if is_strict else "done")
    assert bool(world.calls) is not is_strict
    assert ("node0" in world.message()) is is_strict
    world.api.drop(paths.ATTACHMENTS, "pv1-node0")
    world.run(key)
    assert world.status() == {"attached": True}


def test_call_record_goes_with_the_call(world):
    """MA-016: Once the driver has answered, a later detach does not wait."""
    fail(world, "INTERNAL")
    key = world.add_attachment()
    world.run(key)
    assert "call" not in world.queue.marks[key.text]


def test_ma030_record_stands_in_the_attachment_too():
    """MA-030: The administrator chooses the annotation."""
    world = AttachWorld(record_annotation="example.org/record")
    world.add_volume(csi=SECRET)
    world.add_secret("secret", {"foo": "YmFy"})
    world.run(world.add_attachment())
    text = world.attachment()["metadata"]["annotations"]["example.org/record"]
    assert text == (
        '{"driver":"csi/test","handle":"handle1","node":"nodeID1","secret":["default","secret"]}'
    )


def test_mark_holds_no_secret(world):
    """The state in Redis names the secret but never contains its data."""
    world.add_volume(csi=SECRET)
    world.add_secret("secret", {"foo": "aHVzaA=="})
    key = world.add_attachment()
    world.run(key)
    assert "hush" not in str(world.queue.marks)
    assert world.queue.marks[key.text]["record"]["secret"] == ["default", "secret"]


def test_a022_name_of_an_attachment():
    """The attach/detach controller makes the name in this way; `volume.proven` relies on it."""
    digest = hashlib.sha256(b"handle1" + b"csi/test" + b"node1").hexdigest()
    key = names.attachment_key("csi/test", "node1", f"csi-{digest}", "u")
    assert key.object.partition("/")[2] == f"csi-{digest}"


def test_da023_deleted_attachment_is_left_to_the_other_lane(world):
    """DA-023: An attach never turns into a detach, which would delay other attaches."""
    key = world.add_attachment(is_marked=True)
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    outcome = world.sync(CONTROLLER, key)
    assert outcome.action.value == "done"
    assert world.calls == []
    assert world.queue.added == [
        (names.attachment_key("csi/test", *parts(key), kind=names.DETACHMENTS).text, 0.0)
    ]


def parts(key):
    node, name = key.object.split("/")
    return node, name, key.uid


def test_ma016_forced_publish_of_a_dead_worker(world):
    """MA-016: Its record is in the state of another key of the attachment, and counts anyway."""
    key = world.add_attachment(is_marked=True, attached=True)
    forced = names.attachment_key("csi/test", *parts(key), kind=names.FORCED)
    world.queue.marks[forced.text] = {"call": {"until": time.time() + 7}}
    world.queue.marks[key.text] = {"call": {"until": time.time() + 3}, "nodes": ["old"]}
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    outcome = world.run(key)
    assert outcome.action.value == "wait"
    assert 6 < outcome.delay_seconds <= 7


@pytest.mark.parametrize(
    ("codes", "is_alone"),
    [
        pytest.param(["DEADLINE_EXCEEDED"] * 3, True, id="three in a row"),
        pytest.param(["DEADLINE_EXCEEDED"] * 2, False, id="two"),
        pytest.param(
            ["DEADLINE_EXCEEDED"] * 2 + ["INTERNAL", "DEADLINE_EXCEEDED"], False, id="interrupted"
        ),
    ],
)
@pytest.mark.parametrize("is_deleting", [False, True], ids=["attach", "detach"])
def test_ma015_calls_that_time_out_share_one_place_of_their_node(
    world, codes, is_alone, is_deleting
):
    """MA-015: A dead node blocks only one call; any answer returns the slot."""
    steps = [*({"code": code, "message": "boom", "times": 1} for code in codes), {}]
    world.client.respond({"ControllerPublishVolume": steps, "ControllerUnpublishVolume": steps})
    key = world.add_attachment(is_marked=is_deleting, is_deleting=is_deleting)
    for _ in codes:
        world.run(key)
    world.queue.busy["csi/test@nodeID1#slow"] = Mode.EXCLUSIVE
    before = len(world.calls)
    outcome = world.run(key)
    assert (outcome.action.value == "blocked") is is_alone
    assert (len(world.calls) == before) is is_alone
    world.queue.busy.clear()
    world.run(key)
    assert len(world.calls) == before + 1
    assert "timeouts" not in world.queue.marks.get(key.text, {}) or is_deleting


@pytest.mark.parametrize(
    ("class_name", "seconds"), [("fast", [3.0, 4.0]), ("slow", [15.0, 15.0]), ("", [15.0, 15.0])]
)
def test_deadline_of_the_volumes_class(world, class_name, seconds):
    """A drivers file may set a timeout per class; otherwise `--timeout` applies."""
    own = {("attach", "fast"): 3.0, ("detach", "fast"): 4.0, ("attach", "other"): 9.0}
    world.driver.timeout_seconds = lambda operation, name="": own.get((operation, name))
    world.add_volume(**{"storageClassName": class_name} if class_name else {})
    key = world.add_attachment()
    world.run(key)
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    world.run(key)
    assert world.client.timeouts == seconds


@pytest.mark.parametrize("is_deleting", [False, True], ids=["attach", "detach"])
def test_each_failure_stands_in_the_trail(world, is_deleting):
    """`explain` builds its timeline from these errors, even if the status could not be written."""
    refusal = [{"code": "INTERNAL", "message": "boom", "times": 2}]
    world.client.respond(dict.fromkeys(("ControllerPublishVolume",), refusal))
    world.client.respond(dict.fromkeys(("ControllerUnpublishVolume",), refusal))
    key = world.add_attachment(is_marked=is_deleting, is_deleting=is_deleting)
    for _ in range(2):
        with trail.collect():
            world.run(key)
            notes = [one.partition(" ")[2] for one in trail.collected()]
        assert notes == ["error rpc error: code = Internal desc = boom"]


def test_ma016_a_forced_publish_leaves_no_call(world):
    """MA-016, A-095: No status shows its outcome, so the key's state does; the record stays."""
    key = world.add_attachment(is_marked=True, attached=True)
    assert world.force(key).reason == "attached"
    mark = world.queue.marks[names.attachment_key("csi/test", *parts(key), kind=names.FORCED).text]
    assert set(mark) == {"record"}


def test_a040_a_pass_is_plain_unless_it_is_forced(world):
    """A-040, A-095: By default no second publish is made."""
    key = world.add_attachment(is_marked=True, attached=True)
    lease, found = world.lease(key), world.attachment()
    plain = AttachmentPass(world.context, key, lease, paths.ATTACHMENTS, found, driver=world.driver)
    assert attach(plain).reason == "attached already"
    assert (plain.is_forced, plain.is_unsaved, plain.volume) == (False, False, None)
    assert world.calls == []
