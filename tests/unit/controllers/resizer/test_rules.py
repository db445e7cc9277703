"""Which events add keys of which claims (sections 2 and 13)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from workers.controllers.resizer.rules import ResizerRules
from workers.controllers.resizer.spec import SPEC
from workers.kube import paths
from workers.kube.objects import Attachment, AttributesClass, Claim, Volume
from workers.queue.keys import Key
from workers.spec import Forget

DRIVER, EBS = "csi/test", "ebs.csi.aws.com"
NOTE = "volume.alpha.kubernetes.io/pre-resize-capacity"
RESIZER = "volume.kubernetes.io/storage-resizer"
KEY = Key("changes", DRIVER, "shop/data", "u1")
OTHER_KEY = Key("changes", EBS, "shop/data", "u1")


def record(name, *capabilities):
    return {
        "name": name,
        "queue_name": name,
        "controller_capabilities": capabilities,
        "in_tree_name": "kubernetes.io/aws-ebs" if name == EBS else None,
    }


def claim(spec="2Gi", cap="1Gi", *, uid="u1", name="data", annotations=None, **changes):
    status = {"phase": "Bound", "capacity": {"storage": cap}} | changes.pop("status", {})
    body = {
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": uid,
            "resourceVersion": "1",
            "annotations": annotations,
        },
        "spec": {"volumeName": "pv", "resources": {"requests": {"storage": spec}}, **changes},
        "status": status,
    }
    return msgspec.convert(body, Claim)


def volume(driver=DRIVER, *, name="pv", note=None, capacity="1Gi"):
    body = {
        "metadata": {"name": name, "annotations": {NOTE: note} if note else None},
        "spec": {
            "csi": {"driver": driver} if driver else None,
            "capacity": {"storage": capacity},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u1"},
        },
    }
    return msgspec.convert(body, Volume)


class Told:
    """The rules, and what they return for each event."""

    def __init__(self, *drivers):
        self.rules = ResizerRules()
        found = drivers or (record(DRIVER, "EXPAND_VOLUME", "MODIFY_VOLUME"),)
        self.rules.set_drivers(found)

    def claim(self, item: Claim, *, is_listed: bool = False) -> list[Any]:
        return list(self.rules.seen(paths.CLAIMS, item, is_listed=is_listed))

    def volume(self, item: Volume, *, is_listed: bool = False) -> list[Any]:
        return list(self.rules.seen(paths.VOLUMES, item, is_listed=is_listed))


@pytest.fixture
def told():
    found = Told()
    found.volume(volume())
    return found


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(claim("1Gi", "1Gi"), [], id="TR-001 as wanted"),
        pytest.param(claim("1Gi", "1024Mi"), [], id="TR-015 spelt differently"),
        pytest.param(claim(), [KEY], id="TR-020 too small"),
        pytest.param(claim(status={"phase": "Pending"}), [], id="TR-007 unbound"),
        pytest.param(claim(volumeName=""), [], id="TR-003 no volume"),
        pytest.param(claim("1Gi", volumeAttributesClassName="b"), [KEY], id="TR-121 another class"),
        pytest.param(claim("1Gi", volumeAttributesClassName=""), [], id="TR-120 no class"),
        pytest.param(
            claim("1Gi", status={"modifyVolumeStatus": {"status": "InProgress"}}),
            [KEY],
            id="TR-128 a class at work",
        ),
        pytest.param(claim("nonsense"), [], id="what nobody can read"),
    ],
)
def test_only_claims_with_work_are_queued(told, item, expected):
    """MR-002: At the start every claim of the cluster is listed."""
    assert told.claim(item, is_listed=True) == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(claim(annotations={"a": "b"}), [], id="TR-009 only metadata"),
        pytest.param(claim("5Gi"), [KEY], id="TR-010 another size"),
        pytest.param(claim(cap="1500Mi"), [KEY], id="TR-011 cap grew"),
        pytest.param(
            claim(status={"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}),
            [KEY],
            id="TR-012 kubelet gave up",
        ),
        pytest.param(claim(annotations={RESIZER: DRIVER}), [KEY], id="TR-013 the annotation"),
        pytest.param(
            claim(
                status={
                    "allocatedResources": {"storage": "2Gi"},
                    "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
                    "conditions": [{"type": "Resizing", "status": "True"}],
                }
            ),
            [],
            id="TR-014 our own writes",
        ),
        pytest.param(claim(volumeAttributesClassName="b"), [KEY], id="TR-126 another class"),
    ],
)
def test_what_users_and_kubelet_change_wakes_and_echoes_do_not(told, item, expected):
    """R-010, R-013, DR-008: The resizer's own writes add no key."""
    told.claim(claim())
    assert told.claim(item) == expected


