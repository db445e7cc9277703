"""What a patch of a claim leaves there, by the rules of a merge."""

from __future__ import annotations

import pytest

from tests.support.memory_api import MemoryApi
from workers.controllers.resizer.editing import ClaimEdit
from workers.kube import paths


@pytest.mark.parametrize(
    "others", [{}, {"example.com/iops": "500"}], ids=["alone", "beside others"]
)
@pytest.mark.parametrize("old", [None, "1Gi"])
@pytest.mark.parametrize("new", [None, "1Gi", "2Gi"])
def test_of_a_map_only_the_storage_entry_changes(old, new, others):
    """R-060, DR-009: an empty map goes, the entries of other resources stay."""
    api = MemoryApi()
    before = others | ({"storage": old} if old else {})
    metadata = {"name": "c", "namespace": "ns"}
    status = {"capacity": before} if before else {}
    claim = api.add(paths.CLAIMS, {"metadata": metadata, "status": status})
    edit = ClaimEdit(claim, "2026-01-01T00:00:00Z")
    edit.set_storage("capacity", new)
    patch = edit.patch()
    assert (patch is None) is (old == new)
    after = api.change(paths.CLAIMS, "c", patch, "ns") if patch else claim
    assert after["status"].get("capacity", {}) == others | ({"storage": new} if new else {})
    assert after["status"].get("capacity") != {}
