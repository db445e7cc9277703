"""Which events need work (A-031), and which only echo csi-fleet's own writes (DA-009)."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.attach_world import FIN
from workers.controllers.attacher import names
from workers.controllers.attacher.rules import AttacherRules, is_another_kind
from workers.kube import paths
from workers.kube.objects import Attachment, CsiNode, Volume
from workers.spec import Forget

DRIVER = "csi/test"
RECORD = {
    "name": DRIVER,
    "queue_name": DRIVER,
    "plugin_capabilities": ["CONTROLLER_SERVICE"],
    "controller_capabilities": ["PUBLISH_UNPUBLISH_VOLUME"],
}
KEY = names.attachment_key(DRIVER, "node1", "va", "u1")
RELEASE = names.finalizer_key(DRIVER, "pv1")
DETACH = names.attachment_key(DRIVER, "node1", "va", "u1", kind=names.DETACHMENTS)
CREATED, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
FORGOTTEN = [Forget(key) for key in names.keys_of(DRIVER, "node1", "va", "u1")]


@pytest.fixture
def rules():
    rules = AttacherRules()
    rules.set_drivers([RECORD])
    return rules


def attachment(
    *, attached=False, finalizers=(), deleted=False, attacher=DRIVER, volume="pv1", **more
):
    meta = {"name": more.pop("name", "va"), "uid": more.pop("uid", "u1")}
    meta["finalizers"] = list(finalizers)
    meta["annotations"] = dict(more.pop("annotations", {}))
    meta["labels"] = dict(more.pop("labels", {}))
    meta["creationTimestamp"] = CREATED
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    source = {"persistentVolumeName": volume} if volume else {"inlineVolumeSpec": {}}
    spec = {"attacher": attacher, "nodeName": more.pop("node", "node1"), "source": source}
    status = {"attached": attached, **more}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Attachment)


def volume(*, finalizers=(FIN,), deleted=False, csi=True, annotations=None, created=CREATED):
    meta = {"name": "pv1", "finalizers": list(finalizers), "annotations": annotations or {}}
    meta["creationTimestamp"] = created
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"csi": {"driver": DRIVER}} if csi else {}
    return msgspec.convert({"metadata": meta, "spec": spec}, Volume)


def csi_node(*drivers, name="node1"):
    entries = [{"name": driver, "nodeID": "n"} for driver in drivers]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": entries}}, CsiNode)


def see(rules, item, *, is_listed=False):
    resource = {
        Attachment: paths.ATTACHMENTS,
        Volume: paths.VOLUMES,
        CsiNode: paths.CSI_NODES,
    }[type(item)]
    return list(rules.seen(resource, item, is_listed=is_listed))


def error(message, time="2026-01-01T00:00:00Z"):
    return {"attachError": {"message": message, "time": time}}


@pytest.mark.parametrize("is_listed", [False, True])
def test_new_attachment_is_work(rules, is_listed):
    """A-031: This includes the objects listed at the start."""
    assert see(rules, attachment(), is_listed=is_listed) == [KEY]


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(attachment(attached=True, finalizers=[FIN]), id="attached"),
        pytest.param(attachment(deleted=True), id="deleted, nothing published"),
        pytest.param(attachment(attacher="other"), id="another driver's"),
    ],
)
def test_ma003_settled_attachment_is_no_work(rules, item):
    """MA-001, MA-003: A resync adds no key for it either."""
    assert see(rules, item) == []
    assert list(rules.all_keys()) == []


@pytest.mark.parametrize(
    ("item", "key"),
    [
        pytest.param(attachment(attached=True), KEY, id="attached without our finalizer"),
        pytest.param(attachment(deleted=True, finalizers=[FIN]), DETACH, id="to be detached"),
        pytest.param(attachment(deleted=True, finalizers=[FIN], attached=True), DETACH, id="both"),
    ],
)
def test_unsettled_attachment_is_work(rules, item, key):
    """DA-023, DA-025, A-060: Detaches have their own driver queue."""
    assert see(rules, item) == [key]
    assert list(rules.all_keys()) == [key]


ANN = {names.NODE_ID: "n"}
EARLIER = ANN | {names.EARLIER_IDS: '["m"]'}


@pytest.mark.parametrize(
    "echo",
    [
        pytest.param(attachment(finalizers=[FIN], annotations=ANN), id="finalizer and node id"),
        pytest.param(attachment(finalizers=[FIN], annotations=EARLIER), id="earlier node ids"),
        pytest.param(attachment(**error("boom")), id="TA-116 error"),
        pytest.param(attachment(**error("boom", "2026-01-02T00:00:00Z")), id="TA-116 its time"),
    ],
)
def test_echo_of_our_own_write_is_no_work(rules, echo):
    """A-032, DA-009: A key would cut the back-off short or cause a second publish."""
    see(rules, attachment())
    assert see(rules, echo) == []
    assert list(rules.all_keys()) == [KEY]


@pytest.mark.parametrize(
    ("item", "key"),
    [
        pytest.param(attachment(labels={"a": "b"}, **error("boom")), KEY, id="TA-117 with a label"),
        pytest.param(attachment(annotations={"a": "b"}), KEY, id="TA-036 annotation"),
        pytest.param(attachment(finalizers=["x"]), KEY, id="finalizer of others"),
        pytest.param(attachment(finalizers=[FIN], deleted=True), DETACH, id="TA-068 deletion"),
    ],
)
def test_change_of_somebody_else_is_work(rules, item, key):
    """A-031: The key is added at once, during any back-off; the failure count stays."""
    see(rules, attachment())
    assert see(rules, item) == [key]


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(attachment(annotations=ANN, **error("boom")), id="the finalizer"),
        pytest.param(attachment(finalizers=[FIN], **error("boom")), id="the node id"),
    ],
)
def test_what_we_never_take_off_is_somebody_elses_change(rules, item):
    """A-031, A-032: Its removal cuts the back-off short, and it is written again."""
    see(rules, attachment(finalizers=[FIN], annotations=ANN, **error("boom")))
    assert see(rules, item) == [KEY]
    assert see(rules, item) == []


def test_ta115_resync_tries_what_fails(rules):
    """A-031: Each unsettled attachment gets a key, and no other."""
    see(rules, attachment(**error("boom")))
    assert list(rules.all_keys()) == [KEY]


def test_da004_deleted_attachment_is_forgotten(rules):
    """DA-004, DA-005, MA-041: The key's counters and state are dropped."""
    see(rules, attachment())
    assert list(rules.gone(paths.ATTACHMENTS, attachment())) == FORGOTTEN
    assert list(rules.all_keys()) == []


