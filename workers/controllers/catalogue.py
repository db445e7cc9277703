"""The only list of the controllers; everything else is derived from it.

Importing this module is cheap, because only `workers.engine.controller.load` imports the
controllers' code.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.attacher.spec import SPEC as ATTACHER
from workers.controllers.capacity.spec import SPEC as CAPACITY
from workers.controllers.data_source_validator.spec import SPEC as DATA_SOURCE_VALIDATOR
from workers.controllers.health.spec import SPEC as HEALTH
from workers.controllers.provisioner.spec import SPEC as PROVISIONER
from workers.controllers.resizer.spec import SPEC as RESIZER
from workers.controllers.snapshot_controller.spec import SPEC as SNAPSHOT_CONTROLLER
from workers.controllers.snapshotter.spec import SPEC as SNAPSHOTTER
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.spec import Kind, Spec

SPECS: Final[tuple[Spec, ...]] = (
    PROVISIONER,
    CAPACITY,
    RESIZER,
    SNAPSHOTTER,
    SNAPSHOT_CONTROLLER,
    ATTACHER,
    DATA_SOURCE_VALIDATOR,
    HEALTH,
)

ALL: Final = "all"


def choose(text: str) -> tuple[Spec, ...]:
    """Return the controllers, with their parts, that `--controllers` (`a,b` or `all`) names.

    Raises:
        ConfigError: a name is unknown, or no name is given.
    """
    known = {spec.name: spec for spec in SPECS if not spec.part_of}
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    if ALL in wanted:
        wanted = list(known)
    for name in wanted:
        if name not in known:
            names = ", ".join([*known, ALL])
            raise ConfigError(
                f"--controllers: unknown controller {name}; the known controllers are {names}"
            )
    if not wanted:
        raise ConfigError("--controllers: name at least one controller")
    return tuple(spec for spec in SPECS if (spec.part_of or spec.name) in wanted)


def specs(names: Iterable[str]) -> tuple[Spec, ...]:
    """Return the controllers with these names."""
    wanted = frozenset(names)
    return tuple(spec for spec in SPECS if spec.name in wanted)


@cache
def kinds() -> dict[str, Kind]:
    """Map the name of every kind of key to the kind."""
    return {kind.name: kind for spec in SPECS for kind in spec.kinds}


def program_of(kind: str) -> str:
    """Return the Go program that does the work for this kind of key; "Go" if there is none."""
    return next((spec.program for spec in SPECS if kind in (one.name for one in spec.kinds)), "Go")


@cache
def driver_kinds() -> tuple[str, ...]:
    """Return the kinds whose work belongs to a driver; their lanes are paused with the driver."""
    return tuple(kind.name for kind in kinds().values() if kind.has_driver)


def kinds_with_parts(spec: Spec) -> tuple[str, ...]:
    """Return the names of the kinds of a controller and of its parts."""
    return tuple(
        kind.name for one in SPECS if spec.name in {one.name, one.part_of} for kind in one.kinds
    )


@cache
def lanes() -> dict[str, str]:
    """Map each operation to the kind of key whose reconcile performs it."""
    found: dict[str, str] = {}
    for kind in kinds().values():
        for operation in kind.operations:
            found.setdefault(operation, kind.name)
    return found


@cache
def work_queues() -> dict[str, str]:
    """Map each kind to the name of the Go program's work queue, as used in its metrics (L-096)."""
    return {kind.name: kind.work_queue for kind in kinds().values()}


def program(name: str) -> Spec | None:
    """Return the controller that the drop-in command `name` (`csi-attacher`) runs, or None."""
    return next((spec for spec in SPECS if spec.program == name and not spec.part_of), None)


@cache
def explainer(name: str) -> Callable[[Any, str, str, str], Any] | None:
    """Return a controller's function `explain(tools, noun, namespace, name)`, or None."""
    folder = f"workers.controllers.{name.replace('-', '_')}"
    if importlib.util.find_spec(f"{folder}.explain") is None:
        return None
    return getattr(importlib.import_module(f"{folder}.explain"), "explain", None)
