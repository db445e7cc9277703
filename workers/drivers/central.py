"""Follows the drivers file: changes take effect within a second, and a faulty file is ignored.

Changes are detected by content, not by file time, because Kubernetes replaces a mounted ConfigMap
by swapping symbolic links under the same name. The TLS files that the drivers file names count as
content too, so a renewed certificate causes a new connection.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from workers.drivers.driversfile import parse_all, read_texts
from workers.errors import ConfigError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from workers.drivers.driversfile import DriverSpec

_log = get_logger(__name__)

POLL_SECONDS: Final = 1.0


class Served(Protocol):
    """The drivers of a process, such as `workers.drivers.fleet.Fleet`."""

    def apply(self, specs: dict[str, DriverSpec]) -> None:
        """Serve exactly these drivers."""


class Central:
    """The drivers file of one process.

    Args:
        fleet: the drivers of this process; they are changed to match the file.
        path: the file, or a folder of such files.
        pool: the pool of drivers that this process serves; None for the drivers of all pools.
    """

    def __init__(self, fleet: Served, path: Path, *, pool: str | None = "") -> None:
        self._fleet = fleet
        self._path = path
        self._pool = pool
        self._seen = self._told = ""
        self._tls_files: list[Path] = []

    def start(self) -> None:
        """Read the file for the first time.

        Raises:
            ConfigError: the file is unusable, and there is no earlier valid file to keep.
        """
        self._seen = self._stamp()
        self._fleet.apply(self._read())

    def poll(self) -> bool:
        """Apply the file if it changed; return True if it was applied. Ignore a faulty file.

        Parsing hundreds of drivers takes a tenth of a second, so an unchanged file is not parsed.
        """
        try:
            seen = self._stamp()
            if seen == self._seen:
                return False
            self._seen = seen
            specs = self._read()
            self._fleet.apply(specs)
        except ConfigError as error:
            if str(error) != self._told:
                _log.error(
                    "the drivers file is not valid; continuing with the last valid version",
                    err=error,
                )
            # The file is read again at each poll, because a missing TLS file may appear without any
            # change to this file.
            self._told, self._seen = str(error), ""
            return False
        self._told = ""
        _log.info("reloaded the drivers file", drivers=len(specs))
        return True

    def step(self) -> float:
        """Poll once; return the number of seconds until the next poll, as `Loop` expects."""
        self.poll()
        return POLL_SECONDS

    def _stamp(self) -> str:
        """Return a digest of the files and of the TLS files that they last named."""
        digest = hashlib.sha256()
        for path, text in read_texts(self._path).items():
            digest.update(hashlib.sha256(str(path).encode()).digest())
            digest.update(hashlib.sha256(text.encode()).digest())
        for file in self._tls_files:
            digest.update(_digest(file))
        return digest.hexdigest()

    def _read(self) -> dict[str, DriverSpec]:
        specs = parse_all(read_texts(self._path), pool=self._pool)
        files: list[Path] = []
        for name, spec in specs.items():
            if spec.tls is None:
                continue
            own = [file for file in (spec.tls.ca, spec.tls.certificate, spec.tls.key) if file]
            stamp = b"".join(_digest(file) for file in own).hex()
            specs[name] = replace(spec, tls_stamp=stamp)
            files += own
        if files != self._tls_files:
            self._tls_files = files
            self._seen = self._stamp()
        return specs


def _digest(file: Path) -> bytes:
    """Return a digest of the file's content, or the error if the file is unreadable.

    The error takes the place of the content, so a file that appears later counts as a change.
    """
    try:
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError as error:
        return (error.strerror or "unreadable").encode()
