"""Restoring from a VolumeSnapshot: every row of P-210."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.translate_objects import DRIVER, make_claim
from workers.errors import State
from workers.translate import snapshots
from workers.translate.sources import ContentSource, DataSource, SourceError

OURS = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
ALLOW = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
SOURCE = DataSource(
    "VolumeSnapshot", "test-snapshot", "snapshot.storage.k8s.io", "default", "fake-ns", "fake-pvc"
)
WRAPPED = "error getting handle for DataSource Type VolumeSnapshot by Name test-snapshot: "


def make_snapshot(metadata=None, **status: Any):
    found = {"boundVolumeSnapshotContentName": "vsc", "readyToUse": True, "restoreSize": "1000"}
    return {
        "metadata": {"namespace": "default", "name": "test-snapshot", "uid": "u"}
        | (metadata or {}),
        "status": found | status,
    }


def make_content(ref=None, status=None, annotations=None, **spec: Any):
    bound_to = {"namespace": "default", "name": "test-snapshot", "uid": "u"} | (ref or {})
    return {
        "metadata": {"name": "vsc", "annotations": annotations or {}},
        "spec": {"driver": DRIVER, "volumeSnapshotRef": bound_to} | spec,
        "status": {"snapshotHandle": "sid"} if status is None else status,
    }


def restore(snapshot=None, content=None, claim=None, *, prevent=True):
    snapshot = make_snapshot() if snapshot is None else snapshot
    assert snapshots.content_name(SOURCE, snapshot) == "vsc"
    return snapshots.content_source(
        SOURCE,
        snapshot=snapshot,
        content=make_content() if content is None else content,
        claim=make_claim(request="1000") if claim is None else claim,
        class_name="fake-test-sc",
        driver_name=DRIVER,
        prevent_mode_conversion=prevent,
    )


def refused(*args, **kwargs):
    with pytest.raises(SourceError) as caught:
        restore(*args, **kwargs)
    assert caught.value.state is State.NO_CHANGE
    assert caught.value.message.startswith(WRAPPED)
    return caught.value.message.removeprefix(WRAPPED)


def test_t080_all_good():
    assert restore() == ContentSource(snapshot_id="sid")


def test_t081_claim_is_smaller():
    assert refused(claim=make_claim(request="100")) == (
        "requested volume size 100 is less than the size 1000 for the source snapshot test-snapshot"
    )


@pytest.mark.parametrize(
    "ready", [pytest.param(False, id="T-084 false"), pytest.param(None, id="T-084 nil")]
)
def test_not_ready(ready):
    assert refused(make_snapshot(readyToUse=ready)) == "snapshot test-snapshot is not Ready"


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(make_snapshot() | {"status": None}, id="T-085 status nil"),
        pytest.param(make_snapshot(boundVolumeSnapshotContentName=None), id="T-085 name nil"),
    ],
)
def test_not_bound(snapshot):
    assert refused(snapshot) == "snapshot test-snapshot not bound"


def test_t085_name_empty():
    """An empty name counts as a name: reading the content fails, as in csi-provisioner (row 4)."""
    assert refused(make_snapshot(boundVolumeSnapshotContentName="")) == (
        "error getting snapshotcontent  for snapshot test-snapshot"
    )


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(make_content({"uid": "x"}), id="T-086 uid"),
        pytest.param(make_content({"namespace": "x"}), id="T-086 namespace"),
        pytest.param(make_content({"name": "x"}), id="T-086 name"),
    ],
)
def test_content_of_another_snapshot(content):
    """Row 5 keeps a forged content name from exposing another namespace's data."""
    assert refused(content=content) == (
        "snapshotcontent vsc for snapshot test-snapshot is bound to a different snapshot"
    )


def test_t087_content_of_another_driver():
    assert refused(content=make_content(driver="x")) == (
        "snapshotcontent vsc for snapshot test-snapshot is not handled by CSI driver of "
        "StorageClass fake-test-sc"
    )


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="T-088 status nil"),
        pytest.param({"snapshotHandle": None}, id="T-088 handle nil"),
    ],
)
def test_no_handle(status):
    expected = "snapshot handle test-snapshot is not available"
    assert refused(content=make_content(status=status)) == expected


MODES = "requested volume fake-ns/fake-pvc modifies the mode of the source volume but does not "
MODES += "have permission to do so. "
BLOCK = make_claim(request="1000", volumeMode="Block")


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        pytest.param(
            {}, f"{ALLOW} annotation is not present on snapshotcontent vsc", id="T-090 missing"
        ),
        pytest.param(
            {ALLOW: "false"},
            f"{ALLOW} is set to false on snapshotcontent vsc",
            id="T-090 false",
        ),
        pytest.param(
            {ALLOW: "x"},
            f"failed to convert {ALLOW} annotation value to boolean with error: "
            'strconv.ParseBool: parsing "x": invalid syntax',
            id="T-090 unparsable",
        ),
    ],
)
def test_mode_change_is_refused(annotations, problem):
    """P-214: reading a foreign file system as a raw device can attack the kernel."""
    content = make_content(annotations=annotations, sourceVolumeMode="Filesystem")
    assert refused(content=content, claim=BLOCK) == MODES + problem


