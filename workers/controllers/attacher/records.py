"""Keeps what a detach needs if PV or node are gone (MA-016, MA-030, MA-032). Pure.

A record holds no secret data. It is part of the key's reconcile state in Redis, which is not
trusted: a record counts only if the attachment itself confirms it (`confirmed`).
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from workers.deadlines import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.controllers.attacher.source import Source
    from workers.kube.objects import JsonObject

Record = dict[str, Any]


def record(source: Source, driver: str, node_id: str) -> Record:
    """What the detach will need to know about this publish."""
    return {
        "driver": driver,
        "handle": source.handle,
        "node": node_id,
        "secret": list(source.secret) if source.secret else None,
    }


def with_node(mark: Mapping[str, Any], node_id: str) -> dict[str, Any]:
    """Add the node id of an earlier publish to the state; the next publish uses another id."""
    return {**mark, "nodes": list(dict.fromkeys((*mark.get("nodes", ()), node_id)))}


def begun(
    mark: Mapping[str, Any], wanted: Record, *, until: Deadline, overtaken: Deadline
) -> dict[str, Any]:
    """The reconcile state to store before a publish is sent.

    Args:
        mark: the current state.
        wanted: the record of this publish.
        until: when this call has ended for certain.
        overtaken: when all earlier calls with an unknown outcome have ended for certain.
    """
    begins = {**mark, "record": wanted, "call": {"until": until.data()}}
    begins.pop("overtaken", None)
    return begins | ({"overtaken": overtaken.data()} if overtaken else {})


def deadlines(mark: Mapping[str, Any]) -> tuple[Deadline, Deadline]:
    """When the publishes with an unknown outcome have ended for certain (MA-016)."""
    call = mark.get("call") or {}
    return Deadline.read(call.get("until")), Deadline.read(mark.get("overtaken"))


def ended(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The state after the last call has ended; earlier in-flight calls stay recorded."""
    return {name: value for name, value in mark.items() if name != "call"}


def without_calls(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The state when no call can be in flight."""
    return {name: value for name, value in mark.items() if name not in {"call", "overtaken"}}


_COUNTS: Final = frozenset({"aborted", "timeouts"})


def counts_failures(mark: Mapping[str, Any]) -> bool:
    """Return True if the state counts consecutive failures."""
    return not _COUNTS.isdisjoint(mark)


def succeeded(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a published volume: what its detach needs, without failure counts."""
    passing = {"call"} | _COUNTS
    return {name: value for name, value in mark.items() if name not in passing}


def to_text(wanted: Record) -> str:
    """The record as the annotation stores it."""
    return json.dumps(wanted, sort_keys=True, separators=(",", ":"))


def annotated(attachment: JsonObject, annotation: str) -> Record | None:
    """The record in the attachment's annotation; None if it is absent or unreadable."""
    text = (attachment["metadata"].get("annotations") or {}).get(annotation) if annotation else None
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return found if is_record(found) else None


def is_record(found: object) -> TypeGuard[Record]:
    """Return True if `found` has the shape of a record; any user can write the annotation."""
    if not isinstance(found, dict) or not (found.get("handle") and is_sendable(found["handle"])):
        return False
    secret = found.get("secret")
    is_pair = isinstance(secret, list) and len(secret) == len(("namespace", "name"))
    return not secret or (is_pair and all(map(is_sendable, secret)))


def is_sendable(value: object) -> bool:
    """Return True for a string that UTF-8 can encode; JSON can contain lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def confirmed(mark: Mapping[str, Any], attachment: JsonObject) -> Record | None:
    """The record in the state, if the attachment's name proves it (A-022).

    The attach/detach controller derives an attachment's name from the hash of handle, driver and
    node. So writing to Redis cannot direct a detach to another volume.
    """
    found = mark.get("record")
    return found if is_record(found) and proves(attachment, str(found["handle"])) else None


_HASHED: Final = re.compile("csi-[0-9a-f]{64}")


def proves(attachment: JsonObject, handle: str) -> bool:
    """Return True if the attachment's name is the hash of this volume, its driver and node."""
    spec = attachment["spec"]
    text = f"{handle}{spec['attacher']}{spec['nodeName']}"
    name = f"csi-{hashlib.sha256(text.encode()).hexdigest()}"
    return bool(name == attachment["metadata"]["name"])


def is_of_another(attachment: JsonObject, source: Source) -> bool:
    """Return True if the attachment's name shows that it was created for another volume.

    The PV was then created again under the same name. An attachment that the attach/detach
    controller did not name proves nothing, nor does an attachment of an in-tree volume, whose
    translated handle may differ between releases.
    """
    is_named = _HASHED.fullmatch(attachment["metadata"]["name"]) and not source.is_migrated
    return bool(is_named) and not proves(attachment, source.handle)
