"""Which drivers have workers that run a controller?

Workers announce their drivers with the controllers that work for each; a driver whose move is half
done has workers, but none for what is asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
PROVISIONER: Final = "provisioner"


class Records(dict[str, "Mapping[str, Any]"]):
    """Drivers' records of one moment, which nobody changes: what follows from them is kept.

    A question about thousands of objects asks the same of twenty drivers for each of them.
    """

    def __init__(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(records)
        self.known: dict[Any, Any] = {}


def kept(records: Mapping[str, Mapping[str, Any]], what: Any, work_out: Callable[[], T]) -> T:
    """What follows from the records, worked out once where these are of one moment."""
    if not isinstance(records, Records):
        return work_out()
    if what not in records.known:
        records.known[what] = work_out()
    found: T = records.known[what]
    return found


def runs(record: Mapping[str, Any], *controllers: str) -> bool:
    """Whether workers that serve the driver run one of these controllers."""
    return not set(controllers).isdisjoint(record.get("controllers") or ())


def of_controller(
    records: Mapping[str, Mapping[str, Any]], controller: str
) -> dict[str, Mapping[str, Any]]:
    """The drivers' records, by queue name, of those whose workers run the controller."""
    return kept(
        records,
        ("of", controller),
        lambda: {name: record for name, record in records.items() if runs(record, controller)},
    )


@dataclass(frozen=True, slots=True)
class Served:
    """What one controller's workers serve.

    Attributes:
        controller: its name.
        names: of the drivers whose workers run it.
        others: of the drivers whose workers run other controllers only.
    """

    controller: str
    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @classmethod
    def by(cls, records: Mapping[str, Mapping[str, Any]], controller: str) -> Self:
        """Read it off the records of all drivers."""
        return kept(records, ("served", controller), lambda: cls._read(records, controller))

    @classmethod
    def _read(cls, records: Mapping[str, Mapping[str, Any]], controller: str) -> Self:
        known = {str(record.get("name")) for record in records.values()}
        served = of_controller(records, controller).values()
        names = {str(record.get("name")) for record in served}
        return cls(controller, tuple(sorted(names)), tuple(sorted(known - names)))


NOBODY: Final = Served(PROVISIONER)
