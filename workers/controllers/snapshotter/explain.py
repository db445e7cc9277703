"""`csi-fleet explain content NAME` and `group-content NAME`: what the snapshotter knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.explain import snapshots

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Facts, then the first cause.

    Raises:
        ApiError: the API server does not answer, or refuses to show it.
        QueueUnavailable: Redis does not answer.
    """
    del namespace  # contents have none
    shape = next(one for one in snapshots.SHAPES if one.content_word == noun)
    return snapshots.explain_content(tools, shape, name)
