"""Reads what csi-provisioner did with migrated classes and volumes, from the recorded cases.

For each case, it returns the input objects, the driver's requests and answers, and the resulting
volume and error events. It judges and changes nothing.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.spec_ids import PARITY


def condense(case: dict[str, Any]) -> dict[str, Any]:
    """Return those parts of one recorded case that depend only on the translation."""
    objects = case["objects_before"]
    recorded = case["recorded"]
    return {
        "id": case["id"],
        "title": case["title"],
        "driver": case["driver"]["name"],
        "storage_class": next((o for o in objects if o["kind"] == "StorageClass"), None),
        "answer": case["driver"]["responses"].get("CreateVolume", [{}])[0],
        "requests": [
            {"method": call["method"], **call["request"]} for call in recorded["csi_calls"]
        ],
        "volumes": recorded["pv"],
        "failures": [
            e["message"] for e in recorded["events"] if e["reason"] == "ProvisioningFailed"
        ],
    }


def records() -> list[dict[str, Any]]:
    """Return all recorded cases of migration."""
    paths = sorted((PARITY / "cases").glob("mig-*.json"))
    return [condense(json.loads(path.read_text())) for path in paths]
