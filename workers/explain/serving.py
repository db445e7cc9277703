"""Finds the drivers whose workers run a given controller.

Workers register each driver with the controllers that they run for it. During a migration, a driver
may have workers, but none that run the controller in question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
PROVISIONER: Final = "provisioner"


class Records(dict[str, "Mapping[str, Any]"]):
    """The registrations of drivers at one moment; they are never modified.

    Explaining thousands of objects requires the same derived values for each object, so these
    values are cached in `known`.
    """

    def __init__(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(records)
        self.known: dict[Any, Any] = {}


def kept(records: Mapping[str, Mapping[str, Any]], what: Any, work_out: Callable[[], T]) -> T:
    """Return `work_out()`; the result is cached if `records` is a `Records`."""
    if not isinstance(records, Records):
        return work_out()
    if what not in records.known:
        records.known[what] = work_out()
    found: T = records.known[what]
    return found


def runs(record: Mapping[str, Any], *controllers: str) -> bool:
    """Return True if the driver's workers run one of these controllers."""
    return not set(controllers).isdisjoint(record.get("controllers") or ())


def of_controller(
    records: Mapping[str, Mapping[str, Any]], controller: str
) -> dict[str, Mapping[str, Any]]:
    """Return the registrations, by queue name, of drivers whose workers run the controller."""
    return kept(
        records,
        ("of", controller),
        lambda: {name: record for name, record in records.items() if runs(record, controller)},
    )


@dataclass(frozen=True, slots=True)
class Served:
    """The drivers that the workers of one controller serve.

    Attributes:
        controller: the name of the controller.
        names: the drivers whose workers run the controller.
        others: the drivers whose workers run only other controllers.
    """

    controller: str
    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @classmethod
    def by(cls, records: Mapping[str, Mapping[str, Any]], controller: str) -> Self:
        """Build the result for one controller from the registrations of all drivers."""
        return kept(records, ("served", controller), lambda: cls._read(records, controller))

    @classmethod
    def _read(cls, records: Mapping[str, Mapping[str, Any]], controller: str) -> Self:
        known = {str(record.get("name")) for record in records.values()}
        served = of_controller(records, controller).values()
        names = {str(record.get("name")) for record in served}
        return cls(controller, tuple(sorted(names)), tuple(sorted(known - names)))


NOBODY: Final = Served(PROVISIONER)
