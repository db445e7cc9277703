"""The driver's answer, and the PersistentVolume built from it."""

from __future__ import annotations

import copy

import pytest

from csi_client import messages as csi
from tests.support.translate_objects import (
    DELETION_NAME,
    DELETION_NAMESPACE,
    FINALIZER,
    Attempt,
    make_claim,
    make_class,
)
from workers.errors import AttemptError, State
from workers.translate.volume import build_volume, check_response, complete_volume

IDENTITY = "storage.kubernetes.io/csiProvisionerIdentity"
CLAIM = make_claim(request="1Gi")


def make_request(required=100, snapshot="", volume=""):
    request = csi.CreateVolumeRequest(
        name="test-testi", capacity_range=csi.CapacityRange(required_bytes=required)
    )
    if snapshot:
        request.volume_content_source.snapshot.snapshot_id = snapshot
    if volume:
        request.volume_content_source.volume.volume_id = volume
    return request


def answer(capacity=100, content_source=None, volume_id="test-volume-id", **fields):
    volume = csi.Volume(volume_id=volume_id, capacity_bytes=capacity, **fields)
    if content_source is not None:
        volume.content_source.CopyFrom(content_source)
    return csi.CreateVolumeResponse(volume=volume)


def snapshot_source(handle):
    snapshot = csi.VolumeContentSource.SnapshotSource(snapshot_id=handle)
    return csi.VolumeContentSource(snapshot=snapshot)


def volume_source(handle):
    volume = csi.VolumeContentSource.VolumeSource(volume_id=handle)
    return csi.VolumeContentSource(volume=volume)


def test_t001_ok_pv():
    """P-170, P-906: the PV of fixture F has exactly these fields."""
    assert Attempt(default_fstype="").provision(make_claim(), make_class()) == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": "test-testi",
            "annotations": {DELETION_NAME: "", DELETION_NAMESPACE: ""},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "100"},
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {
                "driver": "test-driver",
                "volumeHandle": "test-volume-id",
                "volumeAttributes": {IDENTITY: "test-provisioner"},
            },
        },
    }


def test_t050_volume_is_too_small():
    """The caller deletes it and reports the error; the next attempt calls CreateVolume again."""
    rejection = check_response(make_request(), answer(80))
    assert rejection is not None
    assert rejection.volume_id == "test-volume-id"
    error = rejection.error()
    assert error.message == "created volume capacity 80 less than requested capacity 100"
    assert error.state is State.BACKGROUND


def test_t051_clean_up_fails():
    rejection = check_response(make_request(), answer(80))
    assert rejection is not None
    assert rejection.error("rpc error: code = Internal desc = no").message == (
        "created volume capacity 80 less than requested capacity 100. Cleanup of volume test-testi "
        "failed, volume is orphaned: rpc error: code = Internal desc = no"
    )


@pytest.mark.parametrize(
    ("capacity", "claim", "text"),
    [
        pytest.param(0, make_claim(), "100", id="T-052 unknown capacity"),
        pytest.param(1610612736, CLAIM, "1536Mi", id="T-053 larger volume"),
        pytest.param(1073741824, CLAIM, "1Gi", id="P-172 as requested"),
        pytest.param(1073741825, CLAIM, "1073741825", id="P-172 odd size"),
    ],
)
def test_size_of_the_pv(capacity, claim, text):
    volume = Attempt().provision(claim, make_class(), answer(capacity).volume)
    assert volume["spec"]["capacity"] == {"storage": text}


@pytest.mark.parametrize(
    ("context", "attributes"),
    [
        pytest.param(
            {"a": "b"}, {IDENTITY: "test-provisioner", "a": "b"}, id="T-054 volume context"
        ),
        pytest.param({IDENTITY: "z"}, {IDENTITY: "z"}, id="T-054 driver wins"),
    ],
)
def test_volume_attributes(context, attributes):
    volume = Attempt().provision(make_claim(), make_class(), answer(volume_context=context).volume)
    assert volume["spec"]["csi"]["volumeAttributes"] == attributes


def test_t089_content_source_is_missing():
    rejection = check_response(make_request(snapshot="sid"), answer())
    assert rejection is not None
    assert rejection.error().message == "volume content source missing"
    assert rejection.error().state is State.BACKGROUND
    assert rejection.error("boom").message == (
        "volume content source missing. cleanup of volume test-testi failed, "
        "volume is orphaned: boom"
    )


