"""Chooses the node whose sidecar takes a local volume's snapshot in distributed mode (SNC-080)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.topology.affinity import matches
from workers.translate.fields import Json, object_list, text, text_map

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.work import ObjectPass


def managing_node(work: ObjectPass, volume: Json) -> str:
    """Return a node that the volume's affinity allows, for the content's label; "" if none.

    A ready node that has the driver is preferred; snapshot-controller uses the first node in its
    cache (SND-030).
    """
    terms = object_list(volume, "spec", "nodeAffinity", "required", "nodeSelectorTerms")
    if not terms:
        return ""
    driver = text(volume, "spec", "csi", "driver")
    fitting = [
        node
        for node in work.context.kube.list(paths.NODES)
        if matches(terms, text_map(node, "metadata", "labels"), text(node, "metadata", "name"))
    ]
    fitting.sort(key=lambda node: (not is_ready(node), text(node, "metadata", "name")))
    for node in fitting:
        name = text(node, "metadata", "name")
        if is_ready(node) and _has_driver(work, name, driver):
            return name
    return text(fitting[0], "metadata", "name") if fitting else ""


def is_ready(node: Json) -> bool:
    """True if the node's Ready condition is True."""
    return any(
        text(condition, "type") == "Ready" and text(condition, "status") == "True"
        for condition in object_list(node, "status", "conditions")
    )


def _has_driver(work: ObjectPass, node: str, driver: str) -> bool:
    try:
        found = work.context.kube.get_csi_node(node)
    except NotFoundError:
        return False
    return any(text(one, "name") == driver for one in object_list(found, "spec", "drivers"))
