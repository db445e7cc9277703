"""`csi-fleet explain snapshot NAMESPACE/NAME`: what the snapshot controller knows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from workers.controllers.snapshot_controller.decide import expected_content
from workers.explain import generic, nouns
from workers.explain.snapshots import snapshot_cause
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.translate import snapshot_objects as objects

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Facts, then the first cause.

    Raises:
        ApiError: the API server does not answer, or refuses to show it.
        QueueUnavailable: Redis does not answer.
    """
    known = nouns.nouns()
    found = generic.explain(tools, known[noun], namespace=namespace, name=name)
    if noun != "snapshot" or found.cause.code in generic.QUEUE_FIRST:
        return found
    try:
        snapshot = tools.kube.get_snapshot(namespace, name)
    except NotFoundError:
        return found
    wanted = objects.bound_content(snapshot) or expected_content(snapshot)
    content = _find(tools, paths.SNAPSHOT_CONTENTS, wanted)
    group = _find(tools, paths.GROUP_SNAPSHOTS, objects.holding_group(snapshot), namespace)
    cause = snapshot_cause(snapshot, content, group)
    if content is not None and cause.is_problem:
        # What holds the content's key holds the snapshot: a pause of the driver for example.
        held = generic.explain(tools, known["content"], namespace="", name=wanted).cause
        if held.code in generic.QUEUE_FIRST:
            return replace(
                found, cause=replace(held, text=f"It waits for its content {wanted}: {held.text}")
            )
    return replace(found, cause=replace(cause, until=found.cause.until))


def _find(tools: Tools, resource: Resource, name: str, namespace: str = "") -> JsonObject | None:
    try:
        return tools.kube.get(resource, name, namespace=namespace) if name else None
    except NotFoundError:
        return None
