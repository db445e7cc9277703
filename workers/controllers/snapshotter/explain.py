"""Implements `csi-fleet explain content NAME` and `csi-fleet explain group-content NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.explain import snapshots

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Gathers the facts about the content and returns the first cause that applies.

    Raises:
        ApiError: the API server does not answer, or refuses to show the object.
        QueueUnavailable: Redis does not answer.
    """
    del namespace  # contents have no namespace
    shape = next(one for one in snapshots.SHAPES if one.content_word == noun)
    return snapshots.explain_content(tools, shape, name)
