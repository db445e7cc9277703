"""How a report is written to the claim's status, and which volumes are polled."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from workers.controllers.health import decide
from workers.controllers.health.decide import Condition

DEGRADED, INACCESSIBLE, DATA_LOSS = 1, 2, 3


def health(*entries):
    """Return a report; each entry has a type, a reason and a message."""
    return csi.VolumeHealth(
        volume_id="v",
        health_statuses=[
            csi.VolumeHealth.VolumeHealthEntry(status=status, reason=reason, message=message)
            for status, reason, message in entries
        ],
    )


@pytest.mark.parametrize(
    ("entries", "conditions"),
    [
        pytest.param([], [], id="VH-022 none"),
        pytest.param([(DEGRADED, "Slow", "")], [("Degraded", "Slow", "")], id="VH-020 degraded"),
        pytest.param(
            [(INACCESSIBLE, "Gone", "m")], [("Inaccessible", "Gone", "m")], id="VH-020 inaccessible"
        ),
        pytest.param([(DATA_LOSS, "Lost", "m")], [("DataLoss", "Lost", "m")], id="VH-020 loss"),
        pytest.param(
            [(INACCESSIBLE, "B", ""), (DEGRADED, "Z", ""), (DEGRADED, "A", "")],
            [("Degraded", "A", ""), ("Degraded", "Z", ""), ("Inaccessible", "B", "")],
            id="VH-021 sorted",
        ),
        pytest.param([(DEGRADED, "", "m")], [("Degraded", "Unspecified", "m")], id="VHD-003 empty"),
        pytest.param(
            [(DEGRADED, one, "") for one in ("slow disk", "-3: fan é,", "42", "Fine:A,b_1")],
            [("Degraded", one, "") for one in ("Fine:A,b_1", "Unspecified", "fan__", "slow_disk")],
            id="VHD-003 what the API server refuses in a reason",
        ),
        pytest.param(
            [(DEGRADED, "A", "first"), (DEGRADED, "A", "second")],
            [("Degraded", "A", "first")],
            id="VHD-003 twice",
        ),
        pytest.param(
            [(DEGRADED, "A", "x" * 2000)], [("Degraded", "A", "x" * 1024)], id="VHD-003 long"
        ),
        pytest.param(
            [(DEGRADED, "é" * 200, "€" * 1000)],
            [("Degraded", "Unspecified", "€" * 341)],
            id="VHD-003 the API server counts bytes",
        ),
        pytest.param(
            [(DEGRADED, "A" * 256, "first"), (DEGRADED, "A" * 257, "second")],
            [("Degraded", "A" * 256, "first")],
            id="VHD-003 the same once they are cut",
        ),
        pytest.param(
            [(DEGRADED, f"R{n:02}", "") for n in range(16)] + [(DATA_LOSS, "Lost", "")],
            [("DataLoss", "Lost", ""), *[("Degraded", f"R{n:02}", "") for n in range(15)]],
            id="VHD-003 the worst of many",
        ),
        pytest.param([(99, "New", "m")], [], id="VH-023 unknown"),
        pytest.param([(0, "Zero", "m")], [], id="VH-023 zero is unknown"),
    ],
)
def test_conditions_of_a_report(entries, conditions):
    """VHT-005, VH-020..023, VHD-003."""
    assert decide.report_of(health(*entries)).conditions == tuple(
        Condition(*one) for one in conditions
    )


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ((99, "", ""), "99"),
        ((99, "New", ""), "99 (reason: New)"),
        ((99, "New", "text"), "99 (reason: New): text"),
    ],
)
def test_vh023_an_unknown_type_is_described(entry, text):
    """VHT-006, VH-023."""
    report = decide.report_of(health(entry))
    assert (report.unknown, report.unknown_types, report.is_healthy) == ((text,), ("99",), False)


def test_vh023_unknown_types_are_bounded():
    """VHT-007, VH-023, VHD-005: In an event and as labels of the metric."""
    report = decide.report_of(health(*[(n, "New", "x" * 2000) for n in (*range(10, 1000), -1)]))
    assert len(report.unknown) == 16
    assert max(map(len, report.unknown)) == 1024
    assert set(report.unknown_types) == {*map(str, range(10, 100)), "other"}


@pytest.mark.parametrize(
    ("abnormal", "conditions"),
    [(False, ()), (True, (Condition("Degraded", "VolumeConditionAbnormal", "text"),))],
)
def test_vhd010_a_volume_condition(abnormal, conditions):
    """VHT-008, VHD-010."""
    condition = csi.VolumeCondition(abnormal=abnormal, message="text")
    assert decide.report_of_condition(condition).conditions == conditions


def volume(**changes):
    """Return a bound PV of driver `d`."""
    spec = {
        "csi": {"driver": "d", "volumeHandle": "h"},
        "claimRef": {"namespace": "n", "name": "c", "uid": "u"},
        **changes.pop("spec", {}),
    }
    return {"metadata": {"name": "pv"}, "spec": spec, "status": {"phase": "Bound"}, **changes}


@pytest.mark.parametrize(
    ("item", "is_looked_at"),
    [
        pytest.param(volume(), True, id="bound"),
        pytest.param(volume(status={"phase": "Released"}), False, id="released"),
        pytest.param(volume(status={}), False, id="no phase"),
        pytest.param(volume(spec={"claimRef": None}), False, id="no claim"),
        pytest.param(volume(spec={"csi": None}), False, id="no csi"),
        pytest.param(
            volume(spec={"csi": {"driver": "e", "volumeHandle": "h"}}), False, id="another driver"
        ),
        pytest.param(
            volume(spec={"csi": {"driver": "d", "volumeHandle": ""}}), False, id="no handle"
        ),
        pytest.param(
            volume(metadata={"name": "pv", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            False,
            id="being deleted",
        ),
    ],
)
def test_vh010_volumes_of_the_driver(item, is_looked_at):
    """VHT-003, VH-010."""
    assert bool(decide.owned([item], "d")) is is_looked_at


def test_vh030_a_patch_sets_the_field_or_removes_it():
    """VHT-009, VH-030."""
    (one,) = decide.report_of(health((DEGRADED, "Slow", ""))).conditions
    assert decide.patch_of([one], "now") == {
        "status": {
            "healthStatus": {
                "healthConditions": [{"status": "Degraded", "reason": "Slow"}],
                "lastTransitionTime": "now",
            }
        }
    }
    assert decide.patch_of([], "now") == {"status": {"healthStatus": None}}
