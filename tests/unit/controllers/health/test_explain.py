"""`explain pvc` shows what the driver reports, whichever program wrote it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.memory_api import MemoryApi
from workers.controllers.health.explain import explain
from workers.kube import paths


@pytest.mark.parametrize(
    ("conditions", "code", "shown"),
    [
        ([], "nothing-to-do", ""),
        (
            [{"status": "DataLoss", "reason": "Lost"}],
            "volume-unhealthy",
            "volume: DataLoss (Lost).",
        ),
        (
            [{"status": "Degraded", "reason": "Slow", "message": "text"}],
            "volume-unhealthy",
            "volume: Degraded (Slow): text.",
        ),
    ],
)
def test_conditions_are_a_cause(conditions, code, shown):
    """VHT-052, VHD-007."""
    api = MemoryApi()
    status = {"healthStatus": {"healthConditions": conditions}} if conditions else {}
    api.add(paths.CLAIMS, {"metadata": {"name": "c", "namespace": "n"}, "status": status})
    found = explain(SimpleNamespace(kube=api.kube), "pvc", "n", "c")
    assert found.cause.code == code
    assert shown in found.cause.text


def test_a_claim_that_is_gone_has_none():
    found = explain(SimpleNamespace(kube=MemoryApi().kube), "pvc", "n", "c")
    assert found.cause.code == "nothing-to-do"
