"""Implements `csi-fleet explain pvc` and `csi-fleet explain pv`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.explain.claims import claim_cause
from workers.explain.gather import Gatherer
from workers.explain.generic import Explained
from workers.explain.volumes import volume_cause

if TYPE_CHECKING:
    from workers.cli.tools import Tools


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Gathers the facts about the object and returns the first cause that applies.

    Raises:
        ApiError: the API server does not answer, or refuses to show the object.
        QueueUnavailable: Redis does not answer.
    """
    gatherer = Gatherer(tools)
    if noun == "pvc":
        facts = gatherer.claim(namespace, name)
        return Explained(claim_cause(facts), facts.state, facts.claim, facts.volume)
    found = gatherer.volume(name)
    return Explained(volume_cause(found), found.state, None, found.volume)
