"""`csi-fleet explain pvc` for the health controller: what the driver reports."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from workers.controllers.health.decide import Condition, stored
from workers.explain import generic, nouns
from workers.explain.facts import Cause
from workers.kube.errors import NotFoundError

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Report the conditions in the claim's status, even if no worker runs the controller.

    Raises:
        ApiError: the API server does not answer, or refuses to show the claim.
    """
    found: tuple[Condition, ...] = ()
    with suppress(NotFoundError):
        resource = nouns.nouns()[noun].resource
        found = stored(tools.kube.get(resource, name, namespace=namespace))
    if not found:
        return generic.Explained(generic.NOTHING)
    shown = "; ".join(
        f"{one.status} ({one.reason}){f': {one.message}' if one.message else ''}" for one in found
    )
    return generic.Explained(
        Cause(
            "volume-unhealthy",
            f"The driver reports about the claim's volume: {shown}.",
            "Look for the volume in the storage system. csi-fleet removes the report when the "
            "driver no longer makes it.",
        )
    )
