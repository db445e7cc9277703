"""The demo's folder. A demo that was killed leaves it behind, and the next demo continues there.

The file `demo.json` in the folder names the tag and the cluster of the demo. The demo holds a lock
on this file, which ends with the process, and deletes the file when it stops in an orderly way.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from io import TextIOWrapper

PREFIX: Final = "csi-fleet-demo-"
_FILE: Final = "demo.json"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that belongs to this process.

    Attributes:
        directory: the folder, which only this user can read.
        tag: makes the names of the demo's objects unique in the cluster.
        is_continued: True if a demo that was killed has left the folder behind.
    """

    directory: Path
    tag: str
    is_continued: bool
    _lock: TextIOWrapper

    def release(self) -> None:
        """Make sure that no later demo continues here. Idempotent."""
        (self.directory / _FILE).unlink(missing_ok=True)
        self._lock.close()


def take(kubeconfig: Path | None) -> Place:
    """Return the folder of a demo that was killed, or a new one.

    Args:
        kubeconfig: the cluster of the demo; None for one of its own.
    """
    cluster = str(kubeconfig or "")
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and (place := _left(folder, cluster)):
                return place
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    tag = secrets.token_hex(2)
    lock = (folder / _FILE).open("x+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    json.dump({"tag": tag, "cluster": cluster}, lock)
    lock.flush()
    return Place(folder, tag, is_continued=False, _lock=lock)


def _left(folder: Path, cluster: str) -> Place | None:
    """Return the folder if its demo no longer runs and used the same cluster.

    Raises:
        OSError: the demo still runs, or has stopped in an orderly way.
        ValueError: the demo has not written the file yet.
    """
    lock = (folder / _FILE).open("r+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        known = json.load(lock)
        if known["cluster"] == cluster:
            return Place(folder, known["tag"], is_continued=True, _lock=lock)
    except BaseException:
        lock.close()
        raise
    lock.close()
    return None
