"""A real API server accepts the NFS driver's manifests, and their flags exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from examples.nfs_csi_driver.__main__ import _parser
from workers.config.load import parse

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "nfs_csi_driver" / "manifests"
FILES = sorted(one.name for one in FOLDER.glob("*.yaml") if one.name != "kustomization.yaml")
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets",
    "Pod": "/api/v1/namespaces/default/pods",
}


def objects(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.mark.parametrize("name", FILES)
def test_the_api_server_takes_every_object(api, name):
    """The objects are sent as a dry run that refuses unknown fields."""
    for body in objects(name):
        path = COLLECTIONS[body["kind"]]
        if body["kind"] == "Pod":
            # Admission requires the service account to exist, which a dry run does not create.
            body["spec"]["serviceAccountName"] = "default"
        if "/namespaces/" in path:
            body["metadata"]["namespace"] = "default"
        params = {"dryRun": "All", "fieldValidation": "Strict"}
        answer = api.request("POST", path, body, params=params)
        assert answer["kind"] == body["kind"]


def containers():
    for name in ("controller.yaml", "node.yaml", "demo.yaml"):
        for body in objects(name):
            spec = body["spec"]
            yield from spec.get("template", body)["spec"]["containers"]


def test_the_flags_exist():
    seen = set()
    for container in containers():
        seen.add(container["image"])
        if container["image"] == "nfs-csi-driver":
            assert _parser().parse_args(container["args"]).endpoint.endswith("csi.sock")
        if container["image"] == "csi-fleet":
            command, *flags = container["args"]
            environ = {"CSI_FLEET_REDIS_URL": "redis://redis"}
            assert parse(command, flags, environ).driver.csi_addresses[0].endswith("csi.sock")
    assert {"nfs-csi-driver", "csi-fleet"} <= seen


def test_privileged_pods_have_a_namespace_of_their_own():
    """SEC-8: csi-fleet's namespace enforces `restricted` and holds the passwords of Redis."""
    (namespace,) = objects("namespace.yaml")
    placed = {
        body["metadata"]["namespace"]
        for name in FILES
        for body in objects(name)
        if "namespace" in body["metadata"]
    }
    # Intent copies are in csi-fleet-records, a namespace of csi-fleet itself.
    assert placed - {"csi-fleet-records"} == {namespace["metadata"]["name"]} == {"csi-nfs"}


def test_the_kustomization_names_all_but_the_demo():
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "demo.yaml"]) == FILES
