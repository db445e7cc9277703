"""`csi-fleet explain pvc` as the data source validator answers it: is a validation under way?

Whether somebody populates the claim is said by `workers.explain.claims`, without this controller
too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from workers.controllers.data_source_validator.spec import SPEC
from workers.explain import generic, nouns
from workers.explain.facts import Cause

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """What the queue holds; a validator that runs nowhere keeps no claim from its volume.

    Raises:
        ApiError: the API server does not answer, or refuses to show the claim.
        QueueUnavailable: Redis does not answer.
    """
    resource = nouns.nouns()[noun].resource
    own = nouns.Noun(noun, resource, tuple((SPEC, kind) for kind in SPEC.kinds))
    found = generic.explain(tools, own, namespace=namespace, name=name)
    if found.cause.code != "no-controller":
        return found
    return replace(found, cause=Cause("nothing-to-do", "Nothing waits for it.", is_problem=False))
