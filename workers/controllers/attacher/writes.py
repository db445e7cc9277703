"""The bodies of the attacher's writes (A-024, A-057, A-058, DA-014, DA-017). Pure.

Each patch names the object's uid, so that a late worker cannot change an attachment that was
created again under the same name (MA-031). A list of finalizers or node ids also names the
resourceVersion at which it was read, so that no other change is lost.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.attacher.names import EARLIER_IDS, NODE_ID
from workers.kube import finalizers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.controllers.attacher.source import AttachError
    from workers.kube.objects import JsonObject

MAX_MESSAGE_BYTES: Final = 1024
"""The API server refuses longer VolumeError messages: kubernetes, pkg/apis/storage/validation."""

MAX_METADATA_BYTES: Final = 256 * 1024
"""Limit of attachmentMetadata, keys and values together; the same file."""

REWRITE_SECONDS: Final = 60.0
"""An unchanged error is written again after this time, to renew its timestamp (DA-020)."""


def mark_patch(
    attachment: JsonObject, finalizer: str, node_id: str, extra: Mapping[str, str]
) -> JsonObject | None:
    """Add finalizer and node id before a publish in one request; None if both are present."""
    metadata = attachment["metadata"]
    wanted = {NODE_ID: node_id, **extra} if node_id else dict(extra)
    known = metadata.get("annotations") or {}
    changed = {name: value for name, value in wanted.items() if known.get(name) != value}
    names, is_new = finalizers.added(metadata.get("finalizers"), finalizer)
    if not (is_new or changed):
        return None
    body: dict[str, Any] = _identity(metadata)
    if is_new:
        body["finalizers"] = names
    if is_new or EARLIER_IDS in changed:
        body["resourceVersion"] = metadata["resourceVersion"]
    if changed:
        body["annotations"] = changed
    return {"metadata": body}


def without_finalizer_patch(item: JsonObject, finalizer: str) -> JsonObject | None:
    """Remove all copies of the finalizer and keep the others; None if it is absent."""
    metadata = item["metadata"]
    left, is_changed = finalizers.removed(metadata.get("finalizers"), finalizer)
    if not is_changed:
        return None
    body = {"finalizers": left or None, "resourceVersion": metadata["resourceVersion"]}
    return {"metadata": _identity(metadata) | body}


def with_finalizer_patch(item: JsonObject, finalizer: str) -> JsonObject | None:
    """Append the finalizer to the list; None if it is present (A-025)."""
    metadata = item["metadata"]
    names, is_new = finalizers.added(metadata.get("finalizers"), finalizer)
    if not is_new:
        return None
    body = {"finalizers": names, "resourceVersion": metadata["resourceVersion"]}
    return {"metadata": _identity(metadata) | body}


def attached_patch(attachment: JsonObject, context: Mapping[str, str]) -> JsonObject:
    """Status of a published volume; old metadata keys are removed one by one, for the merge."""
    known = (attachment.get("status") or {}).get("attachmentMetadata") or {}
    gone = dict.fromkeys(known.keys() - context.keys())
    status = {
        "attached": True,
        "attachmentMetadata": {**context, **gone} if context else None,
        "attachError": None,
    }
    return {"metadata": _identity(attachment["metadata"]), "status": status}


def detached_patch(attachment: JsonObject) -> JsonObject:
    """Status of a detached volume."""
    status = {"attached": False, "attachmentMetadata": None, "detachError": None}
    return {"metadata": _identity(attachment["metadata"]), "status": status}


def error_patch(
    attachment: JsonObject, field: str, error: AttachError, *, with_code: bool, now: datetime
) -> JsonObject | None:
    """Status with `attachError` or `detachError`; None if the same error was written recently.

    The code is never invented: Kubernetes takes 8 (RESOURCE_EXHAUSTED) for a full node (A-057).
    """
    code = error.code if with_code and field == "attachError" else None
    content: dict[str, Any] = {"message": cut(error.message), "errorCode": code}
    known = (attachment.get("status") or {}).get(field)
    if known and all(known.get(name) == value for name, value in content.items()):
        # An error without a time was not written by us: replace it.
        written = known.get("time")
        if written and (now - datetime.fromisoformat(written)).total_seconds() < REWRITE_SECONDS:
            return None
    content["time"] = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if field == "detachError":
        del content["errorCode"]
    return {"metadata": _identity(attachment["metadata"]), "status": {field: content}}


def cut(message: str) -> str:
    """Shorten to at most 1024 bytes, at a character boundary (DA-017)."""
    data = message.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "..."


def metadata_bytes(context: Mapping[str, str]) -> int:
    """Size in bytes of a publish context as the API server counts it."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in context.items())


def _identity(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"uid": metadata["uid"]}
