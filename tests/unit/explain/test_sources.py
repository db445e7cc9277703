"""Which program has to fill a claim, as `explain pvc` finds out (DV-004, DV-006)."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.memory_api import MemoryApi
from workers.controllers.data_source_validator import explain as own
from workers.explain import away, generic
from workers.explain.listed import Listed
from workers.explain.nouns import nouns
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError
from workers.queue.inspect import KeyState

SOURCE = {"apiGroup": "fill.example.org", "kind": "Backup", "name": "monday"}


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    api.add(paths.STORAGE_CLASSES, {"metadata": {"name": "fast"}, "provisioner": "d"})
    return api


def add_claim(api: MemoryApi, ref: Any = SOURCE, **more: Any) -> None:
    meta = {"namespace": "shop", "name": "data", "uid": "u1", **more}
    spec = {"storageClassName": "fast", "dataSourceRef": ref}
    api.add(paths.CLAIMS, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def annotate(api: MemoryApi) -> None:
    """Set the annotation with which kube-controller-manager requests the volume."""
    path = paths.CLAIMS.path("data", namespace="shop")
    known = api.objects[path]["metadata"].setdefault("annotations", {})
    known["volume.kubernetes.io/storage-provisioner"] = "d"


def add_populator(api: MemoryApi, kind: str = "Backup") -> None:
    named = {"group": "fill.example.org", "kind": kind}
    api.add(paths.POPULATORS, {"metadata": {"name": "p"}, "sourceKind": named})


def cause(api: MemoryApi) -> Any:
    tools: Any = SimpleNamespace(kube=api.kube, redis=None)
    return away.explain(tools, nouns()["pvc"], "shop", "data").cause


def test_nobody_populates_it(api):
    add_claim(api)
    add_populator(api, "Other")
    found = cause(api)
    assert (found.code, found.is_problem) == ("no-populator", True)
    assert "Backup.fill.example.org monday" in found.text


def test_a_populator_fills_it(api):
    add_claim(api)
    add_populator(api)
    found = cause(api)
    assert (found.code, found.is_problem) == ("waits-for-populator", False)
    assert "populator p" in found.text


@pytest.mark.parametrize("kind", ["VolumeSnapshot", "PersistentVolumeClaim"])
@pytest.mark.parametrize("namespace", ["shop", "other"])
def test_a_source_that_is_not_there(api, kind, namespace):
    """The cause is not "refused", whose advice is to look for a missing permission."""
    resource = paths.SNAPSHOTS if kind == "VolumeSnapshot" else paths.CLAIMS
    source = {"kind": kind, "name": "monday", "namespace": namespace}
    add_claim(api, source | {"apiGroup": resource.group or None})
    annotate(api)
    found = cause(api)
    assert (found.code, found.is_problem) == ("source-missing", True)
    assert f"{kind} {namespace}/monday" in found.text
    api.add(resource, {"metadata": {"namespace": namespace, "name": "monday", "uid": "s"}})
    assert cause(api).code != "source-missing"


def test_a_custom_kind_is_not_looked_for_among_claims(api):
    """A deleted claim shows the difference: other claims of a custom kind need a populator."""
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    add_claim(api, SOURCE | {"kind": "PersistentVolumeClaim"}, **deleted)
    annotate(api)
    assert cause(api).code != "source-missing"


def test_a_source_that_may_not_be_read_is_not_said_to_be_missing(api):
    group = paths.SNAPSHOTS.group
    add_claim(api, {"apiGroup": group, "kind": "VolumeSnapshot", "name": "monday"})
    annotate(api)
    api.fail("get", "volumesnapshots", ForbiddenError(403, "Forbidden", "no"))
    assert cause(api).code != "source-missing"


@pytest.mark.parametrize(
    "error", [NotFoundError(404, "NotFound", "x"), ForbiddenError(403, "Forbidden", "x")]
)
def test_who_populates_is_not_known(api, error):
    """There is no CRD, or the login is not allowed to list it."""
    add_claim(api)
    api.fail("get", "volumepopulators", error)
    assert cause(api).code == "waits-for-populator"


def test_a_clone_needs_no_populator(api):
    add_claim(api, {"kind": "PersistentVolumeClaim", "name": "x"})
    assert cause(api).code == "not-requested"
    assert not any("volumepopulators" in one.path for one in api.requests)


@pytest.mark.parametrize("controllers", [["provisioner"], ["data-source-validator"]])
@pytest.mark.parametrize("fails", [0, 3])
def test_a_validator_that_does_not_run_is_no_problem(monkeypatch, api, controllers, fails):
    """It would only add details about a claim that is not filled."""
    add_claim(api)
    monkeypatch.setattr(generic, "read_key", lambda _, key: KeyState(key, 1.0, fails=fails))
    monkeypatch.setattr(generic.queueing, "last_error", lambda *_: ("refused", 1.0))
    alive = {"d": {"name": "d", "queue_name": "d", "controllers": controllers}}
    registry = SimpleNamespace(alive=lambda: alive)
    tools: Any = SimpleNamespace(kube=api.kube, redis=None, registry=registry)
    found = own.explain(tools, "pvc", "shop", "data").cause
    assert found.code == ("failed" if fails else "nothing-to-do")
    assert found.is_problem == bool(fails)


@pytest.mark.parametrize("error", [None, ForbiddenError(403, "Forbidden", "x")])
def test_populators_are_read_once_for_all_claims(api, error):
    """`pending` explains thousands of claims."""
    add_populator(api)
    if error is not None:
        api.fail("get", "volumepopulators", error)
    once = Listed(api.kube)
    for _ in range(3):
        with nullcontext() if error is None else pytest.raises(ForbiddenError):
            assert [one["metadata"]["name"] for one in once.list(paths.POPULATORS)] == ["p"]
    assert len(api.requests) == 1