def test_deletion_that_was_missed(rules):
    """DA-029: A list without the attachment shows the deletion."""
    see(rules, attachment())
    rules.begin_list(paths.ATTACHMENTS)
    assert list(rules.end_list(paths.ATTACHMENTS)) == FORGOTTEN


def test_list_with_the_attachment_forgets_nothing(rules):
    see(rules, attachment())
    rules.begin_list(paths.ATTACHMENTS)
    assert see(rules, attachment(), is_listed=True) == []
    assert list(rules.end_list(paths.ATTACHMENTS)) == []


@pytest.mark.parametrize(
    "message",
    [
        'csinode.storage.k8s.io "node1" not found',
        "CSINode node1 does not contain driver csi/test",
    ],
)
def test_ta018_node_that_was_waited_for(rules, message):
    """DA-021: The key is added at once, not after up to five minutes."""
    see(rules, attachment(**error(message)))
    assert see(rules, csi_node("other")) == []
    assert see(rules, csi_node("other", DRIVER)) == [KEY]
    assert see(rules, csi_node("other", DRIVER)) == []


def test_node_that_nobody_waited_for(rules):
    """A-031: Most CSINode events change nothing, because the driver was already there."""
    see(rules, csi_node(DRIVER), is_listed=True)
    see(rules, attachment(**error("boom")))
    assert see(rules, csi_node(DRIVER, "other")) == []


@pytest.mark.parametrize("way", ["lost its driver", "gone", "not listed"])
def test_driver_that_comes_back_on_its_node(rules, way):
    """DA-021: The reason and the text of the attachment's error do not matter."""
    see(rules, csi_node(DRIVER), is_listed=True)
    see(rules, attachment(**error("boom")))
    if way == "lost its driver":
        assert see(rules, csi_node("other")) == []
    elif way == "gone":
        assert list(rules.gone(paths.CSI_NODES, csi_node(DRIVER))) == []
    else:
        rules.begin_list(paths.CSI_NODES)
        assert list(rules.end_list(paths.CSI_NODES)) == []
    assert see(rules, csi_node(DRIVER)) == [KEY]


