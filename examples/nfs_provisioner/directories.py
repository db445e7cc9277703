"""Creates, removes and archives directories inside a mounted export, never outside it (NF-015).

The registry `.nfs-provisioner` of the export has a file for each directory, with owner and path.
A volume never gets a directory that existed before or that is, contains or is inside another
volume's, and such a directory is never deleted with a claim. A path is normalised, so that it has
one entry.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
OPEN_MODE = 0o777
ARCHIVED = "archived-"
REGISTRY = ".nfs-provisioner"


class TakenError(Exception):
    """The directory belongs to another owner; the text says to whom."""


def expand(template: str, values: Mapping[str, str]) -> str:
    """Replace `${pvc.metadata.name}` and similar variables; returns a normalised relative path.

    Raises:
        ValueError: a variable is unknown, or the path is empty or leaves the export.
    """
    if unknown := [name for name in _VARIABLE.findall(template) if name not in values]:
        raise ValueError(f"unknown variable ${{{unknown[0]}}}")
    filled = _VARIABLE.sub(lambda match: values[match[1]], template)
    path = "/".join(part for part in filled.split("/") if part not in {"", "."})
    check(path)
    return path


def check(path: str) -> None:
    r"""Check that this is a normalised path below the export.

    Raises:
        ValueError: the path is empty or absolute, has an empty, `.` or `..` segment (`\` counts as
            `/`), or a segment is the registry.
    """
    segments = path.replace("\\", "/").split("/")
    if not {"", ".", ".."}.isdisjoint(segments):
        raise ValueError(f"{path!r} is not a path below the export")
    if REGISTRY in segments:
        raise ValueError(f"{path!r} is a reserved name")


def make(root: Path, path: str, owner: str) -> None:
    """Create the directory for a volume, open to all users; idempotent for the same volume.

    Raises:
        TakenError: the directory belongs to another volume, or existed before.
        ValueError: it is not below the export, or its name is reserved for archived directories.
    """
    if path.startswith(ARCHIVED):
        raise ValueError(f"{path!r} is a name of archived directories")
    target = _inside(root, path)
    _claim(root, path, owner, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        target.mkdir()
        target.chmod(OPEN_MODE)  # regardless of the umask


def remove(root: Path, path: str, owner: str) -> None:
    """Remove the volume's directory; does nothing if it is missing or has another owner.

    Raises:
        TakenError: another volume's directory is inside it.
    """
    target = _inside(root, path)
    if not _is_owner(root, path, owner):
        return
    _check_alone(root, path)
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)
    _entry(root, path).unlink(missing_ok=True)


def archive(root: Path, path: str, owner: str) -> None:
    """Rename the directory to `archived-<path>`; does nothing if it is missing, so idempotent.

    Raises:
        TakenError: another volume's directory is inside it.
    """
    source, target = _inside(root, path), _inside(root, f"{ARCHIVED}{path}")
    if not _is_owner(root, path, owner):
        return
    _check_alone(root, path)
    if source.exists():
        if target.exists():
            target = target.with_name(f"{target.name}-{uuid.uuid4().hex[:8]}")
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    _entry(root, path).unlink(missing_ok=True)


def _entry(root: Path, path: str) -> Path:
    return root.resolve() / REGISTRY / hashlib.sha256(path.encode()).hexdigest()


def _claim(root: Path, path: str, owner: str, target: Path) -> None:
    """Record the owner before the directory is created, so that a crash in between does no harm."""
    entry = _entry(root, path)
    entry.parent.mkdir(exist_ok=True)
    is_occupied = target.is_symlink() or target.exists()
    draft = entry.with_name(f".{uuid.uuid4().hex}")
    draft.write_text(f"{owner}\n{path}")
    try:
        entry.hardlink_to(draft)  # atomic, and never overwrites another entry
    except FileExistsError:
        if not _is_owner(root, path, owner):
            raise TakenError(f"{path} belongs to volume {_read(entry)[0]}") from None
        return
    finally:
        draft.unlink()
    if is_occupied:
        entry.unlink()
        raise TakenError(f"{path} exists and belongs to no volume; move it away")
    try:
        # After the entry is written: of two concurrent callers, at least one sees the other.
        _check_alone(root, path)
    except TakenError:
        entry.unlink()
        raise


def _check_alone(root: Path, path: str) -> None:
    """Check that no other volume's directory contains this one or is inside it.

    Raises:
        TakenError: there is such a directory.
    """
    for entry in (root.resolve() / REGISTRY).glob("[!.]*"):
        with suppress(FileNotFoundError):  # the entry has been deleted
            owner, other = _read(entry)
            if other != path and (
                f"{other}/".startswith(f"{path}/") or path.startswith(f"{other}/")
            ):
                raise TakenError(f"{path} and {other} of volume {owner} lie in each other")


def _read(entry: Path) -> tuple[str, str]:
    """Return owner and path of an entry."""
    owner, _, path = entry.read_text().partition("\n")
    return owner, path


def _is_owner(root: Path, path: str, owner: str) -> bool:
    """Return True if the directory has an entry with this owner."""
    try:
        return _read(_entry(root, path))[0] == owner
    except FileNotFoundError:
        return False


def _inside(root: Path, path: str) -> Path:
    """Return the path in the export, after resolving links in its parent.

    Raises:
        ValueError: the path leaves the export.
    """
    check(path)
    real_root = root.resolve()
    target = real_root / path
    if not target.parent.resolve().is_relative_to(real_root):
        raise ValueError(f"{path!r} leaves the export")
    return target
