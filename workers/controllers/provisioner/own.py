"""What the provisioner keeps in a worker process: records of attempts, what it knows of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from workers.controllers.provisioner.clusters import Clusters
from workers.controllers.provisioner.safekeeping import Safekeeping
from workers.controllers.provisioner.spec import SPEC
from workers.queue.intents import IntentStore

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.engine.controller import Means


@dataclass(frozen=True, slots=True)
class Own:
    """The provisioner's own part of a `Context`; used by all threads.

    Attributes:
        intents: records of attempts, in Redis.
        safekeeping: writes them, there and in ConfigMaps.
        clusters: nodes and their topology, from the catalog.
    """

    intents: IntentStore
    safekeeping: Safekeeping
    clusters: Clusters


def build(means: Means) -> Own:
    """Once per process."""
    intents = IntentStore(means.redis, means.seal)
    return Own(
        intents=intents,
        safekeeping=Safekeeping(
            intents=intents,
            kube=means.kube,
            catalog=means.catalog,
            namespace=means.settings.kube.namespace,
        ),
        clusters=Clusters(means.catalog),
    )


def own(context: Context) -> Own:
    """The part of this process."""
    return cast("Own", context.parts[SPEC.name])
