"""How are volumes and snapshots kept on disk?

```
<root>/volumes/<volume_id>/metadata.json     size, source, topology, access type, creation time
<root>/volumes/<volume_id>/data/             the volume's content
<root>/snapshots/<snapshot_id>/metadata.json, data/
```
An entry is made under a hidden name and renamed into place, so a SIGKILL leaves a whole entry or
none. The disk is the only state: a restarted driver knows all its volumes. An id is a hash of the
name, which is what makes creation idempotent by name without an index.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path


class StorageError(Exception):
    """An operation is refused; `code` is the name of the gRPC status that says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume. `source` is `snapshot:<id>`, `volume:<id>` or empty; `segments` may be empty."""

    volume_id: str
    name: str
    capacity_bytes: int
    created_at: float
    source: str = ""
    is_block: bool = False
    segments: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, always ready to use."""

    snapshot_id: str
    name: str
    source_volume_id: str
    size_bytes: int
    created_at: float


_Entry = TypeVar("_Entry", Volume, Snapshot)


def entry_id(kind: str, name: str) -> str:
    """Return the id of the volume (`vol`) or snapshot (`snap`) of that name."""
    return f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


class DirectoryStore:
    """All volumes and snapshots below one root. Thread-safe; one process per root."""

    def __init__(self, root: Path) -> None:
        self._lock = threading.RLock()
        self._volumes_dir = root / "volumes"
        self._snapshots_dir = root / "snapshots"
        for folder in (self._volumes_dir, self._snapshots_dir):
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".*"):
                shutil.rmtree(leftover, ignore_errors=True)
        self._volumes = _load(self._volumes_dir, Volume)
        self._snapshots = _load(self._snapshots_dir, Snapshot)

    def volumes(self) -> list[Volume]:
        """Return all volumes, oldest first."""
        with self._lock:
            return sorted(self._volumes.values(), key=lambda v: (v.created_at, v.volume_id))

    def volume(self, volume_id: str) -> Volume:
        """Return one volume.

        Raises:
            StorageError: NOT_FOUND.
        """
        with self._lock:
            if volume_id not in self._volumes:
                raise StorageError("NOT_FOUND", f"volume {volume_id} does not exist")
            return self._volumes[volume_id]

    def snapshots(self) -> list[Snapshot]:
        """Return all snapshots, oldest first."""
        with self._lock:
            return sorted(self._snapshots.values(), key=lambda s: (s.created_at, s.snapshot_id))

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """Return one snapshot.

        Raises:
            StorageError: NOT_FOUND.
        """
        with self._lock:
            if snapshot_id not in self._snapshots:
                raise StorageError("NOT_FOUND", f"snapshot {snapshot_id} does not exist")
            return self._snapshots[snapshot_id]

    def find_volume(self, name: str) -> Volume | None:
        """Return the volume made under that name, if any."""
        with self._lock:
            return self._volumes.get(entry_id("vol", name))

    def add_volume(self, volume: Volume) -> Volume:
        """Make the directory and copy the source's content into it.

        A volume that another call has made meanwhile is returned as it is: check it like one that
        was found.

        Raises:
            StorageError: NOT_FOUND, the source does not exist.
        """
        with self._lock:
            known = self._volumes.get(volume.volume_id)
            if known is not None:
                return known
            content = self._source_content(volume.source)
            _write(self._volumes_dir, volume.volume_id, volume, content)
            self._volumes[volume.volume_id] = volume
            return volume

    def change_volume(self, volume: Volume) -> None:
        """Write a volume's record anew, content untouched."""
        with self._lock:
            folder = self._volumes_dir / self.volume(volume.volume_id).volume_id
            draft = folder / "metadata.draft"
            draft.write_text(json.dumps(asdict(volume), sort_keys=True))
            draft.replace(folder / "metadata.json")
            self._volumes[volume.volume_id] = volume

    def remove_volume(self, volume_id: str) -> None:
        """Remove the volume; does nothing when it is gone already."""
        with self._lock:
            if self._volumes.pop(volume_id, None) is not None:
                _remove(self._volumes_dir, volume_id)

    def add_snapshot(self, name: str, source_volume_id: str) -> Snapshot:
        """Copy a volume under a name; the same name and source give the same snapshot.

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
            snapshot = Snapshot(
                snapshot_id, name, source_volume_id, volume.capacity_bytes, time.time()
            )
            content = self._volumes_dir / source_volume_id / "data"
            _write(self._snapshots_dir, snapshot_id, snapshot, content)
            self._snapshots[snapshot_id] = snapshot
            return snapshot

    def remove_snapshot(self, snapshot_id: str) -> None:
        """Remove the snapshot; does nothing when it is gone already."""
        with self._lock:
            if self._snapshots.pop(snapshot_id, None) is not None:
                _remove(self._snapshots_dir, snapshot_id)

    def source_size(self, source: str) -> int:
        """Return the least size of a volume made from `source`, 0 without one.

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


def _load(folder: Path, kind: type[_Entry]) -> dict[str, _Entry]:
    return {
        path.parent.name: kind(**json.loads(path.read_text()))
        for path in folder.glob("[!.]*/metadata.json")
    }


def _write(folder: Path, identifier: str, entry: Volume | Snapshot, content: Path | None) -> None:
    draft = folder / f".{identifier}-{uuid.uuid4().hex}"
    draft.mkdir()
    if content is None:
        (draft / "data").mkdir()
    else:
        shutil.copytree(content, draft / "data", symlinks=True)
    (draft / "metadata.json").write_text(json.dumps(asdict(entry), sort_keys=True))
    draft.rename(folder / identifier)


def _remove(folder: Path, identifier: str) -> None:
    grave = folder / f".{identifier}-{uuid.uuid4().hex}"
    (folder / identifier).rename(grave)
    shutil.rmtree(grave)
