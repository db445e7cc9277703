"""Connects the data source validator to the engine; it needs no driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.controllers.data_source_validator.decide import populator_of, wanted_kind
from workers.controllers.data_source_validator.rules import KIND
from workers.controllers.data_source_validator.spec import SPEC
from workers.engine.outcome import Outcome, done
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.observability.logging import get_logger
from workers.translate.fields import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Due
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock

_log = get_logger(__name__)

THREADS: Final = 10
COMPONENT: Final = SPEC.program
REASON: Final = "UnrecognizedDataSourceKind"
MESSAGE: Final = "The datasource for this PVC does not match any registered VolumePopulator"


class DataSourceValidator:
    """Warns about a claim if no VolumePopulator handles the kind of its data source."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return no lock, because the reconcile only writes an event."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Read the claim and the populators; warn if no populator names the kind (DV-001, DV-005).

        Raises:
            ApiError: the claim or the populators cannot be read.
        """
        del driver
        namespace, _, name = key.object.partition("/")
        try:
            claim = context.kube.get_claim(namespace, name)
        except NotFoundError:
            return done("gone")
        kind = wanted_kind(claim) if text(claim, "metadata", "uid") == key.uid else None
        if kind is None:
            return done("needs no populator")
        counted = context.metrics.data_sources
        try:
            populator = populator_of(kind, context.kube.list(paths.POPULATORS))
        except NotFoundError:  # the CRD is not installed (DV-006)
            return done("the API server does not serve VolumePopulators")
        except ApiError:
            counted.labels("error").inc()
            raise
        if populator is not None:
            counted.labels("populator").inc()
            return done(f"populator {populator}")
        counted.labels("invalid").inc()
        shown = f"{kind.kind[:100]}.{kind.group}"
        _log.warning(
            "no VolumePopulator matches the claim's data source", object=key.object, kind=shown
        )
        context.effects.reach("warn", lease)
        involved = {"apiVersion": paths.CLAIMS.api_version, "kind": paths.CLAIMS.kind, **claim}
        context.effects.event(involved, "Warning", REASON, MESSAGE, component=COMPONENT)
        return done("warned", known=text(claim, "metadata", "resourceVersion"))

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return nothing, because events and the resync queue all work."""
        del context, driver
        return ()

    def serves(self, driver: Driver) -> bool:
        """Return False, because the validator works without a driver."""
        del driver
        return False

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return the default number of concurrent validations; `--worker-threads` overrides it."""
        del driver
        return {KIND: THREADS}


CONTROLLER: Final = DataSourceValidator()
