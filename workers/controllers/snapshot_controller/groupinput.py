"""Finds the claims, the volumes and the driver of a group snapshot (SNG-002)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.snapshot_controller.creating import bound_volume
from workers.errors import AttemptError, State
from workers.kube import paths
from workers.translate import snapshot_objects as objects
from workers.translate.fields import (
    Json,
    object_list,
    optional_mapping,
    optional_text,
    text,
    text_list,
    text_map,
    value_at,
)

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.work import ObjectPass
    from workers.kube.objects import JsonObject


def named_content(group: Json) -> str | None:
    """Return the name of the content that a pre-provisioned group snapshot names."""
    return optional_text(group, "spec", "source", "volumeGroupSnapshotContentName")


def selector_of(group: Json) -> Json | None:
    """Return the label selector with which a dynamic group snapshot selects its claims."""
    return optional_mapping(group, "spec", "source", "selector")


def content_name(group: Json) -> str:
    """Return the name of the content that is created for a dynamic group snapshot (SNA-007)."""
    return f"groupsnapcontent-{objects.uid_of(group)}"


def selector_text(selector: Json) -> str:
    """Return a label selector as a string for the API, including its matchExpressions (SNG-001).

    The string is sorted by key, as Go prints it, because users see it if no claim matches.
    snapshot-controller ignores matchExpressions.
    """
    parts = [(key, f"{key}={value}") for key, value in text_map(selector, "matchLabels").items()]
    for one in object_list(selector, "matchExpressions"):
        key, operator = text(one, "key"), text(one, "operator")
        values = ",".join(sorted(text_list(one, "values")))
        words = {"Exists": key, "DoesNotExist": f"!{key}"}
        parts.append((key, words.get(operator, f"{key} {operator.lower()} ({values})")))
    return ",".join(part for _, part in sorted(parts))


def _fail(message: str) -> AttemptError:
    return AttemptError(message, State.NO_CHANGE)


def volumes_of(work: ObjectPass) -> list[JsonObject]:
    """Return the volumes of a group's claims.

    Raises:
        AttemptError: no claim matches, or a claim is not bound to a volume that names it.
    """
    selector = selector_text(selector_of(work.item) or {})
    claims = list(
        work.context.kube.list(paths.CLAIMS, namespace=work.namespace, labelSelector=selector)
    )
    if not claims:
        shown = selector or "<none>"
        raise _fail(f"label selector {shown} for group snapshot not applied to any PVC")
    return [bound_volume(work, claim, "a group snapshot") for claim in claims]


def source_driver(work: ObjectPass) -> str:
    """Return the driver of a group's first volume.

    Raises:
        AttemptError: the driver cannot be determined.
    """
    first = volumes_of(work)[0]
    if value_at(first, "spec", "csi") is None:
        key = work.key.object
        raise _fail(f"snapshotting non-CSI volumes is not supported, group snapshot:{key}")
    return text(first, "spec", "csi", "driver")
