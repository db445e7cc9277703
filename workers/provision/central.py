"""Following the drivers file: what changed is served within a second, mistakes change nothing.

The content counts, not the time of the file: a mounted ConfigMap is a chain of symbolic links that
is swapped under the same name. TLS files are part of the content, so a renewed certificate gets a
new connection.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from workers.errors import ConfigError
from workers.provision.driversfile import parse, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from workers.provision.driversfile import DriverSpec
    from workers.provision.fleet import Fleet

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0


class Central:
    """The drivers file of one worker.

    Args:
        fleet: serves the drivers.
        path: the file.
        pool: the part of it that this worker serves.
    """

    def __init__(self, fleet: Fleet, path: Path, *, pool: str = "") -> None:
        self._fleet = fleet
        self._path = path
        self._pool = pool
        self._seen = ""
        self._stopped = threading.Event()

    def start(self) -> None:
        """Reads the file for the first time.

        Raises:
            ConfigError: it is unusable; there is no good set to go on with.
        """
        specs, self._seen = self._read()
        self._fleet.apply(specs)

    def poll(self) -> bool:
        """Looks once; True when something changed. A bad file keeps the last good set."""
        try:
            specs, seen = self._read()
            if seen == self._seen:
                return False
            self._fleet.apply(specs)
        except ConfigError as error:
            mark = f"bad {error}"
            if mark != self._seen:
                _log.error("%s; the drivers of the last good file are served", error)
                self._seen = mark
            return False
        self._seen = seen
        _log.info("drivers file read again: %d drivers", len(specs))
        return True

    def run(self) -> None:
        """Polls until `stop`."""
        while not self._stopped.wait(POLL_SECONDS):
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - the loop must outlive any defect
                _log.exception("unexpected error while the drivers file was read")

    def stop(self) -> None:
        """Ends `run`."""
        self._stopped.set()

    def _read(self) -> tuple[dict[str, DriverSpec], str]:
        content = read_text(self._path)
        digest = hashlib.sha256(content.encode())
        specs = parse(content, self._path, pool=self._pool)
        for name, spec in specs.items():
            if spec.tls is None:
                continue
            files = (spec.tls.ca, spec.tls.certificate, spec.tls.key)
            stamp = hashlib.sha256(b"\0".join(_bytes(file) for file in files if file)).hexdigest()
            digest.update(stamp.encode())
            specs[name] = replace(spec, tls_stamp=stamp)
        return specs, digest.hexdigest()


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS file {file}: {error.strerror}") from None
