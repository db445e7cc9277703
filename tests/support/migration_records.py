"""What did the reference do with migrated classes and volumes? Condenses the recorded cases.

`python -m tests.support.migration_records` reads `<shared>/parity/cases/mig-*.json` and writes
tests/unit/migration/recorded.json: the input objects, what the driver was asked and answered, and
the volume and error events that resulted. Nothing is judged or changed on the way.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "unit" / "migration" / "recorded.json"


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


def main() -> None:
    """Write the condensed records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    cases = parser.parse_args().shared / "parity" / "cases"
    records = [condense(json.loads(path.read_text())) for path in sorted(cases.glob("mig-*.json"))]
    RECORDED.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