def test_attachment_that_was_not_tried_yet_needs_no_wake(rules):
    """Its key is queued already."""
    see(rules, attachment())
    assert see(rules, csi_node(DRIVER)) == []
    assert see(rules, volume(finalizers=(), created=LATER)) == []


@pytest.mark.parametrize("message", ['persistentvolume "pv1" not found', "another program's words"])
def test_da021_volume_that_was_waited_for(rules, message):
    """DA-021: The volume is younger than the attachment, which was therefore waiting for it."""
    see(rules, attachment(**error(message)))
    assert see(rules, volume(finalizers=(), created=LATER)) == [KEY]


@pytest.mark.parametrize("way", ["attached", "gone", "not listed"])
@pytest.mark.parametrize(
    ("message", "event"),
    [
        pytest.param('csinode.storage.k8s.io "node1" not found', csi_node(DRIVER), id="node"),
        pytest.param(
            'persistentvolume "pv1" not found',
            volume(finalizers=(), created=LATER),
            id="volume",
        ),
    ],
)
def test_who_waits_no_more_is_not_waked(rules, message, event, way):
    """DA-021: An attachment that still waits gets its key."""
    other = attachment(name="vb", **error(message))
    see(rules, attachment(**error(message)))
    see(rules, other)
    if way == "attached":
        see(rules, attachment(attached=True, finalizers=[FIN]))
    elif way == "gone":
        rules.gone(paths.ATTACHMENTS, attachment())
    else:
        rules.begin_list(paths.ATTACHMENTS)
        see(rules, other, is_listed=True)
        rules.end_list(paths.ATTACHMENTS)
    assert see(rules, event) == [names.attachment_key(DRIVER, "node1", "vb", "u1")]


def test_our_own_write_of_the_volume_wakes_nobody(rules):
    """Otherwise a failed attach would be retried at once."""
    see(rules, attachment(**error("boom")))
    assert see(rules, volume()) == []


@pytest.mark.parametrize(
    ("item", "is_work"),
    [
        pytest.param(volume(deleted=True), True, id="deleted"),
        pytest.param(volume(), False, id="stays"),
        pytest.param(volume(deleted=True, finalizers=["x"]), False, id="not ours"),
        pytest.param(volume(csi=False), True, id="in-tree, not migrated"),
        pytest.param(
            volume(csi=False, annotations={"pv.kubernetes.io/migrated-to": DRIVER}),
            False,
            id="in-tree, migrated to us",
        ),
    ],
)
def test_volumes_that_may_lose_the_finalizer(rules, item, is_work):
    """A-031, A-067: A PV gets a key if it is deleted, or if it is in-tree and not migrated."""
    assert see(rules, item) == ([RELEASE] if is_work else [])
    assert list(rules.all_keys()) == ([RELEASE] if is_work else [])


@pytest.mark.parametrize("attacher", [DRIVER, "other"])
def test_end_of_an_attachment_lets_its_volume_go(rules, attacher):
    """A-031: The driver of the attachment does not matter."""
    item = attachment(attacher=attacher, attached=True, finalizers=[FIN])
    see(rules, item)
    see(rules, volume(deleted=True))
    assert RELEASE in list(rules.gone(paths.ATTACHMENTS, item))


def test_end_of_an_attachment_that_was_missed(rules):
    """After a gap the worker checks each volume that waits."""
    see(rules, volume(deleted=True))
    rules.begin_list(paths.ATTACHMENTS)
    assert list(rules.end_list(paths.ATTACHMENTS)) == [RELEASE]


def test_volume_that_is_gone_is_forgotten(rules):
    see(rules, volume(deleted=True))
    assert list(rules.gone(paths.VOLUMES, volume(deleted=True))) == [Forget(RELEASE)]
    assert list(rules.all_keys()) == []


def test_volume_that_went_during_a_gap(rules):
    see(rules, volume(deleted=True))
    rules.begin_list(paths.VOLUMES)
    assert list(rules.end_list(paths.VOLUMES)) == [Forget(RELEASE)]


def test_inline_attachment_has_no_volume(rules):
    """A-023: No PV needs a key after its deletion."""
    item = attachment(volume="")
    assert see(rules, item) == [KEY]
    assert list(rules.gone(paths.ATTACHMENTS, item)) == FORGOTTEN


@pytest.fixture
def trivial():
    rules = AttacherRules()
    rules.set_drivers([RECORD | {"controller_capabilities": []}])
    return rules


