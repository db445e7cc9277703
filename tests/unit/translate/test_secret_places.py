"""Workers need exactly the Secrets that classes and volumes name (SEC-1 to SEC-9)."""

from __future__ import annotations

import pytest

from workers.translate.secret_places import Places

PREFIX = "csi.storage.k8s.io/"


def of_class(parameters, *namespaces):
    places = Places()
    places.add_class("StorageClass fast", parameters, namespaces)
    return places


def pair(stem, name, namespace):
    return {f"{PREFIX}{stem}-name": name, f"{PREFIX}{stem}-namespace": namespace}


CASES = [
    # stem, name template, namespace template, names, whole namespaces
    pytest.param("provisioner-secret", "key", "vault", {"vault": {"key"}}, set(), id="fixed"),
    pytest.param("controller-expand-secret", "a", "v", {"v": {"a"}}, set(), id="expand"),
    pytest.param("controller-publish-secret", "a", "v", {"v": {"a"}}, set(), id="publish"),
    pytest.param("secret", "a", "v", {"v": {"a"}}, set(), id="default"),
    pytest.param("snapshotter-secret", "a", "v", {"v": {"a"}}, set(), id="snapshot"),
    pytest.param("provisioner-secret", "${pvc.name}", "v", {}, {"v"}, id="name by claim"),
    pytest.param(
        "provisioner-secret", "a", "${pvc.namespace}", {"x": {"a"}, "y": {"a"}}, set(),
        id="namespace by claim",
    ),
    pytest.param(
        "snapshotter-secret", "${volumesnapshot.name}", "${volumesnapshot.namespace}", {},
        {"x", "y"}, id="both by snapshot",
    ),
    pytest.param("provisioner-secret", "a", "${pv.name}", {}, set(), id="namespace by volume"),
    pytest.param("node-publish-secret", "a", "v", {}, set(), id="kubelet's own"),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "name", "namespace", "names", "whole"), CASES)
def test_a_class_opens_what_its_templates_can_name(stem, name, namespace, names, whole):
    places = of_class(pair(stem, name, namespace), "x", "y")
    assert (places.names, places.whole) == (names, whole)
    assert bool(places.open) == namespace.startswith("$")


def test_deprecated_keys_count_too():
    found = of_class({"csiProvisionerSecretName": "a", "csiProvisionerSecretNamespace": "v"})
    assert found.names == {"v": {"a"}}


def test_a_whole_namespace_swallows_its_names():
    """Roles for single names, next to one for all names, would only hide the wider access."""
    places = of_class(pair("secret", "a", "v"))
    places.add("v", None)
    places.add("v", "b")
    assert (places.names, places.whole) == ({}, {"v"})


def test_volumes_keep_the_names_of_their_classs_time():
    """The deletion still needs them after the class is gone (P-401)."""
    places = Places()
    reference = {"name": "expand", "namespace": "v"}
    deletion = "volume.kubernetes.io/provisioner-deletion-secret"
    places.add_object(
        {
            "metadata": {"annotations": {f"{deletion}-name": "del", f"{deletion}-namespace": "v"}},
            "spec": {"csi": {"controllerExpandSecretRef": reference}},
        }
    )
    places.add_object({"metadata": {}, "spec": {"hostPath": {"path": "/"}}})
    assert places.names == {"v": {"del", "expand"}}