FAILED_SIZE = {"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}}
FAILED_CLASS = {
    "modifyVolumeStatus": {"status": "Infeasible", "targetVolumeAttributesClassName": "b"}
}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(FAILED_SIZE, {}, [KEY], id="TR-012 the expansion's"),
        pytest.param(FAILED_CLASS, {}, [KEY], id="R-013 the modification's"),
        pytest.param(FAILED_SIZE | FAILED_CLASS, FAILED_SIZE, [KEY], id="one of both"),
        pytest.param(
            FAILED_CLASS,
            {"currentVolumeAttributesClassName": "b"},
            [],
            id="DR-008 our own success, while the size waits",
        ),
        pytest.param({}, FAILED_SIZE | FAILED_CLASS, [], id="DR-008 our own failure"),
    ],
)
def test_tr012_a_state_that_somebody_takes_away_wakes(told, before, now, expected):
    """R-010, R-013: An administrator can thereby cause a retry before the back-off ends."""
    wanted = {"volumeAttributesClassName": "b"}
    told.claim(claim(status=before, **wanted))
    assert told.claim(claim(status=now, **wanted)) == expected
    assert told.claim(claim(status=now, **wanted)) == []


def test_tr004_tr142_a_volume_that_arrives_wakes_its_claim():
    """R-011, DR-011, DR-019: The order of claim and volume does not matter."""
    told = Told()
    assert told.claim(claim()) == []
    assert told.volume(volume()) == [KEY]
    assert told.volume(volume(capacity="2Gi")) == []


def test_tr008_volumes_of_others_are_not_remembered():
    told = Told()
    told.claim(claim())
    assert told.volume(volume("other")) == []
    assert told.rules._volumes == {}


def test_tr088_a_migrated_claim_goes_by_its_annotation():
    """R-021: Its volume has no CSI source."""
    told = Told(record(EBS, "EXPAND_VOLUME"))
    assert told.claim(claim(annotations={RESIZER: EBS})) == [OTHER_KEY]
    assert told.claim(claim(annotations={RESIZER: "kubernetes.io/aws-ebs"})) == []


def test_tr124_a_class_that_comes_wakes_who_waits_for_it(told):
    """DR-018: The key is added once, and again if the class is recreated."""
    told.claim(claim("1Gi", volumeAttributesClassName="b"))

    def seen(uid):
        item = msgspec.convert({"metadata": {"name": "b", "uid": uid}}, AttributesClass)
        return list(told.rules.seen(paths.ATTRIBUTES_CLASSES, item, is_listed=False))

    assert [seen("1"), seen("1"), seen("2")] == [[KEY], [], [KEY]]
    item = msgspec.convert({"metadata": {"name": "b", "uid": "2"}}, AttributesClass)
    told.rules.gone(paths.ATTRIBUTES_CLASSES, item)
    assert seen("2") == [KEY]


def test_tr105_the_end_of_an_attachment_wakes_the_claim(told):
    """DR-011: The attachment may be why the driver refused."""
    told.claim(claim())

    def gone(name):
        spec = {"source": {"persistentVolumeName": name}}
        item = msgspec.convert({"metadata": {"name": "va"}, "spec": spec}, Attachment)
        return list(told.rules.gone(paths.ATTACHMENTS, item))

    assert gone("pv") == [KEY]
    assert gone("another") == []


def test_tr082_the_end_of_the_node_part_brings_the_note_to_an_end(told):
    """R-020/4, R-070: The order in which claim and volume are seen does not matter."""
    assert told.volume(volume(note="1Gi", capacity="2Gi")) == [KEY]
    assert told.claim(claim("2Gi", "1Gi")) == [KEY]
    assert told.volume(volume(note="1Gi", capacity="2Gi")) == []
    assert told.claim(claim("2Gi", "2Gi")) == [KEY]
    assert list(told.rules.all_keys()) == [KEY]
    told.volume(volume(capacity="2Gi"))
    assert told.claim(claim("2Gi", "2Gi")) == []
    assert list(told.rules.all_keys()) == []


