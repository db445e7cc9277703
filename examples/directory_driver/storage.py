"""Keeps volumes and snapshots on disk.

```
<root>/volumes/<volume_id>/metadata.json     size, source, topology, access type, creation time
<root>/volumes/<volume_id>/data/             the volume's content
<root>/snapshots/<snapshot_id>/metadata.json, data/
```
An entry is created under a hidden name and renamed into place, so a SIGKILL leaves a whole entry or
none. The disk is the only state: a restarted driver knows all its volumes, and several drivers can
share one root. An id is a hash of the name, so creation is idempotent by name without an index.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


class StorageError(Exception):
    """An operation is refused; `code` is the name of a gRPC status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume.

    Attributes:
        source: `snapshot:<id>`, `volume:<id>` or empty.
        segments: topology of the volume; may be empty.
        parameters: parameters of CreateVolume, with later changes by ControllerModifyVolume.
        asked: what a strict driver compares with another CreateVolume of the same name.
    """

    volume_id: str
    name: str
    capacity_bytes: int
    created_at: float
    source: str = ""
    is_block: bool = False
    segments: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, always ready to use.

    `asked` is what a strict driver compares; `places` is where the snapshot is usable, empty for
    everywhere.
    """

    snapshot_id: str
    name: str
    source_volume_id: str
    size_bytes: int
    created_at: float
    asked: dict[str, Any] = field(default_factory=dict)
    places: list[dict[str, str]] = field(default_factory=list)


_Entry = TypeVar("_Entry", Volume, Snapshot)


def entry_id(kind: str, name: str) -> str:
    """Return the id of the volume (`vol`) or snapshot (`snap`) of that name."""
    return f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


class DirectoryStore:
    """All volumes and snapshots below one root. Safe for several threads and processes.

    Args:
        root: the root folder.
        node: name of the node if each node has its own storage; it becomes part of volume ids,
            because CSI demands unique ids. "" for one shared storage.
    """

    def __init__(self, root: Path, node: str = "") -> None:
        self._node = node
        self._volumes_dir = root / "volumes"
        self._snapshots_dir = root / "snapshots"
        self._volumes = _Entries(self._volumes_dir, Volume)
        self._snapshots = _Entries(self._snapshots_dir, Snapshot)
        self._lock = _RootLock(root / ".lock")
        with self._lock:  # drafts are created under this lock, so any draft is a dead driver's
            for folder in (self._volumes_dir, self._snapshots_dir):
                for leftover in folder.glob(".*"):
                    shutil.rmtree(leftover, ignore_errors=True)

    def volumes(self, ids: Iterable[str] | None = None) -> list[Volume]:
        """Return all volumes, or those of the given ids that exist; oldest first."""
        found = self._volumes.all() if ids is None else map(self._volumes.get, ids)
        return sorted((v for v in found if v), key=lambda v: (v.created_at, v.volume_id))

    def volume(self, volume_id: str) -> Volume:
        """Return one volume.

        Raises:
            StorageError: NOT_FOUND.
        """
        found = self._volumes.get(volume_id)
        if found is None:
            raise StorageError("NOT_FOUND", f"volume {volume_id} does not exist")
        return found

    def content(self, volume_id: str) -> Path:
        """Return the path of a volume's content, even if the volume does not exist."""
        return self._volumes_dir / volume_id / "data"

    def snapshots(self) -> list[Snapshot]:
        """Return all snapshots, oldest first."""
        return sorted(self._snapshots.all(), key=lambda s: (s.created_at, s.snapshot_id))

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """Return one snapshot.

        Raises:
            StorageError: NOT_FOUND.
        """
        found = self._snapshots.get(snapshot_id)
        if found is None:
            raise StorageError("NOT_FOUND", f"snapshot {snapshot_id} does not exist")
        return found

    def find_volume(self, name: str) -> Volume | None:
        """Return the volume that was created with that name, if any."""
        return self._volumes.get(self.volume_id(name))

    def volume_id(self, name: str) -> str:
        """Return the id of the volume of that name."""
        return entry_id("vol", name) + (f".{self._node}" if self._node else "")

    def add_volume(self, volume: Volume) -> Volume:
        """Create the directory and copy the source's content into it.

        If another call has since created the volume, it is returned unchanged: the caller must
        check it like an existing one.

        Raises:
            StorageError: NOT_FOUND: the source does not exist.
        """
        with self._lock:
            known = self._volumes.get(volume.volume_id)
            if known is not None:
                return known
            content = self._source_content(volume.source)
            _write(self._volumes_dir, volume.volume_id, volume, content)
            return volume

    def change_volume(self, volume_id: str, change: Callable[[Volume], Volume]) -> Volume:
        """Change a volume's record, not its content; concurrent changes are not lost.

        Args:
            volume_id: the volume's id.
            change: returns the new record for the record on disk; may raise.

        Raises:
            StorageError: NOT_FOUND.
        """
        with self._lock:
            changed = change(self.volume(volume_id))
            folder = self._volumes_dir / volume_id
            draft = folder / "metadata.draft"
            draft.write_text(json.dumps(asdict(changed), sort_keys=True))
            draft.replace(folder / "metadata.json")
            return changed

    def remove_volume(self, volume_id: str) -> None:
        """Remove the volume; does nothing if it does not exist."""
        with self._lock:
            if self._volumes.get(volume_id) is not None:
                _remove(self._volumes_dir, volume_id)

    def add_snapshot(
        self,
        name: str,
        source_volume_id: str,
        asked: dict[str, Any],
        places: Sequence[Mapping[str, str]] = (),
    ) -> Snapshot:
        """Copy a volume to a snapshot; the same name and source return the same snapshot.

        If another call has since created the snapshot, it is returned, as in `add_volume`. The
        snapshot is usable in `places`, or where its volume is if there are none.

        Raises:
            StorageError: NOT_FOUND, or ALREADY_EXISTS for a name used with another source.
        """
        with self._lock:
            snapshot_id = entry_id("snap", name)
            known = self._snapshots.get(snapshot_id)
            if known is not None:
                if known.source_volume_id != source_volume_id:
                    raise StorageError("ALREADY_EXISTS", f"snapshot {name} has another source")
                return known
            volume = self.volume(source_volume_id)
            usable = [dict(place) for place in places or [volume.segments] if place]
            snapshot = Snapshot(
                snapshot_id,
                name,
                source_volume_id,
                volume.capacity_bytes,
                time.time(),
                asked,
                usable,
            )
            content = self._volumes_dir / source_volume_id / "data"
            _write(self._snapshots_dir, snapshot_id, snapshot, content)
            return snapshot

    def remove_snapshot(self, snapshot_id: str) -> None:
        """Remove the snapshot; does nothing if it does not exist."""
        with self._lock:
            if self._snapshots.get(snapshot_id) is not None:
                _remove(self._snapshots_dir, snapshot_id)

    def source_size(self, source: str) -> int:
        """Return the minimum size of a volume created from `source`, 0 without a source.

        Raises:
            StorageError: NOT_FOUND.
        """
        kind, _, identifier = source.partition(":")
        if kind == "snapshot":
            return self.snapshot(identifier).size_bytes
        return self.volume(identifier).capacity_bytes if kind == "volume" else 0

    def _source_content(self, source: str) -> Path | None:
        kind, _, identifier = source.partition(":")
        if kind == "snapshot":
            return self._snapshots_dir / self.snapshot(identifier).snapshot_id / "data"
        if kind == "volume":
            return self._volumes_dir / self.volume(identifier).volume_id / "data"
        return None


