"""Publishes volumes to nodes, and records which volume is published where.

`<root>/published/<volume_id>.json` has access mode and read-only flag by node id, and what else a
strict driver compares. It is written completely and renamed into place, so that it survives a kill
of the driver. It outlives its volume only if a user removes the volume's folder.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from csi_client import messages as csi
from examples.directory_driver.storage import DirectoryStore, StorageError

if TYPE_CHECKING:
    from pathlib import Path

_MODES = csi.VolumeCapability.AccessMode
_MULTI_NODE = {
    _MODES.MULTI_NODE_READER_ONLY,
    _MODES.MULTI_NODE_SINGLE_WRITER,
    _MODES.MULTI_NODE_MULTI_WRITER,
}


class Attaching:
    """ControllerPublishVolume and ControllerUnpublishVolume of the driver."""

    _store: DirectoryStore
    _published: Published
    _is_strict: bool

    def controller_publish_volume(
        self, request: csi.ControllerPublishVolumeRequest
    ) -> csi.ControllerPublishVolumeResponse:
        """Publish the volume to the node; idempotent."""
        self._require("PUBLISH_UNPUBLISH_VOLUME")
        if not request.volume_id or not request.node_id:
            raise StorageError("INVALID_ARGUMENT", "volume id or node id is missing")
        self._store.volume(request.volume_id)
        wanted: dict[str, Any] = {
            "mode": int(request.volume_capability.access_mode.mode),
            "readonly": request.readonly,
        }
        if self._is_strict:
            wanted["capability"] = json_format.MessageToDict(request.volume_capability)
        self._published.add(request.volume_id, request.node_id, wanted)
        return csi.ControllerPublishVolumeResponse(publish_context={"node": request.node_id})

    def controller_unpublish_volume(
        self, request: csi.ControllerUnpublishVolumeRequest
    ) -> csi.ControllerUnpublishVolumeResponse:
        """Unpublish from the node, or without a node id from all nodes; idempotent."""
        self._require("PUBLISH_UNPUBLISH_VOLUME")
        if not request.volume_id:
            raise StorageError("INVALID_ARGUMENT", "volume id is missing")
        self._published.remove(request.volume_id, request.node_id)
        return csi.ControllerUnpublishVolumeResponse()

    def _require(self, capability: str) -> None:
        raise NotImplementedError


class Published:
    """The records of publications; thread-safe, for one process per root."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "published"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def nodes(self, volume_id: str) -> list[str]:
        """Return the ids of the nodes that a volume is published to, sorted."""
        return sorted(self._read(volume_id))

    def add(self, volume_id: str, node_id: str, wanted: dict[str, Any]) -> None:
        """Record a publication.

        Raises:
            StorageError: ALREADY_EXISTS: published to the node in a different way.
                FAILED_PRECONDITION: published to another node, and one of the two publications
                allows only one node.
        """
        with self._lock:
            known = self._read(volume_id)
            if known.get(node_id, wanted) != wanted:
                raise StorageError("ALREADY_EXISTS", f"published to {node_id} in another way")
            others = [mode for node, mode in known.items() if node != node_id]
            if any(one["mode"] not in _MULTI_NODE for one in [*others, wanted]) and others:
                where = ", ".join(node for node in known if node != node_id)
                raise StorageError("FAILED_PRECONDITION", f"published to node {where}")
            self._write(volume_id, {**known, node_id: wanted})

    def remove(self, volume_id: str, node_id: str) -> None:
        """Remove the publication to one node, or without `node_id` to all nodes."""
        with self._lock:
            known = self._read(volume_id)
            left = {node: how for node, how in known.items() if node_id and node != node_id}
            if left != known:
                self._write(volume_id, left)

    def _read(self, volume_id: str) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = json.loads(self._path(volume_id).read_text())
        except FileNotFoundError:
            return {}
        return found

    def _write(self, volume_id: str, content: dict[str, dict[str, Any]]) -> None:
        path = self._path(volume_id)
        if not content:
            path.unlink(missing_ok=True)
            return
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(content))
        draft.replace(path)

    def _path(self, volume_id: str) -> Path:
        return self._folder / f"{volume_id.replace('/', '%2F')}.json"