def test_t090_mode_change_is_allowed():
    content = make_content(annotations={ALLOW: "true"}, sourceVolumeMode="Filesystem")
    assert restore(content=content, claim=BLOCK).snapshot_id == "sid"


@pytest.mark.parametrize(
    ("claim", "mode"),
    [
        pytest.param(make_claim(request="1000"), "Filesystem", id="T-091 claim unset"),
        pytest.param(BLOCK, None, id="P-214 source unset"),
        pytest.param(BLOCK, "Block", id="P-214 equal"),
    ],
)
def test_mode_is_not_changed(claim, mode):
    content = make_content(sourceVolumeMode=mode)
    assert restore(content=content, claim=claim).snapshot_id == "sid"


def test_mode_check_can_be_switched_off():
    content = make_content(sourceVolumeMode="Filesystem")
    assert restore(content=content, claim=BLOCK, prevent=False).snapshot_id == "sid"


@pytest.mark.parametrize(
    "finalizers",
    [
        pytest.param([], id="T-092 no finalizers"),
        pytest.param(["snapshot.storage.kubernetes.io/x"], id="T-092 other finalizer"),
    ],
)
def test_snapshot_under_deletion(finalizers):
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}
    assert refused(make_snapshot(metadata)) == "snapshot test-snapshot is being deleted"


def test_t092_snapshot_under_deletion_with_our_finalizer():
    """P-211: an earlier attempt began, and stopping now would leak its volume."""
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x", OURS]}
    assert restore(make_snapshot(metadata)).snapshot_id == "sid"


def test_t093_missing_finalizer_is_asked_for_but_not_required():
    """The update may be forbidden; then the restore continues without protection."""
    assert snapshots.needs_finalizer(make_snapshot())
    assert not snapshots.needs_finalizer(make_snapshot({"finalizers": [OURS]}))
    assert restore(make_snapshot()).snapshot_id == "sid"


def test_t095_snapshot_of_another_namespace():
    """SOURCE is in `default`, the claim in `fake-ns`."""
    assert SOURCE.crosses_namespaces
    assert restore().snapshot_id == "sid"


def test_claim_without_size():
    """Row 9: without a requested size the restore is refused."""
    assert refused(claim=make_claim(request=None)) == (
        "error getting capacity for PVC fake-pvc when creating snapshot test-snapshot"
    )


def test_larger_claim_is_allowed_with_a_warning():
    """P-212: the warning says that the driver has to expand the volume."""
    found = restore(claim=make_claim(request="2000"))
    assert found.snapshot_id == "sid"
    assert found.warning == (
        "requested volume size 2000 is greater than the size 1000 for the source snapshot "
        "test-snapshot. Volume plugin needs to handle volume expansion."
    )


@pytest.mark.parametrize("request_text", ["1", None])
def test_snapshot_without_size_is_not_compared(request_text):
    """P-212: without a restore size any claim size is accepted."""
    snapshot = make_snapshot(restoreSize=None)
    assert restore(snapshot, claim=make_claim(request=request_text)).snapshot_id == "sid"


def test_malformed_size_of_the_snapshot():
    assert refused(make_snapshot(restoreSize="big")) == (
        'restore size of snapshot: quantity "big" is malformed, expected for example 10Gi'
    )


def test_reads_that_fail():
    """Rows 1 and 4: the message of row 4 hides its cause from the event."""
    error = snapshots.read_failed(SOURCE, "boom")
    assert error.message == f"{WRAPPED}error getting snapshot test-snapshot from api server: boom"
    error = snapshots.content_read_failed(SOURCE, "vsc", "boom")
    assert error.message == (
        f"{WRAPPED}error getting snapshotcontent vsc for snapshot test-snapshot"
    )
    assert error.detail == "boom"


def test_rows_are_checked_in_order():
    """All rows are violated at first; each repair reveals the next row's message."""
    snapshot = make_snapshot(
        {"deletionTimestamp": "t"}, boundVolumeSnapshotContentName=None, readyToUse=False
    )
    content = make_content({"uid": "x"}, {}, driver="x", sourceVolumeMode="Filesystem")
    claim = make_claim(request=None, volumeMode="Block")
    seen = [refused(snapshot, content, claim)]
    for repair in (
        lambda: snapshot["metadata"].pop("deletionTimestamp"),
        lambda: snapshot["status"].update(boundVolumeSnapshotContentName="vsc"),
        lambda: content["spec"]["volumeSnapshotRef"].update(uid="u"),
        lambda: content["spec"].update(driver=DRIVER),
        lambda: snapshot["status"].update(readyToUse=True),
        lambda: content["status"].update(snapshotHandle="sid"),
        lambda: claim["spec"].update(resources={"requests": {"storage": "1"}}),
        lambda: claim["spec"].update(resources={"requests": {"storage": "1000"}}),
    ):
        repair()
        seen.append(refused(snapshot, content, claim))
    words = ["being deleted", "not bound", "different", "not handled", "not Ready"]
    words += ["not available", "error getting capacity", "less than", "modifies the mode"]
    assert [word for word, message in zip(words, seen, strict=True) if word in message] == words