class _Entries(Generic[_Entry]):
    """Cached records of one kind, read again from disk when they have changed."""

    def __init__(self, folder: Path, kind: type[_Entry]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._kind: type[_Entry] = kind
        self._read: dict[str, tuple[tuple[int, int, int], _Entry]] = {}

    def get(self, identifier: str) -> _Entry | None:
        path = self._folder / identifier / "metadata.json"
        try:
            status = path.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._read.get(identifier)
            if known is None or known[0] != version:
                known = version, self._kind(**json.loads(path.read_text()))
                self._read[identifier] = known
        except (FileNotFoundError, NotADirectoryError):
            self._read.pop(identifier, None)
            return None
        return known[1]

    def all(self) -> list[_Entry]:
        names = [one.name for one in self._folder.iterdir() if not one.name.startswith(".")]
        return [entry for entry in map(self.get, names) if entry is not None]


class _RootLock:
    """A reentrant lock between threads and, by flock, between processes."""

    def __init__(self, path: Path) -> None:
        self._threads = threading.RLock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._depth = 0

    def __enter__(self) -> None:
        self._threads.acquire()
        self._depth += 1
        if self._depth == 1:
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._threads.release()


def _write(folder: Path, identifier: str, entry: Volume | Snapshot, content: Path | None) -> None:
    draft = folder / f".{identifier}-{uuid.uuid4().hex}"
    draft.mkdir()
    if content is None:
        (draft / "data").mkdir()
        (draft / "data").chmod(0o777)  # pods write as any user
    else:
        # Keeps owners and the holes of a block volume's file.
        command = ["cp", "-a", "--reflink=auto", "--sparse=always"]
        subprocess.run([*command, content, draft / "data"], check=True, capture_output=True)
    (draft / "metadata.json").write_text(json.dumps(asdict(entry), sort_keys=True))
    draft.rename(folder / identifier)


def _remove(folder: Path, identifier: str) -> None:
    grave = folder / f".{identifier}-{uuid.uuid4().hex}"
    (folder / identifier).rename(grave)
    shutil.rmtree(grave)