@pytest.mark.parametrize(
    ("item", "keys"),
    [
        pytest.param(attachment(), [KEY], id="not attached"),
        pytest.param(attachment(attached=True), [], id="attached"),
        pytest.param(attachment(deleted=True), [DETACH], id="deleted, not attached"),
        pytest.param(attachment(attached=True, deleted=True), [], id="deleted"),
        pytest.param(
            attachment(attached=True, deleted=True, finalizers=[FIN]), [DETACH], id="left finalizer"
        ),
    ],
)
def test_a075_driver_that_cannot_attach(trivial, item, keys):
    """A-075, DA-008: Only a missing status or a leftover finalizer needs work."""
    assert see(trivial, item) == keys


def test_driver_that_learned_to_attach_is_listed_again():
    """Otherwise attachments that were settled under the old capabilities would be missed."""
    other = RECORD | {"controller_capabilities": []}
    assert is_another_kind([other], [RECORD])
    assert not is_another_kind([RECORD], [RECORD])
    assert not is_another_kind([RECORD, other | {"name": "x"}], [RECORD])


def test_ma015_queue_is_fair_between_nodes():
    """MA-015: The node is the part of the key that the queue uses as tenant."""
    assert KEY.tenant == "node1"
    assert KEY.object.partition("/")[2] == "va"


def test_ma003_what_settled_waits_no_more(rules):
    """Neither a resync nor an event of its node or volume adds its key."""
    see(rules, attachment())
    assert list(rules.all_keys()) == [KEY]
    see(rules, attachment(attached=True, finalizers=[FIN]))
    assert list(rules.all_keys()) == []


NO_NODE = 'csinode.storage.k8s.io "node1" not found'
NO_VOLUME = 'persistentvolume "pv1" not found'


@pytest.mark.parametrize(
    ("message", "before", "now"),
    [
        pytest.param(NO_NODE, csi_node(DRIVER), csi_node(DRIVER, name="node2"), id="node"),
        pytest.param(NO_VOLUME, volume(finalizers=(), created=LATER), None, id="volume"),
    ],
)
def test_attachment_made_again_for_another_node_and_volume(rules, message, before, now):
    """DA-004, DA-021: It does not wait for the node and the volume of the former attachment."""
    see(rules, attachment(**error(message)))
    again = attachment(uid="u2", node="node2", volume="pv2", **error(message))
    key = names.attachment_key(DRIVER, "node2", "va", "u2")
    told = see(rules, again)
    assert told[-1] == key
    assert {one.key.uid for one in told[:-1]} == {KEY.uid}, "its marks and counters go"
    assert see(rules, before) == []
    assert now is None or see(rules, now) == [key]
    assert rules.counts() == {"attachments": 1, "attach-finalizers": 0}


@pytest.mark.parametrize(
    ("ways", "told"),
    [
        pytest.param([True], [True], id="listed at the start"),
        pytest.param([True, True], [True, False], id="listed again"),
        pytest.param([False, True], [True, False], id="seen, then listed"),
        pytest.param([False, False], [True, True], id="each event"),
        pytest.param([True, False], [True, True], id="listed, then an event"),
    ],
)
def test_volume_that_waits_is_told_by_events_and_new_lists(rules, ways, told):
    """A-031: Its own event may be the first; a list that repeats it adds no key."""
    found = [see(rules, volume(deleted=True), is_listed=one) for one in ways]
    assert found == [[RELEASE] if one else [] for one in told]
    assert rules.counts() == {"attachments": 0, "attach-finalizers": 1}


def test_volume_of_a_queue_with_another_name_is_told_again(rules):
    """The driver returned with another queue name, so no worker takes the old key."""
    see(rules, volume(deleted=True))
    rules.set_drivers([RECORD | {"queue_name": "other"}])
    key = names.finalizer_key("other", "pv1")
    assert see(rules, volume(deleted=True), is_listed=True) == [key]
    assert list(rules.all_keys()) == [key]


def test_the_end_of_a_list_of_nodes_tells_nothing(rules):
    """No attachment and no volume is deleted with a node."""
    see(rules, attachment())
    see(rules, volume(deleted=True))
    rules.begin_list(paths.CSI_NODES)
    see(rules, csi_node(DRIVER), is_listed=True)
    assert list(rules.end_list(paths.CSI_NODES)) == []
    assert list(rules.gone(paths.CSI_NODES, csi_node(DRIVER))) == []
    assert list(rules.all_keys()) == [KEY, RELEASE]
