"""How does this program write its log? klog's text line or klog's JSON, on stderr.

A message is constant, what varies is a field: `claim`, `volume`, `key`, `driver`, `attempt`.
Secrets never get out: fields named like one and logins in URLs are stripped. An operational error
(the driver, Redis or the API server failed) is one line; only a mistake of ours shows a traceback.
Below is the standard library's `logging` and nothing else, so libraries' lines take the same way:
DEBUG of our packages is verbosity 5 (P-012), libraries tell less often.

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

# Verbosity from which a library's INFO and DEBUG lines are wanted.
_LIBRARY_INFO_VERBOSITY: Final = 6
_LIBRARY_DEBUG_VERBOSITY: Final = 9

# Libraries that warn about each retry although our own lines tell about the outage.
_NOISY_LIBRARIES: Final = ("celery.app.trace",)


class FleetLogger:
    """A logger with klog's severities; fields are whatever JSON can show, `err` an exception."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def v(self, verbosity: int, message: str, /, **fields: Any) -> None:
        """Tell a detail that is wanted from `-v <verbosity>` on."""
        self._write(level_of(verbosity), message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        """Tell what happened."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        """Tell what went wrong and is taken care of."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        """Tell what failed."""
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: Any) -> None:
        """Tell about the exception being handled; its traceback only if it is a mistake of ours."""
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
    """Set up logging of the whole process; safe to call again.

    Celery replaces the root logger's handlers unless its `setup_logging` signal has a receiver:
    connect one that does nothing.

    Args:
        log_format: `text` or `json`.
        verbosity: of `-v`.
        stream: where to write; default stderr.
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
    # A closed stderr is no reason to print a traceback to it.
    logging.raiseExceptions = False
