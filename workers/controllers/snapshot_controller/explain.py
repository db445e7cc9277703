"""Implements `csi-fleet explain` for the snapshot controller's objects, such as `snapshot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.snapshot_controller import groupinput, sources
from workers.controllers.snapshot_controller.decide import expected_content
from workers.explain import generic, nouns, snapshots
from workers.kube import paths
from workers.translate import snapshot_objects as objects
from workers.translate.fields import text

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained
    from workers.kube.objects import JsonObject

_SHAPES = {"snapshot": snapshots.SNAPSHOT, "group-snapshot": snapshots.GROUP}


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Gathers the facts about the object and returns the first cause that applies.

    Raises:
        ApiError: the API server does not answer, or refuses to show the object.
        QueueUnavailable: Redis does not answer.
    """
    found = generic.explain(tools, nouns.nouns()[noun], namespace=namespace, name=name)
    shape = _SHAPES.get(noun)
    if shape is None or found.cause.code in generic.QUEUE_FIRST:
        return found
    snapshot = sources.find(tools.kube, shape.snapshots, name, namespace)
    if snapshot is None:
        return found
    wanted = _content_of(snapshot, noun)
    content = sources.find(tools.kube, shape.contents, wanted)
    held = snapshots.explain_content(tools, shape, wanted).cause if content is not None else None
    group = sources.find(
        tools.kube, paths.GROUP_SNAPSHOTS, objects.holding_group(snapshot), namespace
    )
    own = snapshots.snapshot_cause(snapshot, content, held, group, shape)
    if content is None and own.code in {"failed", "no-content"} and found.cause.code != "queued":
        own = sources.cause(tools.kube, noun, snapshot) or own
    return snapshots.with_object(found, own)


def _content_of(snapshot: JsonObject, noun: str) -> str:
    """Return the name of the content that the object is or will be bound to."""
    if noun == "snapshot":
        return objects.bound_content(snapshot) or expected_content(snapshot)
    bound = text(snapshot, "status", "boundVolumeGroupSnapshotContentName")
    return bound or groupinput.named_content(snapshot) or groupinput.content_name(snapshot)
