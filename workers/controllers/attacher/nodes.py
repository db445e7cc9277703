"""Finds the ids under which a driver knows a node (A-056, A-122, DA-003). Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from workers.controllers.attacher import texts
from workers.controllers.attacher.names import EARLIER_IDS, NODE_ID
from workers.controllers.attacher.records import is_sendable
from workers.controllers.attacher.source import AttachError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject


def registered_id(node: str, csi_node: Mapping[str, Any] | None, driver: str) -> str:
    """The node id that the driver registered.

    Raises:
        AttachError: there is no CSINode, or it does not list the driver with an id. An unpublish
            with an empty node id would detach the volume from all nodes.
    """
    if csi_node is None:
        raise AttachError(texts.node_missing(node))
    for entry in csi_node["spec"].get("drivers") or ():
        if entry["name"] == driver and entry.get("nodeID"):
            return str(entry["nodeID"])
    raise AttachError(texts.driver_missing(node, driver))


def annotated_id(attachment: JsonObject) -> str:
    """The node id of the last publish, "" if none is known."""
    return str((attachment["metadata"].get("annotations") or {}).get(NODE_ID) or "")


def earlier_ids(attachment: JsonObject) -> list[str]:
    """The node ids of publishes before the last one; empty if the annotation is unreadable.

    Any user might have written the annotation.
    """
    text = (attachment["metadata"].get("annotations") or {}).get(EARLIER_IDS)
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        found = []
    return [one for one in found if one and is_sendable(one)] if isinstance(found, list) else []


def with_earlier(attachment: JsonObject, node_id: str) -> dict[str, str]:
    """The annotation that preserves the id of the last publish; {} if `node_id` is the same."""
    last = annotated_id(attachment)
    if last in ("", node_id):
        return {}
    ids = dict.fromkeys((*earlier_ids(attachment), last))
    return {EARLIER_IDS: json.dumps(list(ids), separators=(",", ":"))}
