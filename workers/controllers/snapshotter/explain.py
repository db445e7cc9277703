"""`csi-fleet explain content NAME`: what the snapshotter knows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from workers.explain import generic, nouns
from workers.explain.snapshots import content_cause
from workers.kube import paths
from workers.kube.errors import NotFoundError

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Facts, then the first cause.

    Raises:
        ApiError: the API server does not answer, or refuses to show it.
        QueueUnavailable: Redis does not answer.
    """
    found = generic.explain(tools, nouns.nouns()[noun], namespace=namespace, name=name)
    if noun != "content" or found.cause.code in generic.QUEUE_FIRST:
        return found
    try:
        content = tools.kube.get(paths.SNAPSHOT_CONTENTS, name)
    except NotFoundError:
        return found
    return replace(found, cause=replace(content_cause(content), until=found.cause.until))
