"""Directories inside a mounted export: make, remove, archive, and never outside of it (NF-015).

The registry `.nfs-provisioner` of the export has a file for each directory: its owner and its path.
What another volume owns, what lies inside or around that, and what was there before is never handed
out, and never deleted with a claim (SEC-8). A path has one spelling, so that it has one entry.
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
    """The directory belongs to somebody else; the text says to whom."""


def expand(template: str, values: Mapping[str, str]) -> str:
    """Fill `${pvc.metadata.name}` and the like into a relative path, in its one spelling.

    Raises:
        ValueError: a variable nobody knows, or a path that is empty or leaves the export.
    """
    if unknown := [name for name in _VARIABLE.findall(template) if name not in values]:
        raise ValueError(f"unknown variable ${{{unknown[0]}}}")
    filled = _VARIABLE.sub(lambda match: values[match[1]], template)
    path = "/".join(part for part in filled.split("/") if part not in {"", "."})
    check(path)
    return path


def check(path: str) -> None:
    r"""Refuse what is no path strictly below the export in its one spelling.

    Raises:
        ValueError: it is empty or absolute, has an empty, `.` or `..` segment (`\` counts as `/`),
            or a segment is the registry.
    """
    segments = path.replace("\\", "/").split("/")
    if not {"", ".", ".."}.isdisjoint(segments):
        raise ValueError(f"{path!r} is not a path below the export")
    if REGISTRY in segments:
        raise ValueError(f"{path!r} is a reserved name")


def make(root: Path, path: str, owner: str) -> None:
    """Make the directory for a volume, open to all users; safe to repeat for the same one.

    Raises:
        TakenError: it belongs to another volume, or stood there before.
        ValueError: it is not below the export, or its name is kept for archived directories.
    """
    if path.startswith(ARCHIVED):
        raise ValueError(f"{path!r} is a name of archived directories")
    target = _inside(root, path)
    _claim(root, path, owner, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        target.mkdir()
        target.chmod(OPEN_MODE)  # the umask must not count


def remove(root: Path, path: str, owner: str) -> None:
    """Remove the volume's directory; gone already, or another's by now, is fine.

    Raises:
        TakenError: another volume's directory lies in it.
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
    """Rename it to `archived-<path>`; gone already is fine, so a repeat after a lost answer is.

    Raises:
        TakenError: another volume's directory lies in it.
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
    """Write down the owner before the directory is made, so that a crash between them is none."""
    entry = _entry(root, path)
    entry.parent.mkdir(exist_ok=True)
    is_occupied = target.is_symlink() or target.exists()
    draft = entry.with_name(f".{uuid.uuid4().hex}")
    draft.write_text(f"{owner}\n{path}")
    try:
        entry.hardlink_to(draft)  # whole or not there, and never over another's
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
        # After the entry is written: of two that are made at once one sees the other.
        _check_alone(root, path)
    except TakenError:
        entry.unlink()
        raise


def _check_alone(root: Path, path: str) -> None:
    """No volume's directory lies inside or around this one.

    Raises:
        TakenError: one does.
    """
    for entry in (root.resolve() / REGISTRY).glob("[!.]*"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            owner, other = _read(entry)
            if other != path and (
                f"{other}/".startswith(f"{path}/") or path.startswith(f"{other}/")
            ):
                raise TakenError(f"{path} and {other} of volume {owner} lie in each other")


def _read(entry: Path) -> tuple[str, str]:
    """Owner and path of an entry."""
    owner, _, path = entry.read_text().partition("\n")
    return owner, path


def _is_owner(root: Path, path: str, owner: str) -> bool:
    """Whether the directory was made for this volume; what has no entry was made for nobody."""
    try:
        return _read(_entry(root, path))[0] == owner
    except FileNotFoundError:
        return False


def _inside(root: Path, path: str) -> Path:
    """The path in the export, its parent free of links that lead out.

    Raises:
        ValueError: it is not below the export.
    """
    check(path)
    real_root = root.resolve()
    target = real_root / path
    if not target.parent.resolve().is_relative_to(real_root):
        raise ValueError(f"{path!r} leaves the export")
    return target
