"""Snapshots: archives of a volume's directory, in the same share (NF-050 to NF-053).

`<share>/.nfs-csi/snapshots/<sha256 of the name>/` has the archive and `record.json`, which is
written last: a snapshot exists if its record does. It is not consistent if writers continue.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.timestamp_pb2 import Timestamp

from csi_client import messages as csi
from examples.nfs_csi_driver import content
from examples.nfs_csi_driver.errors import RpcError, invalid, not_found
from examples.nfs_csi_driver.parameters import (
    SNAPSHOT_METADATA,
    SnapshotId,
    VolumeId,
    check_share,
    digest,
)
from examples.nfs_csi_driver.records import Share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from examples.nfs_csi_driver.controller import VolumeService

_KNOWN: Final = frozenset({"server", "share", "mountoptions"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The record next to an archive."""

    id: str
    name: str
    source_volume_id: str
    size: int
    restore_size: int
    created_at: float

    def message(self) -> csi.Snapshot:
        """Return the snapshot as CSI message."""
        seconds = int(self.created_at)
        nanos = int((self.created_at - seconds) * 1e9)
        return csi.Snapshot(
            snapshot_id=self.id,
            source_volume_id=self.source_volume_id,
            size_bytes=self.restore_size,
            creation_time=Timestamp(seconds=seconds, nanos=nanos),
            ready_to_use=True,
        )


class SnapshotService:
    """Snapshots of one driver's volumes."""

    def __init__(self, volumes: VolumeService) -> None:
        self._volumes = volumes

    def create_snapshot(self, request: csi.CreateSnapshotRequest) -> csi.CreateSnapshotResponse:
        """Pack the volume, or return the existing snapshot of that name."""
        if not request.name:
            raise invalid("CreateSnapshot name must be provided")
        if not request.source_volume_id:
            raise invalid("CreateSnapshot source volume ID must be provided")
        source = self._volumes.parse(request.source_volume_id)
        if source is None:
            raise not_found(f"volume {request.source_volume_id} does not exist")
        server, share_path = _place(request.parameters, source)
        key = source.name.replace("/", "%2F")
        found = SnapshotId(server, share_path, request.name, key)
        with (
            self._volumes.locks.here(f"snapshot {request.name}"),
            self._opened(server, share_path) as share,
            self._volumes.locks.everywhere(share, f"snapshot-{found.record}", request.name),
        ):
            folder = share.folder("snapshots") / found.record
            known = _read(folder)
            if known is None:
                known = self._pack(folder, found, source, request.source_volume_id)
        if known.source_volume_id != request.source_volume_id:
            raise RpcError("ALREADY_EXISTS", f"snapshot {request.name} has another source")
        return csi.CreateSnapshotResponse(snapshot=known.message())

    def _pack(self, folder: Path, found: SnapshotId, source: VolumeId, source_id: str) -> Snapshot:
        compress = self._volumes.settings.compress_snapshots
        with self._opened(source.server, source.share) as share:
            record = share.find(source.record)
            directory = share.inside(record.directory if record else source.sub_dir)
            if not directory.is_dir():
                raise not_found(f"volume {source_id} does not exist")
            shutil.rmtree(folder, ignore_errors=True)  # left by an attempt that died
            folder.mkdir()
            archive = folder / f"{digest(source.name)}{content.PACKED[0 if compress else 1]}"
            content.pack(directory, archive, compress=compress)
            snapshot = Snapshot(
                id=found.text,
                name=found.name,
                source_volume_id=source_id,
                size=archive.stat().st_size,
                restore_size=max(record.size if record else 0, content.tree_size(directory)),
                created_at=time.time(),
            )
        draft = folder / ".record.json"
        draft.write_text(json.dumps(asdict(snapshot)))
        draft.replace(folder / "record.json")
        return snapshot

    def delete_snapshot(self, request: csi.DeleteSnapshotRequest) -> csi.DeleteSnapshotResponse:
        """Delete a snapshot; an unknown one is a success (NF-052)."""
        if not request.snapshot_id:
            raise invalid("Snapshot ID is required for deletion")
        found = SnapshotId.parse(request.snapshot_id)
        if found is not None:
            with (
                self._volumes.locks.here(f"snapshot {found.name}"),
                self._opened(found.server, found.share) as share,
            ):
                folder = share.folder("snapshots") / found.record
                (folder / "record.json").unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
        return csi.DeleteSnapshotResponse()

    def list_snapshots(self, request: csi.ListSnapshotsRequest) -> csi.ListSnapshotsResponse:
        """Return by pages all snapshots of the default share, one by id, or a volume's (NF-053)."""
        found = self._all(request.snapshot_id)
        if request.snapshot_id:
            found = [one for one in found if one.id == request.snapshot_id]
        if request.source_volume_id:
            found = [one for one in found if one.source_volume_id == request.source_volume_id]
        token = request.starting_token
        if token and not (token.isdecimal() and int(token) < len(found)):
            raise RpcError("ABORTED", f"starting token {token!r} is not valid any more")
        start = int(token or 0)
        end = start + (request.max_entries or len(found))
        return csi.ListSnapshotsResponse(
            entries=[
                csi.ListSnapshotsResponse.Entry(snapshot=one.message()) for one in found[start:end]
            ],
            next_token=str(end) if end < len(found) else "",
        )

    def _all(self, snapshot_id: str) -> list[Snapshot]:
        settings = self._volumes.settings
        server, share_path = settings.default_server, settings.default_share.strip("/")
        if snapshot_id:
            parsed = SnapshotId.parse(snapshot_id)
            if parsed is None:
                return []
            server, share_path = parsed.server, parsed.share
        with self._opened(server, share_path) as share:
            folders = list(share.folder("snapshots").iterdir())
            found = [one for one in map(_read, folders) if one is not None]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    @contextmanager
    def _opened(self, server: str, share_path: str) -> Iterator[Share]:
        with self._volumes.mounter.opened(server, share_path, ()) as root:
            yield Share(root)


def _read(folder: Path) -> Snapshot | None:
    try:
        return Snapshot(**json.loads((folder / "record.json").read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _place(values: Mapping[str, str], source: VolumeId) -> tuple[str, str]:
    """Return server and share of the snapshot: the class's, else the volume's."""
    known = {}
    for key, value in values.items():
        if key.lower() in _KNOWN:
            known[key.lower()] = value
        elif key not in SNAPSHOT_METADATA:
            raise invalid(f'invalid parameter "{key}" in snapshot class')
    share = check_share(known["share"]) if known.get("share") else source.share
    return known.get("server") or source.server, share
