"""Gives the plug-in access to the directories of exports.

NFS_EXPORTS lists mounted exports as `server:/export=/local/directory`, separated by commas: a pod's
own NFS mounts, or any directory for a test. Any other export is mounted for each operation, which
needs root and mount.nfs.
"""

from __future__ import annotations

import posixpath
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

MOUNT_SECONDS = 110


class ExportError(Exception):
    """The export cannot be reached; the text says why."""


class Exports(Protocol):
    """Gives access to exports."""

    def opened(self, server: str, path: str) -> AbstractContextManager[Path]:
        """Give a local directory with the content of `server:path` during the context.

        Raises:
            ExportError: the export cannot be mounted.
        """


class MountedExports:
    """Access to mounted exports; others are mounted when needed.

    Args:
        places: `server:/export` -> local directory.
    """

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = dict(places)

    @contextmanager
    def opened(self, server: str, path: str) -> Iterator[Path]:
        """Give the local directory of the export, or of a mounted export that contains it."""
        for known, place in self._places.items():
            known_server, _, export = known.rpartition(":")
            relative = posixpath.relpath(path, export)
            if known_server == server and not relative.startswith(".."):
                if not place.is_dir():
                    raise ExportError(f"{known} should be mounted at {place}, which is missing")
                yield place / relative
                return
        with _mounted(f"{server}:{path}") as directory:
            yield directory


@contextmanager
def _mounted(source: str) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="nfs-export-"))
    try:
        _run("mount", "-t", "nfs", source, str(directory))
        try:
            yield directory
        finally:
            _run("umount", str(directory))
    finally:
        # Only an empty directory is removed: if the unmount failed, the export must not be deleted.
        directory.rmdir()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=MOUNT_SECONDS)
    except subprocess.CalledProcessError as error:
        raise ExportError(f"{command[0]} failed: {error.stderr.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(f"{command[0]} failed: {error}") from error


def exports_from(text: str) -> MountedExports:
    """Parse NFS_EXPORTS.

    Raises:
        ValueError: an entry is not `server:/export=/directory`.
    """
    places = {}
    for entry in filter(None, (one.strip() for one in text.split(","))):
        export, separator, directory = entry.partition("=")
        if not separator or ":/" not in export:
            raise ValueError(f"NFS_EXPORTS: {entry!r} is not server:/export=/directory")
        places[export] = Path(directory)
    return MountedExports(places)
