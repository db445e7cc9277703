"""What does a detach need to know when PV or node are gone (MA-016, MA-030, MA-032)? Pure.

Nothing of it is secret. It stands in the mark of the attachment's key, so in Redis, which is no
authority: a record is believed only if the attachment itself confirms it (`confirmed`).
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
    """What a publish is made with, as far as its end needs it."""
    return {
        "driver": driver,
        "handle": source.handle,
        "node": node_id,
        "secret": list(source.secret) if source.secret else None,
    }


def with_node(mark: Mapping[str, Any], node_id: str) -> dict[str, Any]:
    """The mark of a key whose publish was sent with this id, and is now sent with another one."""
    return {**mark, "nodes": list(dict.fromkeys((*mark.get("nodes", ()), node_id)))}


def begun(
    mark: Mapping[str, Any], wanted: Record, *, until: Deadline, overtaken: Deadline
) -> dict[str, Any]:
    """The mark of a key whose publish is about to be sent.

    Args:
        mark: as it is.
        wanted: the record.
        until: when the call has surely ended.
        overtaken: the same of those without a known end before it.
    """
    begins = {**mark, "record": wanted, "call": {"until": until.data()}}
    begins.pop("overtaken", None)
    return begins | ({"overtaken": overtaken.data()} if overtaken else {})


def deadlines(mark: Mapping[str, Any]) -> tuple[Deadline, Deadline]:
    """When the publishes without a known end have surely ended (MA-016)."""
    call = mark.get("call") or {}
    return Deadline.read(call.get("until")), Deadline.read(mark.get("overtaken"))


def ended(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The mark once the call has an end; not those that it overtook."""
    return {name: value for name, value in mark.items() if name != "call"}


def without_calls(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The mark when no call can be under way."""
    return {name: value for name, value in mark.items() if name not in {"call", "overtaken"}}


_COUNTS: Final = frozenset({"aborted", "timeouts"})


def counts_failures(mark: Mapping[str, Any]) -> bool:
    """Whether failures in a row stand in the mark."""
    return not _COUNTS.isdisjoint(mark)


def succeeded(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The mark of a published volume: what its detach needs, and no count of failures."""
    passing = {"call"} | _COUNTS
    return {name: value for name, value in mark.items() if name not in passing}


def to_text(wanted: Record) -> str:
    """As the annotation holds it."""
    return json.dumps(wanted, sort_keys=True, separators=(",", ":"))


def annotated(attachment: JsonObject, annotation: str) -> Record | None:
    """The record that the attachment itself carries, None without or unreadable."""
    text = (attachment["metadata"].get("annotations") or {}).get(annotation) if annotation else None
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return found if is_record(found) else None


def is_record(found: object) -> TypeGuard[Record]:
    """Whether it has the shape of a record; anybody may write an annotation."""
    if not isinstance(found, dict) or not (found.get("handle") and is_sendable(found["handle"])):
        return False
    secret = found.get("secret")
    is_pair = isinstance(secret, list) and len(secret) == len(("namespace", "name"))
    return not secret or (is_pair and all(map(is_sendable, secret)))


def is_sendable(value: object) -> bool:
    """Whether a driver or the API server can be told it; JSON also spells half characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def confirmed(mark: Mapping[str, Any], attachment: JsonObject) -> Record | None:
    """The record of the mark, if the attachment's name proves it (A-022).

    The attach/detach controller names an attachment after the hash of handle, driver and node, so
    that no writer of Redis can point a detach at another volume.
    """
    found = mark.get("record")
    return found if is_record(found) and proves(attachment, str(found["handle"])) else None


_HASHED: Final = re.compile("csi-[0-9a-f]{64}")


def proves(attachment: JsonObject, handle: str) -> bool:
    """Whether the attachment's name is that of an attachment of this volume."""
    spec = attachment["spec"]
    text = f"{handle}{spec['attacher']}{spec['nodeName']}"
    name = f"csi-{hashlib.sha256(text.encode()).hexdigest()}"
    return bool(name == attachment["metadata"]["name"])


def is_of_another(attachment: JsonObject, source: Source) -> bool:
    """Whether the attachment's name says that it was made for another volume than this one.

    So the PV was made again since, under its name. An attachment that was not named by the
    attach/detach controller says nothing, nor does one of an in-tree volume, whose translation may
    have changed with a release.
    """
    is_named = _HASHED.fullmatch(attachment["metadata"]["name"]) and not source.is_migrated
    return bool(is_named) and not proves(attachment, source.handle)
