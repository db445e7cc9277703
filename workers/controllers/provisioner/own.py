"""Builds the provisioner's per-process state: the intents and the topology."""

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
    """The provisioner's own state in a `Context`; all threads use it.

    Attributes:
        intents: the intents in Redis.
        safekeeping: writes intents to Redis and to ConfigMaps.
        clusters: the nodes and their topology, from the shared cache.
    """

    intents: IntentStore
    safekeeping: Safekeeping
    clusters: Clusters


def build(means: Means) -> Own:
    """Builds the provisioner's per-process state; called once per process."""
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
    """Return the provisioner's per-process state."""
    return cast("Own", context.parts[SPEC.name])
