"""Directories inside a mounted export: make, remove, archive, and never outside of it (NF-015)."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
OPEN_MODE = 0o777


def expand(template: str, values: Mapping[str, str]) -> str:
    """Fill `${pvc.metadata.name}` and the like into a relative path.

    Raises:
        ValueError: a variable nobody knows, or a path that is empty or leaves the export.
    """
    if unknown := [name for name in _VARIABLE.findall(template) if name not in values]:
        raise ValueError(f"unknown variable ${{{unknown[0]}}}")
    path = _VARIABLE.sub(lambda match: values[match[1]], template).strip("/")
    check(path)
    return path


def check(path: str) -> None:
    r"""Refuse what is no path strictly below the export.

    Raises:
        ValueError: it is empty, absolute, or has a `..` segment (`\` counts as `/`).
    """
    segments = path.replace("\\", "/").split("/")
    if path in {"", "."} or path.startswith("/") or ".." in segments:
        raise ValueError(f"{path!r} is not a path below the export")


def make(root: Path, path: str) -> None:
    """Make the directory, open to all users; one that is there stays as it is."""
    target = _inside(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.mkdir()
    except FileExistsError:
        return
    target.chmod(OPEN_MODE)  # the umask must not count


def remove(root: Path, path: str) -> None:
    """Remove the directory; gone already is fine."""
    target = _inside(root, path)
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)


def archive(root: Path, path: str) -> None:
    """Rename it to `archived-<path>`; gone already is fine, so a repeat after a lost answer is."""
    source, target = _inside(root, path), _inside(root, f"archived-{path}")
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


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
