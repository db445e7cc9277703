"""The Controller service for volumes: create, delete, expand, capacity (NF-016 to NF-026).

A volume is created in three steps, and a crash may follow each of them: record `creating`,
directory (filled in `staging` and renamed into place), record `ready`. A repeated call continues at
the recorded step; content is never copied over a volume that was returned once (NFD-002).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from csi_client import messages as csi
from examples.nfs_csi_driver import content
from examples.nfs_csi_driver.errors import RpcError, invalid, not_found
from examples.nfs_csi_driver.parameters import (
    RESERVED,
    Parameters,
    SnapshotId,
    VolumeId,
    digest,
)
from examples.nfs_csi_driver.records import READY, Locks, Record, Share
from examples.nfs_csi_driver.requests import (
    check_capabilities,
    mount_options,
    requested_size,
    secret_options,
    source_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from examples.nfs_csi_driver.mounters import Mounter
    from examples.nfs_csi_driver.settings import Settings

_log = logging.getLogger(__name__)

OPEN_MODE: Final = 0o777
MAX_PARENTS: Final = 10
ARCHIVED: Final = "archived-"
CAPABILITIES: Final = (
    "CREATE_DELETE_VOLUME",
    "SINGLE_NODE_MULTI_WRITER",
    "CLONE_VOLUME",
    "CREATE_DELETE_SNAPSHOT",
    "EXPAND_VOLUME",
)


class VolumeService:
    """Volumes of one driver."""

    def __init__(self, settings: Settings, mounter: Mounter, locks: Locks) -> None:
        self.settings = settings
        self.mounter = mounter
        self.locks = locks

    def controller_get_capabilities(
        self, _: csi.ControllerGetCapabilitiesRequest
    ) -> csi.ControllerGetCapabilitiesResponse:
        """Return the capabilities for the current settings (NF-016, NF-063)."""
        names = [*CAPABILITIES]
        if self.settings.has_default:
            names += ["LIST_SNAPSHOTS", "GET_CAPACITY"]
        if self.settings.attach:
            names.append("PUBLISH_UNPUBLISH_VOLUME")
        rpc = csi.ControllerServiceCapability.RPC
        return csi.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi.ControllerServiceCapability(rpc=rpc(type=rpc.Type.Value(name)))
                for name in names
            ]
        )

    # Create.

    def create_volume(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        """Create the volume, or return the existing one if it fits (NF-020)."""
        if not request.name:
            raise invalid("CreateVolume name must be provided")
        if "/" in request.name or request.name in {".", ".."}:
            raise invalid(f"volume name {request.name!r} is no file name")
        check_capabilities(request.volume_capabilities)
        parameters = Parameters.read(request.parameters, request.name)
        if self.settings.is_demo:
            self._check_demo(parameters)
        size = requested_size(request.capacity_range)
        found = VolumeId.of(parameters, request.name)
        options = mount_options(request.volume_capabilities, request.secrets)
        wanted = Record(
            id=self._id_text(found, request.name),
            name=request.name,
            directory=found.sub_dir,
            size=size,
            parameters=parameters.context,
            source=source_text(request),
            on_delete=parameters.on_delete,
        )
        with (
            self.locks.here(request.name),
            self._share(parameters.server, parameters.share, options) as share,
            self.locks.everywhere(share, digest(request.name), request.name),
            # Two volumes must not claim the same free directory at the same time.
            self.locks.everywhere(share, _place_lock(found.sub_dir), request.name),
        ):
            record = self._recorded(share, wanted, request.capacity_range.limit_bytes)
            if record.state != READY:
                self._fill(share, record, parameters)
        return self._answer(record, request)

    def _check_demo(self, parameters: Parameters) -> None:
        """Refuse a class with another place than the flags' (NF-061)."""
        given = (parameters.server, parameters.share)
        if given != (self.settings.default_server, self.settings.default_share.strip("/")):
            raise invalid(f"class has {given}, but this driver serves only its own share")
        if parameters.sub_dir:
            raise invalid("subDir is not part of the demo profile")

    def _id_text(self, found: VolumeId, name: str) -> str:
        return f"{self.settings.id_prefix}-{name}" if self.settings.is_demo else found.text

    def _recorded(self, share: Share, wanted: Record, limit: int) -> Record:
        """Return the volume's record; writes it if there is none (NF-021)."""
        known = share.find(digest(wanted.name))
        if known is None:
            self._check_source(share, wanted)
            if not self.settings.allow_shared_directories:
                _check_place(share, wanted)
                _check_free(share, wanted)
            elif wanted.source and share.inside(wanted.directory).exists():
                raise RpcError("ALREADY_EXISTS", f"directory {wanted.directory} has content")
            share.add(digest(wanted.name), wanted)
            return wanted
        same = (known.parameters, known.source) == (wanted.parameters, wanted.source)
        fits = known.size >= wanted.size if limit else known.size == wanted.size
        if not same or not fits or (limit and known.size > limit):
            raise RpcError("ALREADY_EXISTS", f"volume {wanted.name} exists and is not the same")
        return known

    def _check_source(self, share: Share, wanted: Record) -> None:
        """Check that the source exists and fits (NF-022)."""
        if not wanted.source:
            return
        with self._source(share, wanted.source) as (_, size):
            if wanted.size and wanted.size < size:
                raise RpcError("OUT_OF_RANGE", f"the source needs {size} bytes")

    def _fill(self, share: Share, record: Record, parameters: Parameters) -> None:
        target = share.inside(record.directory)
        permissions = parameters.permissions or self.settings.mount_permissions
        target.parent.mkdir(parents=True, exist_ok=True)
        if record.source and not target.exists():
            draft = share.folder("staging") / digest(record.name)
            shutil.rmtree(draft, ignore_errors=True)  # left by an attempt that died
            with self._source(share, record.source) as (source, _):
                if source.is_dir():
                    content.copy_tree(source, draft)
                else:
                    draft.mkdir()
                    content.unpack(source, draft, any_link=RESERVED in source.parts)
            draft.rename(target)
        elif not target.exists():
            target.mkdir()
            target.chmod(permissions or OPEN_MODE)
        if permissions:
            target.chmod(permissions)
        record.state = READY
        share.update(digest(record.name), record)

    @contextmanager
    def _source(self, share: Share, source: str) -> Iterator[tuple[Path, int]]:
        """Yield directory or archive of a content source, and the minimum size of a copy.

        Raises:
            RpcError: NOT_FOUND.
        """
        kind, _, text = source.partition(":")
        if kind == "snapshot":
            snapshot = SnapshotId.parse(text)
            if snapshot is None:
                raise not_found(f"snapshot {text} does not exist")
            with self._share(snapshot.server, snapshot.share, ()) as other:
                yield find_archive(other, snapshot)
            return
        volume = self.parse(text)
        if volume is None:
            raise not_found(f"volume {text} does not exist")
        with self._share(volume.server, volume.share, ()) as other:
            record = other.find(volume.record)
            directory = other.inside(record.directory if record else volume.sub_dir)
            if not directory.is_dir():
                raise not_found(f"volume {text} does not exist")
            yield directory, record.size if record else 0
        del share

    def _answer(self, record: Record, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        volume = csi.Volume(
            volume_id=record.id,
            capacity_bytes=record.size,
            volume_context={} if self.settings.is_demo else record.parameters,
        )
        if request.HasField("volume_content_source"):
            volume.content_source.CopyFrom(request.volume_content_source)
        return csi.CreateVolumeResponse(volume=volume)

    # Delete.

    def delete_volume(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        """Delete by the policy in the id; an unknown volume is a success (NF-023)."""
        if not request.volume_id:
            raise invalid("volume id is empty")
        volume = self.parse(request.volume_id)
        if volume is None:
            _log.warning("volume %r is not ours, nothing is deleted", request.volume_id)
            return csi.DeleteVolumeResponse()
        options = secret_options(request.secrets)
        with (
            self.locks.here(volume.name),
            self._share(volume.server, volume.share, options) as share,
            self.locks.everywhere(share, volume.record, volume.name),
        ):
            self._remove(share, volume)
        return csi.DeleteVolumeResponse()

    def _remove(self, share: Share, volume: VolumeId) -> None:
        record = share.find(volume.record)
        if record is None and volume.is_short:
            return
        directory = record.directory if record else volume.sub_dir
        own = record.on_delete if record else volume.on_delete
        policy = own or self.settings.default_on_delete or "delete"
        if policy != "retain" and not self._is_shared(share, directory, volume.record):
            path = share.inside(directory)
            if policy == "archive":
                self._archive(share, path, directory)
            else:
                self._trash(share, path, volume)
            _drop_empty_parents(share, path)
        share.drop(volume.record)

    def _is_shared(self, share: Share, directory: str, own: str) -> bool:
        """Return True if another volume uses the same directory (NFD-015)."""
        if not self.settings.allow_shared_directories:
            return False
        return any(one.directory == directory and digest(one.name) != own for one in share.all())

    def _archive(self, share: Share, path: Path, directory: str) -> None:
        target = share.inside(f"{ARCHIVED}{directory}")
        if not os.path.lexists(path):
            return  # renamed by an earlier call whose answer was lost (NFD-005)
        if target.exists():
            if not self.settings.remove_archived:
                target = target.with_name(f"{target.name}-{uuid.uuid4().hex[:8]}")
            else:
                shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

    def _trash(self, share: Share, path: Path, volume: VolumeId) -> None:
        """Move the directory to the trash at once; delete it in the background (NFD-023)."""
        if path.is_symlink():
            path.unlink()
            return
        if not path.exists():
            return
        grave = share.folder("trash") / uuid.uuid4().hex
        path.rename(grave)
        if not self.settings.delete_in_background:
            shutil.rmtree(grave)
            return
        threading.Thread(target=self._empty_trash, args=(volume,), daemon=True).start()

    def _empty_trash(self, volume: VolumeId) -> None:
        """Delete everything in the trash, also what a killed process left there."""
        try:
            with self._share(volume.server, volume.share, ()) as share:
                for grave in share.folder("trash").iterdir():
                    shutil.rmtree(grave, ignore_errors=True)
        except (RpcError, OSError) as error:
            _log.warning("trash of %s is not emptied: %s", volume.share, error)

    # Other calls.

    def validate_volume_capabilities(
        self, request: csi.ValidateVolumeCapabilitiesRequest
    ) -> csi.ValidateVolumeCapabilitiesResponse:
        """Confirm all capabilities but block for an existing volume (NF-024)."""
        if not request.volume_id:
            raise invalid("volume id is empty")
        check_capabilities(request.volume_capabilities)
        self._existing(request.volume_id)
        return csi.ValidateVolumeCapabilitiesResponse(
            confirmed=csi.ValidateVolumeCapabilitiesResponse.Confirmed(
                volume_capabilities=request.volume_capabilities,
                volume_context=request.volume_context,
                parameters=request.parameters,
            )
        )

    def controller_expand_volume(
        self, request: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        """Record the new size, which never shrinks; NFS itself has no sizes (NF-025)."""
        if not request.volume_id:
            raise invalid("volume id is empty")
        size = requested_size(request.capacity_range)
        if not size:
            raise invalid("capacity range is empty")
        volume = self._existing(request.volume_id)
        with (
            self.locks.here(volume.name),
            self._share(volume.server, volume.share, secret_options(request.secrets)) as share,
        ):
            record = share.find(volume.record)
            if record is not None and record.size < size:
                record.size = size
                share.update(volume.record, record)
        return csi.ControllerExpandVolumeResponse(
            capacity_bytes=size, node_expansion_required=False
        )

    def get_capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        """Return the free space of the class's share, else of the default share."""
        values = {key.lower(): value for key, value in request.parameters.items()}
        server = values.get("server") or self.settings.default_server
        share_path = values.get("share") or self.settings.default_share
        if not server or not share_path:
            raise invalid("server and share are required")
        with self._share(server, share_path.strip("/"), ()) as share:
            status = os.statvfs(share.root)
        return csi.GetCapacityResponse(available_capacity=status.f_bavail * status.f_frsize)

    def _existing(self, text: str) -> VolumeId:
        """Return the volume of an id; an error if it does not exist."""
        volume = self.parse(text)
        if volume is not None:
            with self._share(volume.server, volume.share, ()) as share:
                record = share.find(volume.record)
                directory = record.directory if record else volume.sub_dir
                if share.inside(directory).is_dir():
                    return volume
        raise not_found(f"volume {text} does not exist")

    def parse(self, text: str) -> VolumeId | None:
        """Parse a volume id of the scheme in use."""
        if not self.settings.is_demo:
            return VolumeId.parse(text)
        name = text.removeprefix(f"{self.settings.id_prefix}-")
        if name == text or not name or "/" in name:
            return None
        share = self.settings.default_share.strip("/")
        return VolumeId(self.settings.default_server, share, name)

    @contextmanager
    def _share(self, server: str, share: str, options: Sequence[str]) -> Iterator[Share]:
        try:
            with self.mounter.opened(server, share, options) as root:
                yield Share(root)
        except OSError as error:
            raise RpcError("INTERNAL", f"share {share}: {error}") from error


def find_archive(share: Share, snapshot: SnapshotId) -> tuple[Path, int]:
    """Return archive and uncompressed size of a snapshot, also in the old layout (NF-054).

    Raises:
        RpcError: NOT_FOUND.
    """
    folder = share.folder("snapshots") / snapshot.record
    record = folder / "record.json"  # written last, so the snapshot is complete
    size = json.loads(record.read_text())["restore_size"] if record.exists() else 0
    if not record.exists() and not snapshot.is_short:
        folder = share.inside(snapshot.name)
    for ending in content.PACKED:
        for archive in sorted(folder.glob(f"[!.]*{ending}")):
            return archive, size
    raise not_found(f"snapshot {snapshot.name} does not exist")


def _check_place(share: Share, wanted: Record) -> None:
    """Refuse a directory that is, contains or is inside another volume's (NFD-015, NFD-016)."""
    own = f"{wanted.directory}/"
    if "/" not in wanted.directory and wanted.directory == wanted.name:
        others = [one for one in share.all() if "/" in one.directory or one.directory != one.name]
    else:
        others = share.all()
    for one in others:
        other = f"{one.directory}/"
        if own.startswith(other) or other.startswith(own):
            raise invalid(f"directory {wanted.directory} belongs to volume {one.name}")


def _place_lock(directory: str) -> str:
    """Return the lock's name: volumes that could conflict share the first part of their path."""
    return f"place-{digest(directory.split('/', maxsplit=1)[0])}"


def _check_free(share: Share, wanted: Record) -> None:
    """Refuse an existing directory: it has an owner, such as the last user of a kept volume."""
    if os.path.lexists(share.inside(wanted.directory)):
        raise RpcError(
            "ALREADY_EXISTS",
            f"directory {wanted.directory} exists and belongs to no volume; move it away, choose "
            "another subDir, or let volumes share directories (--allow-shared-directories)",
        )
    if wanted.directory.split("/", maxsplit=1)[0].startswith(ARCHIVED):
        raise invalid(f"directory {wanted.directory} is reserved for archived volumes")


def _drop_empty_parents(share: Share, path: Path) -> None:
    """Remove empty parent directories, but never the share itself (NFD-018)."""
    for parent in list(path.parents)[:MAX_PARENTS]:
        if share.root not in parent.parents:
            return
        try:
            parent.rmdir()
        except OSError:
            return
