"""The control plane fixture has the features on which other tests depend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.kube_api import JsonObject, KubeApi, KubeApiError
from tests.support.waiting import wait_until
from workers.kube.client import KubeClient
from workers.kube.errors import ConflictError
from workers.kube.resources import KubeResources


def test_claim_of_a_static_volume_becomes_bound(kube_api: KubeApi) -> None:
    """The PV binder runs; without it no claim of any test would become Bound."""
    kube_api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "plane-bind"}})
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "plane-static"}
    kube_api.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "plane-static-1"},
            "spec": {**common, "capacity": size, "hostPath": {"path": "/nowhere"}},
        }
    )
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "plane-bind"},
        "spec": {**common, "resources": {"requests": size}},
    }
    kube_api.create(claim)
    path = "/api/v1/namespaces/plane-bind/persistentvolumeclaims/data"
    wait_until(lambda: kube_api.get(path)["status"]["phase"] == "Bound", 30, "claim is Bound")
    kube_api.delete("/api/v1/namespaces/plane-bind")
    kube_api.delete("/api/v1/persistentvolumes/plane-static-1")


def test_service_account_may_only_what_rbac_grants(
    control_plane: ControlPlane, kube_api: KubeApi
) -> None:
    """RBAC refuses other permissions, so tests can
    prove that the manifests' permissions suffice.
    """
    path = control_plane.service_account_kubeconfig("default", "default")
    with KubeApi(path) as nobody, pytest.raises(KubeApiError, match="forbidden") as refused:
        nobody.items("/api/v1/persistentvolumes")
    assert refused.value.status == 403


def test_killed_api_server_returns_with_its_objects(
    control_plane: ControlPlane, kube_api: KubeApi
) -> None:
    """A killed part restarts at the same address, which chaos tests use."""
    control_plane.kill("kube-apiserver")
    wait_until(lambda: not kube_api.is_ready(), 10, "API server is gone")
    control_plane.restart("kube-apiserver")
    assert kube_api.items("/api/v1/namespaces")


def test_a_finalizer_patch_with_another_uid_is_a_conflict(
    control_plane: ControlPlane, kube_api: KubeApi
) -> None:
    """A finalizer patch with another uid is a conflict.

    The precondition protects a volume that was created again with the same name (L-072).
    """
    name = "plane-uid"
    made = kube_api.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/nowhere"},
            },
        }
    )
    resources = KubeResources(KubeClient.from_settings(str(control_plane.kubeconfig), ""))
    finalizer, stranger = "csi-fleet.io/test", "00000000-0000-0000-0000-000000000000"
    with pytest.raises(ConflictError):
        resources.add_volume_finalizer(name, finalizer, uid=stranger)
    uid = made["metadata"]["uid"]
    patched = resources.add_volume_finalizer(name, finalizer, uid=uid)
    assert finalizer in patched["metadata"]["finalizers"]
    with pytest.raises(ConflictError):
        resources.remove_volume_finalizer(name, finalizer, uid=stranger)
    left = resources.remove_volume_finalizer(name, finalizer, uid=uid)
    assert finalizer not in (left["metadata"].get("finalizers") or [])
    kube_api.delete(f"/api/v1/persistentvolumes/{name}")


GROUP_CRDS = Path(__file__).parents[1] / "parity" / "runner" / "crds" / "groupsnapshots.yaml"


@pytest.fixture
def group_kinds(kube_api: KubeApi) -> Iterator[list[JsonObject]]:
    kube_api.apply_file(GROUP_CRDS)
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    found = [
        one for one in kube_api.items(path) if one["spec"]["group"].startswith("groupsnapshot.")
    ]
    yield found
    names = [f"{path}/{one['metadata']['name']}" for one in found]
    for name in names:
        kube_api.delete(name)
    # A deletion that is still running would delete the CRDs of the next test.
    wait_until(lambda: not any(map(kube_api.find, names)), 30, "the CRDs are gone")


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_group_snapshots_of_each_version_are_refused_without_one_source(
    kube_api: KubeApi, group_kinds: list[JsonObject], version: str
) -> None:
    """A content needs exactly one kind of source, in all versions of the API."""
    assert len(group_kinds) == 3
    root = f"/apis/groupsnapshot.storage.k8s.io/{version}"
    content = {
        "apiVersion": f"groupsnapshot.storage.k8s.io/{version}",
        "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": f"content-{version}"},
        "spec": {
            "driver": "d",
            "deletionPolicy": "Delete",
            "volumeGroupSnapshotRef": {"name": "g", "namespace": "default"},
        },
    }
    wait_until(
        lambda: kube_api.items(f"{root}/volumegroupsnapshotcontents") is not None,
        30,
        f"{version} is served",
    )
    handles = {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["s"]}
    both = {"volumeHandles": ["v"], "groupSnapshotHandles": handles}
    for source in ({}, both):
        with pytest.raises(KubeApiError, match="one source") as refused:
            kube_api.create({**content, "spec": {**content["spec"], "source": source}})
        assert refused.value.status == 422
    made = kube_api.create(
        {**content, "spec": {**content["spec"], "source": {"volumeHandles": []}}}
    )
    kube_api.delete(f"{root}/volumegroupsnapshotcontents/{made['metadata']['name']}")
