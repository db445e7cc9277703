"""Which drivers have workers that run a controller?

Workers announce their drivers with the controllers that work for each; a driver whose move is half
done has workers, but none for what is asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

PROVISIONER: Final = "provisioner"


def runs(record: Mapping[str, Any], *controllers: str) -> bool:
    """Whether workers that serve the driver run one of these controllers."""
    return not set(controllers).isdisjoint(record.get("controllers") or ())


def of_controller(
    records: Mapping[str, Mapping[str, Any]], controller: str
) -> dict[str, Mapping[str, Any]]:
    """The drivers' records, by queue name, of those whose workers run the controller."""
    return {
        queue_name: record for queue_name, record in records.items() if runs(record, controller)
    }


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
        known = {str(record.get("name")) for record in records.values()}
        served = of_controller(records, controller).values()
        names = {str(record.get("name")) for record in served}
        return cls(controller, tuple(sorted(names)), tuple(sorted(known - names)))


NOBODY: Final = Served(PROVISIONER)
