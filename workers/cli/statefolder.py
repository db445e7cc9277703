"""Chooses and locks the folder of a `csi-fleet run`, in which operator commands find its Redis.

If a folder was given, it is used. Otherwise the default is used: csi-fleet-<uid> in the temporary
folder, where commands find Redis without a flag. If another run is using the default, a new folder
is created. The run holds a lock on a file in its folder until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workers.config.load import default_state_dir, temporary
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.config.settings import Settings

LOCK: Final = "run.lock"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The locked folder of one run.

    Args:
        path: the folder.
        lock: the descriptor of the locked file, which must remain open.
        is_kept: whether the folder is kept after the run.
    """

    path: Path
    lock: int
    is_kept: bool

    def close(self) -> None:
        """Remove the folder unless it is kept, then release the lock."""
        if not self.is_kept:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def take(settings: Settings, environ: Mapping[str, str] = os.environ) -> StateFolder:
    """Choose and lock the folder for this run.

    Raises:
        ConfigError: the given folder cannot be created, or another run is using it.
    """
    given = settings.process.state_dir if "state-dir" in settings.explicit else ""
    if given and not is_unwritable(Path(given)):
        return _named(Path(given))
    return _usual(default_state_dir(environ)) or _random(temporary(environ))


def is_unwritable(path: Path) -> bool:
    """Return True if writing to the folder fails.

    For example, writing to the image's default folder fails if the root file system is read-only.
    """
    return path.is_dir() and not os.access(path, os.W_OK)


def is_private(path: Path) -> bool:
    """Return True if no other user can have put anything into this folder."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        return is_ours and not found.st_mode & 0o077
    return False


def _named(path: Path) -> StateFolder:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _locked(path)
    except OSError as error:
        raise ConfigError(f"--state-dir: cannot use {path}: {error.strerror}") from error
    if lock is None:
        raise ConfigError(
            f"folder {path} is in use by the process with pid {_holder(path)}. Set a different "
            "--state-dir",
            exit_code=1,
        )
    return StateFolder(path, lock, is_kept=True)


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        return (path / LOCK).read_text().strip() or "?"
    return "?"


def _usual(path: Path) -> StateFolder | None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        if not is_private(path) or (lock := _locked(path)) is None:
            return None
    except OSError:
        return None
    return StateFolder(path, lock, is_kept=False)


def _random(parent: Path) -> StateFolder:
    path = Path(tempfile.mkdtemp(prefix="csi-fleet-", dir=parent))
    lock = _locked(path)
    if lock is None:
        raise ConfigError(
            f"folder {path} was just created and is locked by another process. Set a "
            "different --state-dir",
            exit_code=1,
        )
    return StateFolder(path, lock, is_kept=False)


def _locked(path: Path) -> int | None:
    """Lock a folder; return None if another process holds the lock.

    The lock is a POSIX lock, so forked children do not inherit it.
    """
    file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The run that held the lock may have removed the folder in the meantime.
        if (path / LOCK).stat().st_ino != os.fstat(file).st_ino:
            raise FileNotFoundError(str(path / LOCK))
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
    except (BlockingIOError, PermissionError):
        os.close(file)
        return None
    except OSError:
        os.close(file)
        raise
    return file
