"""Finds the attempts that only an operator can finish.

The claim of such an attempt is gone, and so is something that the driver's request needs, such as a
secret. A volume may exist in the storage backend, so the intent is kept until an operator retries
or drops it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# workers.controllers.provisioner.intent sets this stage. That module is not imported, because it
# would load far more than this module needs.
STAGE_STRANDED: Final = "stranded"


@dataclass(frozen=True, slots=True)
class Stranded:
    """One stranded attempt.

    Attributes:
        volume: the name of the attempt's PV.
        key: the key whose reconcile finishes the attempt once the problem is solved.
        problem: the error message, which says what is missing.
    """

    volume: str
    key: Key
    problem: str


def is_stranded(record: Mapping[str, Any]) -> bool:
    """Return True if no worker continues the attempt that this intent records."""
    return record.get("stage") == STAGE_STRANDED


def stranded(records: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Stranded]:
    """Return the stranded attempts, sorted by volume name; unreadable intents are left out."""
    found = []
    for volume, record in records:
        if not is_stranded(record):
            continue
        try:
            key = Key.parse(str(record.get("key", "")))
        except ValueError:
            continue
        found.append(Stranded(volume, key, str(record.get("problem") or "")))
    return sorted(found, key=lambda one: one.volume)
