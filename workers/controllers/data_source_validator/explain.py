"""`csi-fleet explain pvc` for the data source validator: shows whether a validation is queued.

`workers.explain.claims` reports whether a populator handles the claim, even without this
controller.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from workers.controllers.data_source_validator.decide import wanted_kind
from workers.controllers.data_source_validator.spec import SPEC
from workers.explain import generic, nouns
from workers.kube.errors import NotFoundError

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Report the claim's state in the queue; no claim has to wait for a validator that is down.

    Raises:
        ApiError: the API server does not answer, or refuses to show the claim.
        QueueUnavailable: Redis does not answer.
    """
    resource = nouns.nouns()[noun].resource
    with suppress(NotFoundError):
        if wanted_kind(tools.kube.get(resource, name, namespace=namespace)) is None:
            return generic.Explained(generic.NOTHING)  # no key is ever created for it
    own = nouns.Noun(noun, resource, tuple((SPEC, kind) for kind in SPEC.kinds))
    found = generic.explain(tools, own, namespace=namespace, name=name)
    if found.cause.code != "no-controller":
        return found
    return replace(found, cause=generic.NOTHING)