@pytest.mark.parametrize(
    ("request_", "found", "message"),
    [
        (
            make_request(snapshot="sid"),
            snapshot_source("other"),
            "volume content source is snapshot other, requested sid",
        ),
        (
            make_request(volume="vid"),
            volume_source("other"),
            "volume content source is volume other, requested vid",
        ),
        (
            make_request(snapshot="sid"),
            volume_source("sid"),
            "volume content source is a volume, requested a snapshot",
        ),
    ],
)
def test_volume_of_other_content_is_rejected(request_, found, message):
    """D-020: otherwise the user would get another user's data."""
    rejection = check_response(request_, answer(content_source=found))
    assert rejection is not None
    assert rejection.error().message == message


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (make_request(snapshot="sid"), snapshot_source("sid")),
        (make_request(volume="vid"), volume_source("vid")),
        (make_request(snapshot="sid"), snapshot_source("")),
        (make_request(snapshot="sid"), csi.VolumeContentSource()),
        (make_request(), snapshot_source("sid")),
        (make_request(), None),
    ],
)
def test_content_source_is_accepted(request_, found):
    """P-152: an answer with less or more content than requested passes, as in csi-provisioner."""
    assert check_response(request_, answer(content_source=found)) is None


def test_size_is_checked_before_content():
    rejection = check_response(make_request(snapshot="sid"), answer(80))
    assert rejection is not None
    assert rejection.message.startswith("created volume capacity")


def saved(claim=None, storage_class=None):
    return Attempt().save(claim or make_claim(), storage_class or make_class())


def test_what_is_added_before_saving():
    """P-190: claim reference, class name, finalizer and annotation complete the PV."""
    volume = saved()
    assert volume["spec"]["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "fake-ns",
        "name": "fake-pvc",
        "uid": "testid",
        "resourceVersion": "7",
    }
    assert volume["spec"]["storageClassName"] == "fake-test-sc"
    assert volume["metadata"]["finalizers"] == [FINALIZER]
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == "test-driver"


def test_c006_provisioned_by_names_the_class_provisioner():
    volume = saved(storage_class=make_class(provisioner="kubernetes.io/x"))
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == "kubernetes.io/x"


def test_c009_class_of_the_annotation_is_stored():
    claim = make_claim(annotations={"volume.beta.kubernetes.io/storage-class": "beta"})
    assert saved(claim)["spec"]["storageClassName"] == "beta"


def test_c021_retain_is_created_with_the_finalizer():
    volume = saved(storage_class=make_class(reclaimPolicy="Retain"))
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["metadata"]["finalizers"] == [FINALIZER]


@pytest.mark.parametrize(
    ("finalizers", "expected"),
    [
        pytest.param([], [FINALIZER], id="C-022 none"),
        pytest.param([FINALIZER], [FINALIZER], id="C-022 there already"),
        pytest.param(["a"], ["a", FINALIZER], id="C-022 appended"),
    ],
)
def test_finalizer_is_there_once(finalizers, expected):
    built = Attempt().provision(make_claim(), make_class())
    built["metadata"]["finalizers"] = finalizers
    before = copy.deepcopy(built)
    volume = complete_volume(built, claim=make_claim(), storage_class=make_class())
    assert volume["metadata"]["finalizers"] == expected
    assert built == before


def test_class_without_policy_leaves_it_unset():
    """P-170, P-906: the PV has no policy field."""
    assert (
        "persistentVolumeReclaimPolicy"
        not in saved(storage_class=make_class(reclaimPolicy=None))["spec"]
    )


def test_unusable_fields_after_the_call_mean_background():
    """The volume already exists, so forgetting it would leak it."""
    storage_class = make_class(reclaimPolicy=5)
    with pytest.raises(AttemptError, match="reclaimPolicy is a number") as caught:
        build_volume(
            name="v",
            driver_name="d",
            identity="i",
            claim=make_claim(),
            storage_class=storage_class,
            volume=csi.Volume(volume_id="h"),
            required_bytes=1,
        )
    assert caught.value.state is State.BACKGROUND
    with pytest.raises(AttemptError, match="metadata lacks uid") as caught:
        complete_volume({}, claim=make_claim(uid=""), storage_class=make_class())
    assert caught.value.state is State.BACKGROUND
