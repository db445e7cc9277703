"""Determines an attachment's volume and node id, and builds the driver's requests, without I/O.

An attachment names a PV, or contains the PV spec of a migrated volume that is defined in a pod. The
record of the publish contains what a detach needs once the PV is gone. Redis and annotations are
not trusted: a record from Redis counts only if the attachment's own name confirms it.
Source: kubernetes-csi/external-attacher, pkg/controller/csi_handler.go; csi-lib-utils, accessmodes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from csi_client import messages as csi
from workers.controllers.attacher.names import EARLIER_IDS, NODE_ID, Reason
from workers.engine.live import OpenCalls
from workers.errors import AttemptError, State
from workers.migration.plugins import in_tree_source, of_volume
from workers.migration.to_csi import volume_to_csi
from workers.translate.secrets import SecretRef

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.kube.objects import JsonObject

_MULTI_NODE: Final = frozenset({"ReadOnlyMany", "ReadWriteMany"})
_HASHED: Final = re.compile("csi-[0-9a-f]{64}")


class AttachError(AttemptError):
    """An attach or detach failed; the message is written to the attachment's status.

    Args:
        message: the error text, which is csi-attacher's literal text if csi-attacher has one.
        reason: what the attachment is waiting for.
        code: the gRPC status code of the driver's response; None if the driver was not called.
    """

    def __init__(
        self, message: str, *, reason: Reason = Reason.OTHER, code: int | None = None
    ) -> None:
        super().__init__(message, State.NO_CHANGE, code=code)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Source:
    """A PV spec with a CSI source.

    Attributes:
        spec: the PV's spec, translated to CSI if the volume was in-tree.
        is_migrated: whether the volume was in-tree or is inline; only migration creates inline
            volumes.
    """

    spec: Mapping[str, Any]
    is_migrated: bool = False

    @property
    def csi(self) -> Mapping[str, Any]:
        """The CSI source."""
        found: Mapping[str, Any] = self.spec["csi"]
        return found

    @property
    def handle(self) -> str:
        """The id by which the driver identifies the volume."""
        return str(self.csi.get("volumeHandle") or "")

    @property
    def is_multi_node(self) -> bool:
        """True if several nodes can use the volume at the same time."""
        return not _MULTI_NODE.isdisjoint(self.spec.get("accessModes") or ())

    @property
    def secret(self) -> SecretRef | None:
        """The secret for publishing and unpublishing (A-055)."""
        reference = self.csi.get("controllerPublishSecretRef")
        return SecretRef(reference["name"], reference["namespace"]) if reference else None


def volume_name(attachment: JsonObject) -> str:
    """Return the name of the PV; "" for an inline volume.

    Raises:
        AttachError: the attachment has both sources or neither, or its inline volume has no CSI
            source.
    """
    source = attachment["spec"].get("source") or {}
    name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
    if name is not None and inline is not None:
        raise AttachError(
            "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source"
        )
    if inline is not None:
        if not inline.get("csi"):
            raise AttachError("inline volume spec contains nil CSI source")
        return ""
    if name is None:
        raise AttachError(
            "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source"
        )
    return str(name)


def volume_source(volume: JsonObject) -> Source:
    """Return the source of a PV's volume.

    Raises:
        AttachError: an in-tree volume cannot be translated, or there is no CSI source.
    """
    is_migrated = in_tree_source(volume) is not None
    if is_migrated:
        try:
            volume = volume_to_csi(volume)
        except AttemptError as error:
            raise AttachError(f"failed to translate in tree pv to CSI: {error.message}") from error
    if not volume["spec"].get("csi"):
        raise AttachError("pv spec contained non-csi source that was not migrated")
    return Source(volume["spec"], is_migrated=is_migrated)


def foreign_driver(volume: JsonObject, driver: str) -> str:
    """Return the driver of a PV, migrated or not, if it is not `driver`; else "".

    csi-attacher sends such a volume's handle to the wrong driver (DA-032).
    """
    plugin = of_volume(volume)
    found = str((volume["spec"].get("csi") or {}).get("driver") or "")
    found = found if plugin is None else plugin.driver_name
    return found if found and found != driver else ""


class ReplacedVolumeError(AttachError):
    """The PV was recreated for another volume, and no record has the first PV's handle."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"persistentvolume {name} is a different volume from the one that was attached, and "
            "the handle of the attached volume is not recorded. Detach that volume in the storage "
            "backend, then remove the finalizer from the attachment"
        )


