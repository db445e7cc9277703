"""Which fields count as differences, and which only the driver or other programs can know."""

from __future__ import annotations

from copy import deepcopy

import pytest

from workers.engine.shadow.comparing import UNKNOWN, Verdict, compare

PV = "/api/v1/persistentvolumes/pvc-1"
CLAIM = "/api/v1/namespaces/shop/persistentvolumeclaims/data"

OURS = {
    "metadata": {
        "name": "pvc-1",
        "annotations": {"pv.kubernetes.io/provisioned-by": "d"},
        "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
    },
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7"},
        "csi": {"driver": "d", "volumeHandle": f"{UNKNOWN}-pvc-1", "fsType": "ext4"},
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "fast",
    },
}


def theirs(*changes):
    """Return csi-fleet's PV with the fields that others add, and then with these changes."""
    live = deepcopy(OURS)
    live["metadata"] |= {"uid": "x", "resourceVersion": "9", "creationTimestamp": "t"}
    live["metadata"]["finalizers"] = [
        *live["metadata"]["finalizers"],
        "kubernetes.io/pv-protection",
    ]
    live["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] = "yes"
    live["spec"]["csi"] |= {"volumeHandle": "h", "volumeAttributes": {"a": "b"}}
    live["spec"] |= {"volumeMode": "Filesystem", "nodeAffinity": {"required": {}}}
    live["spec"]["claimRef"]["resourceVersion"] = "8"
    live["status"] = {"phase": "Bound"}
    for place, value in changes:
        inner = live
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = value
    return live


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        pytest.param([], "", id="what others add is none"),
        pytest.param([(("spec", "capacity", "storage"), "2Gi")], "", id="more than was asked"),
        pytest.param(
            [(("spec", "capacity", "storage"), "512Mi")], "spec.capacity.storage", id="less"
        ),
        pytest.param([(("spec", "csi", "fsType"), "xfs")], "spec.csi.fsType", id="fsType"),
        pytest.param(
            [(("spec", "csi", "controllerPublishSecretRef"), {"name": "s"})],
            "spec.csi.controllerPublishSecretRef.name",
            id="a field that ours lacks",
        ),
        pytest.param(
            [(("metadata", "finalizers"), [])], "metadata.finalizers", id="a finalizer lacks"
        ),
        pytest.param(
            [(("metadata", "annotations"), {})],
            "metadata.annotations.pv.kubernetes.io/provisioned-by",
            id="an annotation lacks",
        ),
        pytest.param([(("spec", "volumeMode"), "Block")], "spec.volumeMode", id="no default"),
        pytest.param(
            [(("spec", "accessModes"), ["ReadWriteMany"])], "spec.accessModes", id="a list"
        ),
    ],
)
def test_created_volume(changes, found):
    """Each side may have fields that the other lacks; those of the driver's answer are exempt."""
    verdict, differences = compare(PV, None, OURS, theirs(*changes))
    assert verdict is (Verdict.DIFFERS if found else Verdict.AGREES), differences
    assert all(found in one for one in differences)


def claim(**metadata):
    return {"metadata": {"name": "data", "uid": "u", **metadata}, "spec": {}}


@pytest.mark.parametrize(
    ("base", "wanted", "live", "verdict"),
    [
        pytest.param(None, OURS, None, Verdict.WAITS, id="not made yet"),
        pytest.param(claim(), None, None, Verdict.AGREES, id="deleted"),
        pytest.param(claim(), None, claim(), Verdict.WAITS, id="not deleted yet"),
        pytest.param(
            claim(), None, claim(deletionTimestamp="t"), Verdict.AGREES, id="being deleted"
        ),
        pytest.param(claim(), None, claim(uid="v"), Verdict.AGREES, id="deleted and made anew"),
        pytest.param(claim(), claim(labels={"a": "b"}), None, Verdict.GONE, id="gone meanwhile"),
        pytest.param(
            claim(), claim(labels={"a": "b"}), claim(), Verdict.WAITS, id="not written yet"
        ),
        pytest.param(
            claim(finalizers=["a", "b"]),
            claim(finalizers=["b"]),
            claim(finalizers=["c", "b"]),
            Verdict.AGREES,
            id="others' finalizers do not count",
        ),
        pytest.param(
            claim(finalizers=["a"]),
            claim(),
            claim(finalizers=["a"]),
            Verdict.WAITS,
            id="a finalizer is still there",
        ),
    ],
)
def test_changed_object(base, wanted, live, verdict):
    """Only the fields that csi-fleet changes are compared."""
    assert compare(CLAIM, base, wanted, live)[0] is verdict


def test_ma032_an_annotation_of_our_own_is_no_difference():
    """MA-032: the annotation of earlier node ids, which no sidecar writes, is not a difference."""
    path = "/apis/storage.k8s.io/v1/volumeattachments/va"
    ids = {"csi.alpha.kubernetes.io/node-id": "n"}
    base = claim(annotations={"csi.alpha.kubernetes.io/node-id": "m"})
    ours = claim(annotations=ids | {"csi-fleet.io/earlier-node-ids": '["m"]'})
    assert compare(path, base, ours, claim(annotations=ids)) == (Verdict.AGREES, ())


def test_members_of_a_list_are_known_by_their_names():
    """The order of the members is not a difference."""
    owners = [{"name": "a", "uid": "1"}, {"name": "b", "uid": "2"}]
    ours = claim(ownerReferences=owners)
    assert compare(CLAIM, None, ours, claim(ownerReferences=owners[::-1])) == (Verdict.AGREES, ())
    verdict, found = compare(CLAIM, None, ours, claim(ownerReferences=owners[:1]))
    assert verdict is Verdict.DIFFERS
    assert "metadata.ownerReferences[b].uid: 2, -" in found
