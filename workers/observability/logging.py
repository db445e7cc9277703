"""Structured logging to stderr, in klog's text or JSON format.

A message is constant; the variable parts are fields: `claim`, `volume`, `key`, `driver`, `attempt`.
Secrets are hidden, both in fields whose names suggest a secret and in logins in URLs. An
operational error (from the driver, Redis or the API server) is logged as one line. Only a bug in
csi-fleet is logged with a traceback. Everything uses Python's `logging`, so the lines of libraries
have the same format. For csi-fleet's own packages, DEBUG is verbosity 5 (P-012); libraries need a
higher verbosity.

```
_log = get_logger(__name__)
_log.warning("CreateVolume failed", claim="default/data", err=error)
_log.v(4, "claim is bound already", claim="default/data")
with log_fields(key=key.text, driver=key.driver):   # on every line written inside
    ...
```
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO

from workers.observability.logformat import OWN_PACKAGES, KlogFormatter, level_of, log_fields

__all__ = ["FleetLogger", "configure_logging", "get_logger", "log_fields"]

# The lowest verbosities at which the INFO and DEBUG lines of libraries are logged.
_LIBRARY_INFO_VERBOSITY: Final = 6
_LIBRARY_DEBUG_VERBOSITY: Final = 9

# Libraries that warn about every retry although csi-fleet already logs the outage.
_NOISY_LIBRARIES: Final = ("celery.app.trace",)


class FleetLogger:
    """A logger with klog's severities; fields are JSON values, and `err` is an exception."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def v(self, verbosity: int, message: str, /, **fields: Any) -> None:
        """Log a detail if `-v` is at least `verbosity`."""
        self._write(level_of(verbosity), message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        """Log an event."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        """Log a problem that csi-fleet handles itself."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        """Log a failure."""
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: Any) -> None:
        """Log the exception that is being handled, with a traceback only if it is a bug."""
        self._write(logging.ERROR, message, fields, exc_info=True)

    def _write(
        self, level: int, message: str, fields: dict[str, Any], *, exc_info: bool = False
    ) -> None:
        # The caller of `info` and of the other methods is three frames up.
        self._logger.log(level, message, exc_info=exc_info, extra={"fields": fields}, stacklevel=3)


def get_logger(name: str) -> FleetLogger:
    """Return a module's logger; call it as `get_logger(__name__)`."""
    return FleetLogger(name)


def configure_logging(log_format: str, verbosity: int, *, stream: TextIO | None = None) -> None:
    """Set up logging for the whole process; can be called again.

    Celery replaces the root logger's handlers unless its `setup_logging` signal has a receiver. So
    a process that uses Celery must connect a receiver, even if it does nothing.

    Args:
        log_format: `text` or `json`.
        verbosity: the value of `-v`.
        stream: the output stream, stderr by default.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KlogFormatter(is_json=log_format == "json"))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    if verbosity >= _LIBRARY_DEBUG_VERBOSITY:
        root.setLevel(logging.DEBUG)
    elif verbosity >= _LIBRARY_INFO_VERBOSITY:
        root.setLevel(logging.INFO)
    else:
        root.setLevel(logging.WARNING)
    for name in OWN_PACKAGES:
        logging.getLogger(name).setLevel(level_of(verbosity))
    noisy = logging.NOTSET if verbosity >= _LIBRARY_INFO_VERBOSITY else logging.ERROR
    for name in _NOISY_LIBRARIES:
        logging.getLogger(name).setLevel(noisy)
    logging.captureWarnings(capture=True)
    # If this were True, logging would print a traceback when stderr is closed.
    logging.raiseExceptions = False
