"""The control plane fixture keeps what it promises to the suites built on it."""

from __future__ import annotations

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.waiting import wait_until


def test_claim_of_a_static_volume_becomes_bound(kube_api: KubeApi) -> None:
    """The PV binder runs: without it no claim of any test would become Bound."""
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
    """RBAC is enforced, so the manifests' least rights can be proven."""
    path = control_plane.service_account_kubeconfig("default", "default")
    with KubeApi(path) as nobody, pytest.raises(KubeApiError, match="forbidden") as refused:
        nobody.items("/api/v1/persistentvolumes")
    assert refused.value.status == 403


def test_killed_api_server_returns_with_its_objects(
    control_plane: ControlPlane, kube_api: KubeApi
) -> None:
    """A chaos test may kill a part and bring it back under the same address."""
    control_plane.kill("kube-apiserver")
    wait_until(lambda: not kube_api.is_ready(), 10, "API server is gone")
    control_plane.restart("kube-apiserver")
    assert kube_api.items("/api/v1/namespaces")
