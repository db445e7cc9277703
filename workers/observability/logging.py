"""Structured logging to stderr, in klog's text or JSON format.

A message is constant; variable parts are fields: `claim`, `volume`, `key`, `driver`, `attempt`.
Secrets are hidden: fields with a secret's name, and logins in URLs. An operational error (of the
driver, Redis or the API server) is one line; only a bug in csi-fleet logs a traceback.
Everything uses Python's `logging`, so libraries' lines get the same format. DEBUG of our packages
is verbosity 5 (P-012); libraries need a higher verbosity.

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

# Verbosity from which libraries' INFO and DEBUG lines are logged.
_LIBRARY_INFO_VERBOSITY: Final = 6
_LIBRARY_DEBUG_VERBOSITY: Final = 9

# Libraries that warn about each retry, although csi-fleet logs the outage itself.
_NOISY_LIBRARIES: Final = ("celery.app.trace",)


class FleetLogger:
    """A logger with klog's severities; fields are JSON values, `err` is an exception."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def v(self, verbosity: int, message: str, /, **fields: Any) -> None:
        """Log a detail, from `-v <verbosity>` on."""
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
        """Log the exception being handled; with a traceback only if it is a bug in csi-fleet."""
        self._write(logging.ERROR, message, fields, exc_info=True)

    def _write(
        self, level: int, message: str, fields: dict[str, Any], *, exc_info: bool = False
    ) -> None:
        # The caller of `info` and the others is three frames up.
        self._logger.log(level, message, exc_info=exc_info, extra={"fields": fields}, stacklevel=3)


def get_logger(name: str) -> FleetLogger:
    """Return the logger of a module, `get_logger(__name__)`."""
    return FleetLogger(name)


def configure_logging(log_format: str, verbosity: int, *, stream: TextIO | None = None) -> None:
    """Set up logging of the whole process; can be called again.

    Celery replaces the root logger's handlers unless its `setup_logging` signal has a receiver: a
    process with Celery must connect a receiver that does nothing.

    Args:
        log_format: `text` or `json`.
        verbosity: value of `-v`.
        stream: output stream, stderr by default.
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
    # Otherwise logging would print a traceback when stderr is closed.
    logging.raiseExceptions = False
