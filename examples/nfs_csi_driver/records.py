"""Records of the volumes in a share, and locks of running operations (NF-021, NF-080).

Below `<share>/.nfs-csi`: `<sha256 of the name>.json` one record per volume, `locks/` leases of
running operations, `staging/` incomplete content, `trash/` deleted content, `snapshots/`.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from examples.nfs_csi_driver.errors import RpcError
from examples.nfs_csi_driver.parameters import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEASE_SECONDS: Final = 60.0
RENEW_SECONDS: Final = 20.0
SLACK_SECONDS: Final = 30.0
CREATING, READY = "creating", "ready"


@dataclass(slots=True)
class Record:
    """The record of one volume, with all that a repeated CreateVolume needs."""

    id: str
    name: str
    directory: str
    size: int
    parameters: dict[str, str]
    source: str
    on_delete: str
    state: str = CREATING


class Share:
    """The records of one mounted share."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.system = self.root / RESERVED

    def folder(self, name: str) -> Path:
        """Return a system folder; creates it if it is missing."""
        path = self.system / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def inside(self, path: str) -> Path:
        """Return a path below the share, after resolving links in its parent (NF-015).

        Raises:
            RpcError: INTERNAL; the path leaves the share.
        """
        target = self.root / path
        if not path.strip("/.") or not target.parent.resolve().is_relative_to(self.root):
            raise RpcError("INTERNAL", f"{path!r} leaves the share")
        return target

    def find(self, name: str) -> Record | None:
        """Return the record with that digest, None if there is none."""
        try:
            return Record(**json.loads((self.system / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None

    def all(self) -> list[Record]:
        """Return all records."""
        files = sorted(self.system.glob("*.json"))
        return [Record(**json.loads(file.read_text())) for file in files]

    def add(self, name: str, record: Record) -> None:
        """Write a new record atomically; never overwrites another one."""
        draft = self._draft(asdict(record))
        try:
            os.link(draft, self.system / f"{name}.json")
        except FileExistsError as error:
            raise RpcError("ABORTED", "the volume is being made by somebody else") from error
        finally:
            draft.unlink()

    def update(self, name: str, record: Record) -> None:
        """Replace a record."""
        self._draft(asdict(record)).replace(self.system / f"{name}.json")

    def drop(self, name: str) -> None:
        """Remove a volume's record."""
        (self.system / f"{name}.json").unlink(missing_ok=True)

    def _draft(self, content: dict[str, Any]) -> Path:
        draft = self.folder("staging") / f"{uuid.uuid4().hex}.json"
        with draft.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        return draft


class Locks:
    """Allows one operation per volume, in this process and among all replicas."""

    def __init__(self) -> None:
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._held: set[str] = set()
        self._mutex = threading.Lock()

    @contextmanager
    def here(self, name: str) -> Iterator[None]:
        """Lock a name within this process.

        Raises:
            RpcError: ABORTED, with the Go driver's text.
        """
        with self._mutex:
            if name in self._held:
                raise busy(name)
            self._held.add(name)
        try:
            yield
        finally:
            with self._mutex:
                self._held.discard(name)

    @contextmanager
    def everywhere(self, share: Share, record: str, name: str) -> Iterator[None]:
        """Lock a record for all replicas, by a lease file that is renewed during the operation."""
        file = share.folder("locks") / record
        token = f"{self._owner}-{uuid.uuid4().hex}"
        self._take(file, token, name)
        ended = threading.Event()
        renewer = threading.Thread(target=_renew, args=(file, token, ended), daemon=True)
        renewer.start()
        try:
            yield
        finally:
            ended.set()
            renewer.join()
            if _owner_of(file)[0] == token:
                file.unlink(missing_ok=True)

    def _take(self, file: Path, token: str, name: str) -> None:
        draft = file.with_name(f".{token}")
        _write(draft, token)
        try:
            for _ in range(2):
                with suppress(FileExistsError):
                    os.link(draft, file)
                    return
                owner, until = _owner_of(file)
                if time.time() < until + SLACK_SECONDS:
                    raise busy(name)
                _remove_stale(file, owner)
            raise busy(name)
        finally:
            draft.unlink()


def busy(name: str) -> RpcError:
    """Return the error for a volume that another operation has locked."""
    return RpcError("ABORTED", f"An operation with the given Volume ID {name} already exists")


def _write(file: Path, token: str) -> None:
    file.write_text(json.dumps({"owner": token, "until": time.time() + LEASE_SECONDS}))


def _owner_of(file: Path) -> tuple[str, float]:
    try:
        content = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return "", 0.0
    return str(content["owner"]), float(content["until"])


def _remove_stale(file: Path, owner: str) -> None:
    """Remove a dead owner's lease; put it back if another owner has taken it."""
    away = file.with_name(f".stale-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        file.rename(away)
        if _owner_of(away)[0] != owner:
            with suppress(FileExistsError):
                os.link(away, file)
        away.unlink()


def _renew(file: Path, token: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_SECONDS):
        if _owner_of(file)[0] != token:
            return
        draft = file.with_name(f".{token}-renewed")
        _write(draft, token)
        draft.replace(file)
