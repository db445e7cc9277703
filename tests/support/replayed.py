"""Names the test that writes back old records of each family that Redis stores by driver.

`tests/unit/queue/test_replayed.py` fails for a family without a test, and for a test that no longer
exists.
"""

from __future__ import annotations

from typing import Final

EVERY: Final = "tests/e2e/test_every_replay.py::test_what_is_put_back_changes_nothing"
_CAPACITY: Final = (
    "tests/integration/controllers/capacity/test_publishing.py"
    "::test_old_records_of_capacity_leave_the_objects_as_they_are"
)
_SHADOW: Final = (
    "tests/integration/queue/test_shadow_records.py::test_what_is_no_prediction_is_not_told"
)

REPLAYED: Final = {
    **dict.fromkeys(("intents", "unsaved", "marks", "memos", "saved", "links"), EVERY),
    "chosen": "tests/unit/drivers/test_replica.py::test_where_to",
    "capacity": _CAPACITY,
    "capacity_uids": _CAPACITY,
    "capacity_obsolete": _CAPACITY,
    "capacity_planned": _CAPACITY,
    "capacity_turn": _CAPACITY,
    # Predictions and verdicts are only for people; they have no effect.
    "shadow_open": _SHADOW,
    "shadow_counts": _SHADOW,
    "shadow_notes": _SHADOW,
    "shadow_known": _SHADOW,
}
