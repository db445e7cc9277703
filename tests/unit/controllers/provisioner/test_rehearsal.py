"""`csi-fleet dry-run` shows the request that the driver would get, and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fake_cluster import FakeCatalog
from tests.support.memory_api import MemoryApi
from workers.config.settings import Settings
from workers.constants import ANN_STORAGE_PROVISIONER
from workers.controllers.provisioner.rehearsal import (
    DRAFT_UID,
    ReadOnlyClient,
    as_asked,
    rehearse,
)
from workers.controllers.provisioner.work import ClaimWork
from workers.errors import AttemptError, IgnoredError
from workers.kube import paths

DRIVER = "test-driver"
CLASS = {"metadata": {"name": "fast"}, "provisioner": DRIVER, "parameters": {"pool": "ssd"}}
SPEC = {
    "accessModes": ["ReadWriteOnce"],
    "storageClassName": "fast",
    "resources": {"requests": {"storage": "1Ki"}},
}
RECORD = {
    "name": DRIVER,
    "queue_name": DRIVER,
    "plugin_capabilities": ["CONTROLLER_SERVICE"],
    "controller_capabilities": ["CREATE_DELETE_VOLUME", "CLONE_VOLUME", "CREATE_DELETE_SNAPSHOT"],
    # A rule that a newer worker wrote is ignored.
    "rules": {"extra_create_metadata": True, "a_rule_of_tomorrow": 1},
}


@pytest.fixture
def api():
    return MemoryApi()


def request_for(api, claim, *, record=RECORD, settings=None):
    return rehearse(
        api,
        FakeCatalog(),
        settings=settings or Settings(),
        record=record,
        claim=claim,
        storage_class=CLASS,
    )


def told(namespace, name, volume):
    """Return the parameters that a driver gets with --extra-create-metadata."""
    prefix = "csi.storage.k8s.io"
    return {
        "pool": "ssd",
        f"{prefix}/pvc/namespace": namespace,
        f"{prefix}/pvc/name": name,
        f"{prefix}/pv/name": volume,
    }


def test_a_draft_is_asked_for_as_a_claim_of_the_default_namespace(api):
    """The draft isn't in the cluster, so the fields that the API server would set are filled in."""
    request = request_for(api, {"spec": SPEC})
    assert request.name == f"pvc-{DRAFT_UID}"
    assert dict(request.parameters) == told("default", "draft", request.name)
    assert api.requests == []


def test_a_claim_that_exists_is_asked_for_by_its_own_name(api):
    """The driver's rules come from its registration (here: --extra-create-metadata)."""
    metadata = {"name": "data", "namespace": "team", "uid": "u1"}
    request = request_for(api, {"metadata": metadata, "spec": SPEC})
    assert request.name == "pvc-u1"
    assert dict(request.parameters) == told("team", "data", "pvc-u1")


def test_a_driver_whose_record_says_nothing_can_do_nothing(api):
    record = {"name": DRIVER, "queue_name": DRIVER}
    with pytest.raises(AttemptError):
        request_for(api, {"spec": SPEC}, record=record)


def test_a_claim_of_another_provisioner_is_said_to_be_so(api):
    claim = {"metadata": {"annotations": {ANN_STORAGE_PROVISIONER: "other"}}, "spec": SPEC}
    with pytest.raises(IgnoredError):
        request_for(api, claim)


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "data"},
        {"namespace": "team"},
        {"uid": "u1"},
        {"annotations": {"a": "b"}},
        {"annotations": {ANN_STORAGE_PROVISIONER: "other"}},
        {"labels": {"app": "db"}},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
def test_what_a_draft_says_stays(metadata):
    drafted = {"name": "draft", "namespace": "default", "uid": DRAFT_UID}
    annotations = {ANN_STORAGE_PROVISIONER: DRIVER, **metadata.get("annotations", {})}
    claim = {"metadata": metadata, "spec": SPEC}
    assert as_asked(claim, DRIVER) == {
        "metadata": {**drafted, **metadata, "annotations": annotations},
        "spec": SPEC,
    }
    assert claim == {"metadata": metadata, "spec": SPEC}


def add_source(api):
    """Add a bound claim `src`, with its volume, to the namespace."""
    metadata = {"name": "src", "namespace": "default", "uid": "s1"}
    spec = {**SPEC, "volumeName": "pv-src"}
    api.add(paths.CLAIMS, {"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}})
    volume = {
        "metadata": {"name": "pv-src"},
        "spec": {"csi": {"driver": DRIVER, "volumeHandle": "h"}, "claimRef": metadata},
        "status": {"phase": "Bound"},
    }
    api.add(paths.VOLUMES, volume)


def test_d011_a_source_is_read_and_not_protected(api):
    """csi-provisioner would add its finalizer to the source."""
    add_source(api)
    source = {"kind": "PersistentVolumeClaim", "name": "src"}
    request = request_for(api, {"spec": {**SPEC, "dataSource": source}})
    assert request.volume_content_source.volume.volume_id == "h"
    assert {one.verb for one in api.requests} == {"get"}


def test_p204_a_source_of_another_namespace_needs_its_grant(api):
    """A dry run behaves as for a claim that exists: a missing grant is an error."""
    gates = replace(Settings().gates, cross_namespace_volume_data_source=True)
    settings = replace(Settings(), gates=gates)
    source = {"kind": "PersistentVolumeClaim", "name": "src", "namespace": "elsewhere"}
    with pytest.raises(AttemptError, match="isn't allowed"):
        request_for(api, {"spec": {**SPEC, "dataSourceRef": source}}, settings=settings)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("create", ("/api/v1/x", {})),
        ("update", ("/api/v1/x", {})),
        ("patch", ("/api/v1/x", {}, "application/json-patch+json")),
        ("delete", ("/api/v1/x",)),
    ],
)
def test_a_write_is_a_mistake_of_ours_and_reaches_nobody(api, call, arguments):
    with pytest.raises(AssertionError, match="refused to write /api/v1/x"):
        getattr(ReadOnlyClient(api), call)(*arguments)
    assert api.requests == []


def test_a_pass_that_has_read_nothing_remembers_nothing():
    """A dry run has no intent either: its claim counts as existing, and as never failed."""
    fields = dict.fromkeys(("runtime", "driver", "key", "lease", "backend", "own"))
    work = ClaimWork(**fields)
    assert (work.is_orphaned, work.had_failed) == (False, False)
    assert (work.record, work.started) == (None, 0.0)
