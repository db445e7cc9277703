"""Which attempts can only an operator end, and why?

Their claim is gone, and with it something that the request to the driver needs, such as a secret.
A volume may exist in the storage, so the record stays until it is asked again or dropped by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# As workers.controllers.provisioner.intent writes it; importing that would load far more.
STAGE_STRANDED: Final = "stranded"


@dataclass(frozen=True, slots=True)
class Stranded:
    """One such attempt.

    Attributes:
        volume: name of the PV it was for.
        key: brings it to its end once the problem is solved.
        problem: what is missing, in the words of whoever said so.
    """

    volume: str
    key: Key
    problem: str


def is_stranded(record: Mapping[str, Any]) -> bool:
    """True if nobody works on the attempt of that record."""
    return record.get("stage") == STAGE_STRANDED


def stranded(records: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Stranded]:
    """The stranded ones among intents by volume name; unreadable ones are left out."""
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