def test_the_note_on_a_migrated_volume():
    """Its driver is a registered driver that replaces an in-tree plug-in."""
    told = Told(record(EBS, "EXPAND_VOLUME"), record(DRIVER, "EXPAND_VOLUME"))
    assert told.volume(volume("", note="1Gi")) == [OTHER_KEY]


def test_tr068_a_claim_that_goes_takes_its_marks_along(told):
    """DR-006: Its key and state are dropped."""
    told.claim(claim())
    assert list(told.rules.gone(paths.CLAIMS, claim())) == [Forget(KEY)]
    assert list(told.rules.gone(paths.CLAIMS, claim())) == []


def test_a_list_forgets_what_it_lacks(told):
    """An interrupted watch may have missed deletions."""
    told.claim(claim())
    for resource in (paths.CLAIMS, paths.VOLUMES):
        told.rules.begin_list(resource)
    assert list(told.rules.end_list(paths.CLAIMS)) == [Forget(KEY)]
    assert list(told.rules.end_list(paths.VOLUMES)) == []
    assert told.rules._volumes == {}
    assert told.rules.counts() == {"changes": 0}


def test_a_list_that_says_nothing_new_wakes_nobody(told):
    """A resync uses `all_keys`."""
    told.claim(claim())
    for resource in (paths.CLAIMS, paths.VOLUMES):
        told.rules.begin_list(resource)
    assert told.claim(claim(), is_listed=True) == []
    assert told.volume(volume(), is_listed=True) == []
    assert list(told.rules.end_list(paths.CLAIMS)) == []
    assert list(told.rules.end_list(paths.VOLUMES)) == []
    assert list(told.rules.all_keys()) == [KEY]


def test_a_list_forgets_no_note_that_it_has(told):
    """R-020/4: The annotation of a volume that is gone is dropped."""
    told.volume(volume(note="1Gi"))
    for is_there, keys in ((True, [KEY]), (False, [])):
        told.rules.begin_list(paths.VOLUMES)
        if is_there:
            assert told.volume(volume(note="1Gi"), is_listed=True) == []
        assert list(told.rules.end_list(paths.VOLUMES)) == []
        assert list(told.rules.all_keys()) == keys


def test_a_driver_that_learned_to_expand_has_work(told):
    """MR-003: A reconnect may bring another version of the driver."""
    told.claim(claim())
    same = [record(DRIVER, "EXPAND_VOLUME", "MODIFY_VOLUME")]
    assert list(told.rules.set_drivers(same)) == []
    assert list(told.rules.set_drivers([record(DRIVER, "EXPAND_VOLUME")])) == [KEY]


def test_tr110_pods_are_never_watched():
    """DR-012: Attachments and classes are not watched either if no driver needs them."""
    assert paths.PODS not in {watch.resource for watch in SPEC.watches}
    needed = {
        watch.resource.plural: watch.is_needed([record(DRIVER, "EXPAND_VOLUME")])
        for watch in SPEC.watches
    }
    assert needed == {
        "persistentvolumeclaims": True,
        "persistentvolumes": True,
        "volumeattributesclasses": False,
        "volumeattachments": False,
    }


