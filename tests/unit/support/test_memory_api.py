"""The in-memory API server keeps the guarantees of the real one that controllers rely on."""

from __future__ import annotations

import pytest

from tests.support.memory_api import MemoryApi
from workers.kube import paths
from workers.kube.client import JSON_PATCH, MERGE_PATCH
from workers.kube.errors import ConflictError, InvalidError, NotFoundError

VA = paths.ATTACHMENTS.path("va")


@pytest.fixture
def api():
    api = MemoryApi()
    api.add(paths.ATTACHMENTS, {"metadata": {"name": "va", "finalizers": ["a", "b"]}})
    return api


def finalizers(api):
    return api.of(paths.ATTACHMENTS, "va")["metadata"]["finalizers"]


def test_status_and_main_resource_are_apart(api):
    api.patch(VA + "/status", {"status": {"attached": True}, "spec": {"x": 1}}, MERGE_PATCH)
    api.patch(VA, {"status": {"attached": False}}, MERGE_PATCH)
    found = api.of(paths.ATTACHMENTS, "va")
    assert found["status"] == {"attached": True}
    assert "spec" not in found


def test_a_failed_test_changes_nothing(api):
    patch = [
        {"op": "test", "path": "/metadata/finalizers/1", "value": "a"},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]
    with pytest.raises(InvalidError):
        api.patch(VA, patch, JSON_PATCH)
    assert finalizers(api) == ["a", "b"]


def test_uid_in_a_patch_is_a_precondition(api):
    with pytest.raises(ConflictError):
        api.patch(VA, {"metadata": {"uid": "other", "labels": {"x": "y"}}}, MERGE_PATCH)


def test_the_last_finalizer_takes_a_deleted_object_with_it(api):
    api.mark_deleted(paths.ATTACHMENTS, "va")
    assert api.of(paths.ATTACHMENTS, "va")["metadata"]["deletionTimestamp"]
    api.patch(VA, {"metadata": {"finalizers": None}}, MERGE_PATCH)
    assert api.of(paths.ATTACHMENTS, "va") is None


def test_missing_objects_are_named_as_the_server_does(api):
    with pytest.raises(NotFoundError, match=r'^secrets "s" not found$'):
        api.kube.get_secret("default", "s")
    with pytest.raises(NotFoundError, match=r'^csinodes.storage.k8s.io "n" not found$'):
        api.kube.get_csi_node("n")


def test_list_by_namespace_and_label():
    api = MemoryApi()
    for namespace, team in (("x", "a"), ("y", "a"), ("x", "b")):
        metadata = {"name": f"c-{team}", "namespace": namespace, "labels": {"team": team}}
        api.add(paths.CLAIMS, {"metadata": metadata})
    found = api.kube.list(paths.CLAIMS, namespace="x", labelSelector="team=a")
    assert [one["metadata"]["name"] for one in found] == ["c-a"]
    assert len(list(api.kube.list(paths.CLAIMS))) == 3