def source_of(attachment: JsonObject, find: Callable[[str], JsonObject | None]) -> Source:
    """Return the source of an attachment's volume; `find` returns the PV with a given name.

    Raises:
        AttachError: the PV is missing, or a source is invalid.
    """
    name = volume_name(attachment)
    if not name:
        return Source(attachment["spec"]["source"]["inlineVolumeSpec"], is_migrated=True)
    volume = find(name)
    if volume is None:
        message = f'persistentvolume "{name}" not found'
        raise AttachError(message, reason=Reason.VOLUME_MISSING)
    return volume_source(volume)


def attached_source_of(attachment: JsonObject, find: Callable[[str], JsonObject | None]) -> Source:
    """Return the source of the volume that the attachment was created for.

    Raises:
        ReplacedVolumeError: the PV now describes another volume.
        AttachError: the PV is missing, or a source is invalid.
    """
    source = source_of(attachment, find)
    if is_of_another(attachment, source):
        raise ReplacedVolumeError(volume_name(attachment))
    return source


# Nodes.


def registered_id(node: str, csi_node: Mapping[str, Any] | None, driver: str) -> str:
    """Return the node id that the driver registered.

    Raises:
        AttachError: there is no CSINode, or the CSINode does not list the driver with an id. An
            unpublish with an empty node id would detach the volume from all nodes.
    """
    if csi_node is None:
        message = f'csinode.storage.k8s.io "{node}" not found'
        raise AttachError(message, reason=Reason.DRIVER_NOT_ON_NODE)
    for entry in csi_node["spec"].get("drivers") or ():
        if entry["name"] == driver and entry.get("nodeID"):
            return str(entry["nodeID"])
    message = f"CSINode {node} does not contain driver {driver}"
    raise AttachError(message, reason=Reason.DRIVER_NOT_ON_NODE)


def annotated_id(attachment: JsonObject) -> str:
    """Return the node id of the last publish; "" if it is unknown."""
    return str((attachment["metadata"].get("annotations") or {}).get(NODE_ID) or "")


def earlier_ids(attachment: JsonObject) -> list[str]:
    """Return the node ids of earlier publishes; an empty list if the annotation is unreadable."""
    found = _annotated_json(attachment, EARLIER_IDS)
    return list(filter(None, map(sendable, found))) if isinstance(found, list) else []


def with_earlier(attachment: JsonObject, node_id: str) -> dict[str, str]:
    """Return the annotation that keeps the last publish's node id; {} if it equals `node_id`."""
    last = annotated_id(attachment)
    if last in ("", node_id):
        return {}
    ids = dict.fromkeys((*earlier_ids(attachment), last))
    return {EARLIER_IDS: json.dumps(list(ids), separators=(",", ":"))}


# Requests.


def publish_request(
    source: Source,
    how: csi.VolumeCapability,
    node_id: str,
    secrets: Mapping[str, str],
    *,
    has_readonly: bool,
) -> csi.ControllerPublishVolumeRequest:
    """Build the publish request (A-050).

    `has_readonly`: whether the driver has PUBLISH_READONLY.
    """
    attributes: Mapping[str, Any] = source.csi.get("volumeAttributes") or {}
    return csi.ControllerPublishVolumeRequest(
        volume_id=source.handle,
        node_id=node_id,
        volume_capability=how,
        readonly=has_readonly and bool(source.csi.get("readOnly")),
        secrets=secrets,
        volume_context=attributes,
    )


def unpublish_request(
    handle: str, node_id: str, secrets: Mapping[str, str]
) -> csi.ControllerUnpublishVolumeRequest:
    """Build the unpublish request for one node; an empty node id would mean all nodes."""
    assert node_id
    return csi.ControllerUnpublishVolumeRequest(volume_id=handle, node_id=node_id, secrets=secrets)


# The record that a publish stores for its detach.