@pytest.mark.parametrize(
    ("capabilities", "is_needed"),
    [
        (["EXPAND_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"], True),
        (["EXPAND_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "CLONE_VOLUME"], True),
        (["EXPAND_VOLUME"], False),
        ([], False),
    ],
)
def test_attachments_are_watched_where_a_volume_may_be_refused_in_use(capabilities, is_needed):
    """Nothing is watched that no driver needs."""
    watch = next(one for one in SPEC.watches if one.resource == paths.ATTACHMENTS)
    assert watch.is_needed([record(DRIVER, *capabilities)]) is is_needed


def class_event(told, name, uid="1"):
    item = msgspec.convert({"metadata": {"name": name, "uid": uid}}, AttributesClass)
    return list(told.rules.seen(paths.ATTRIBUTES_CLASSES, item, is_listed=False))


def test_dr018_a_claim_waits_for_the_class_it_wants_now(told):
    """DR-018: The class that it wanted earlier does not count."""
    told.claim(claim("1Gi", volumeAttributesClassName="b"))
    told.claim(claim("1Gi", volumeAttributesClassName="c"))
    assert (class_event(told, "b"), class_event(told, "c")) == ([], [KEY])


def test_r101_a_claim_waits_for_the_class_at_work_too(told):
    """R-103: That class is requested first."""
    status = {
        "modifyVolumeStatus": {"status": "InProgress", "targetVolumeAttributesClassName": "c"}
    }
    told.claim(claim("1Gi", volumeAttributesClassName="b", status=status))
    assert (class_event(told, "b"), class_event(told, "c")) == ([KEY], [KEY])


def test_dr018_who_has_its_class_leaves_the_others_waiting(told):
    """Two claims name one volume and class; a finished or deleted claim gets no key any more."""
    second = {"uid": "u2", "name": "second", "volumeAttributesClassName": "b"}
    told.claim(claim("1Gi", volumeAttributesClassName="b"))
    told.claim(claim("1Gi", **second))
    key = Key("changes", DRIVER, "shop/second", "u2")
    assert class_event(told, "b") == [KEY, key]
    has_it = {"currentVolumeAttributesClassName": "b"}
    assert told.claim(claim("1Gi", volumeAttributesClassName="b", status=has_it)) == []
    assert class_event(told, "b", "2") == [key]
    told.rules.gone(paths.CLAIMS, claim("1Gi", **second))
    assert class_event(told, "b", "3") == []
    assert list(told.rules.all_keys()) == []


def test_r100_the_class_that_is_applied_is_no_work(told):
    """R-100/6, MR-002: Only a class that is not applied yet needs work."""
    status = {"currentVolumeAttributesClassName": "b"}
    assert told.claim(claim("1Gi", volumeAttributesClassName="b", status=status)) == []
    assert told.claim(claim("1Gi", volumeAttributesClassName="", status=status)) == [KEY]


@pytest.mark.parametrize(
    ("spec", "cap", "expected"),
    [("1Gi", "1Gi", []), ("1Gi", "2Gi", [KEY]), ("1Gi", "2048Mi", [KEY]), ("1Gi", "3Gi", [KEY])],
)
def test_r020_the_note_goes_when_the_claim_has_what_the_volume_has(told, spec, cap, expected):
    """R-020/4: If its request was lowered, a claim may be smaller than its volume."""
    told.volume(volume(note="1Gi", capacity="2Gi"))
    assert told.claim(claim(spec, cap)) == expected
    assert told.claim(claim(spec, cap, uid="another")) == []


def test_a_note_without_a_claim_is_nobodys(told):
    """A released volume may still have the annotation."""
    metadata = {"name": "pv", "annotations": {NOTE: "1Gi"}}
    item = msgspec.convert({"metadata": metadata, "spec": {"csi": {"driver": DRIVER}}}, Volume)
    assert told.volume(item) == []
    assert list(told.rules.all_keys()) == []


def test_a_new_note_on_a_claim_with_work_is_no_news(told):
    """The claim's reconcile handles the annotation anyway."""
    told.claim(claim())
    assert told.volume(volume(note="1Gi")) == []
    assert list(told.rules.all_keys()) == [KEY]


def test_a_volume_that_goes_takes_its_note_and_its_driver_along(told):
    """Another volume of that name may belong to another driver."""
    assert told.volume(volume(note="1Gi")) == [KEY]
    assert list(told.rules.gone(paths.VOLUMES, volume())) == []
    assert list(told.rules.all_keys()) == []
    assert told.claim(claim()) == []
    assert told.volume(volume()) == [KEY]


def test_a_driver_that_is_not_in_use_any_more_has_no_keys(told):
    """Its claims stay known and get their keys back when the driver returns."""
    told.claim(claim())
    assert list(told.rules.set_drivers([])) == []
    assert list(told.rules.all_keys()) == []
    assert told.claim(claim("5Gi")) == []
    assert list(told.rules.set_drivers([record(DRIVER, "EXPAND_VOLUME")])) == [KEY]
