"""What did the reference do with migrated classes and volumes? The recorded cases, condensed.

Of each case the input objects, what the driver was asked and answered, and the volume and error
events that resulted. Nothing is judged or changed on the way.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.spec_ids import PARITY


def condense(case: dict[str, Any]) -> dict[str, Any]:
    """The parts of one recorded case that the pure translation answers for."""
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
    """All recorded cases of migration."""
    paths = sorted((PARITY / "cases").glob("mig-*.json"))
    return [condense(json.loads(path.read_text())) for path in paths]