@dataclass(frozen=True, slots=True)
class Record:
    """A published volume as the driver identifies it, without secret data.

    Attributes:
        node: the node id; "" if it is not recorded.
        is_multi_node: as in `Source`; False for a stored record, which has no access modes.
    """

    driver: str
    handle: str
    node: str = ""
    secret: SecretRef | None = None
    is_multi_node: bool = False

    @classmethod
    def of(cls, source: Source, driver: str, node_id: str = "") -> Self:
        """Return the record of a PV's or an inline volume's publish."""
        return cls(driver, source.handle, node_id, source.secret, source.is_multi_node)

    @classmethod
    def read(cls, found: object) -> Self | None:
        """Read a record; None if it is malformed, because any user can write the annotation."""
        if not isinstance(found, dict) or not (handle := sendable(found.get("handle"))):
            return None
        match found.get("secret") or ("", ""):
            case [namespace, name] if sendable(namespace) == namespace and sendable(name) == name:
                secret = SecretRef(name, namespace) if name else None
                driver, node = sendable(found.get("driver")), sendable(found.get("node"))
                return cls(driver, handle, node, secret)
        return None

    def data(self) -> dict[str, Any]:
        """Return the record in its stored form."""
        secret = [self.secret.namespace, self.secret.name] if self.secret else None
        return {"driver": self.driver, "handle": self.handle, "node": self.node, "secret": secret}

    def text(self) -> str:
        """Return the record as it is written to the annotation."""
        return json.dumps(self.data(), sort_keys=True, separators=(",", ":"))


def annotated_record(attachment: JsonObject, annotation: str) -> Record | None:
    """Return the record in the attachment's annotation; None if it is absent or unreadable."""
    return Record.read(_annotated_json(attachment, annotation))


def sendable(value: object) -> str:
    """Return a string that can be encoded as UTF-8, else ""; JSON can contain lone surrogates."""
    try:
        return value if isinstance(value, str) and value.encode() else ""
    except UnicodeEncodeError:
        return ""


def proves(attachment: JsonObject, handle: str) -> bool:
    """Return True if the attachment's name is the hash of `handle`, the driver and the node.

    The attach/detach controller derives the name in this way. So write access to Redis is not
    enough to direct a detach to another volume.
    """
    spec = attachment["spec"]
    text = f"{handle}{spec['attacher']}{spec['nodeName']}"
    name = f"csi-{hashlib.sha256(text.encode()).hexdigest()}"
    return bool(name == attachment["metadata"]["name"])


def proven(attachment: JsonObject, record: Record | None) -> Record | None:
    """Return the record if the attachment's name confirms that it is genuine, else None."""
    return record if record and proves(attachment, record.handle) else None


def is_of_another(attachment: JsonObject, source: Source) -> bool:
    """Return True if the attachment's name shows that it was created for another volume.

    In that case the PV has been recreated under the same name. An attachment's name proves nothing
    if another program chose the name, or if the volume is in-tree, because the translated handle
    may differ between releases.
    """
    is_named = _HASHED.fullmatch(attachment["metadata"]["name"]) and not source.is_migrated
    return bool(is_named) and not proves(attachment, source.handle)


def _annotated_json(attachment: JsonObject, annotation: str) -> object:
    """Decode an annotation, which any user may have written; return None if it is unreadable."""
    text = (attachment["metadata"].get("annotations") or {}).get(annotation) if annotation else None
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Memory:
    """The reconcile state of an attachment, stored in the key's mark.

    Attributes:
        record: the record of the last publish.
        nodes: the node ids that earlier publishes used.
        calls: the publishes that may still be running.
        aborted: the number of consecutive ABORTED responses.
        timeouts: the number of consecutive calls without a response.
    """

    record: Record | None = None
    nodes: tuple[str, ...] = ()
    calls: OpenCalls = field(default_factory=OpenCalls)
    aborted: int = 0
    timeouts: int = 0

    @classmethod
    def read(cls, mark: Mapping[str, Any]) -> Self:
        """Read the state from a mark."""
        return cls(
            record=Record.read(mark.get("record")),
            nodes=tuple(mark.get("nodes") or ()),
            calls=OpenCalls.read((mark.get("call") or {}).get("until"), mark.get("overtaken")),
            aborted=int(mark.get("aborted") or 0),
            timeouts=int(mark.get("timeouts") or 0),
        )

    def succeeded(self) -> Self:
        """Return the state after a successful publish: no failures and no open call."""
        return replace(self, calls=self.calls.answered(), aborted=0, timeouts=0)

    def mark(self) -> dict[str, Any]:
        """Return the state as a mark, without empty fields."""
        found = {
            "record": self.record.data() if self.record else None,
            "nodes": list(self.nodes),
            "call": {"until": self.calls.newest.data()} if self.calls.newest else None,
            "overtaken": self.calls.earlier.data(),
            "aborted": self.aborted,
            "timeouts": self.timeouts,
        }
        return {name: value for name, value in found.items() if value}
