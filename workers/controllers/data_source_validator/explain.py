"""`csi-fleet explain pvc` for the data source validator: shows whether a validation is queued.

`workers.explain.claims` reports whether a populator fills the claim, even without this controller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from workers.controllers.data_source_validator.spec import SPEC
from workers.explain import generic, nouns

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Report the state of the queue; a validator that does not run blocks no claim.

    Raises:
        ApiError: the API server does not answer, or refuses to show the claim.
        QueueUnavailable: Redis does not answer.
    """
    resource = nouns.nouns()[noun].resource
    own = nouns.Noun(noun, resource, tuple((SPEC, kind) for kind in SPEC.kinds))
    found = generic.explain(tools, own, namespace=namespace, name=name)
    if found.cause.code != "no-controller":
        return found
    return replace(found, cause=generic.NOTHING)
