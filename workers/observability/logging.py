"""How does this program write its log? klog's text line or klog's JSON, on stderr.

A message is constant, what varies is a field: `claim`, `volume`, `key`, `driver`, `attempt`.
Secrets never get out: fields named like one and logins in URLs are stripped. An operational error
(the driver, Redis or the API server failed) is one line; only a mistake of ours shows a traceback.
Lines by the standard library's `logging` take the same way: those of our packages as they are, with
their `extra` as fields and DEBUG from `-v=5` on (P-012), those of libraries less often.

```
log = get_logger()
log.warning("CreateVolume failed", claim="default/data", err=error)
log_v(4).info("claim is bound already", claim="default/data")
with log_fields(key=key.text, driver=key.driver):   # on every line written inside
    ...
```
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

# structlog loads rich if it can, for a console renderer we do not use: 6 MiB in every process.
_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]  # the documented way to forbid an import
import structlog  # noqa: E402
from structlog.contextvars import bound_contextvars as log_fields  # noqa: E402

if _rich is None:
    del sys.modules["rich"]
else:
    sys.modules["rich"] = _rich

from workers.observability import logformat  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import Processor

    from workers.config.settings import LogSettings

__all__ = ["FleetLogger", "configure_logging", "get_logger", "log_fields", "log_v"]

# Verbosity from which a library's INFO and DEBUG lines are wanted.
_LIBRARY_INFO_VERBOSITY: Final = 6
_LIBRARY_DEBUG_VERBOSITY: Final = 9

# Libraries that warn about each retry although our own lines tell about the outage.
_NOISY_LIBRARIES: Final = ("urllib3.connectionpool", "urllib3.util.retry", "celery.app.trace")


class FleetLogger(structlog.BoundLoggerBase):
    """A logger with klog's severities."""

    verbosity = 0

    def info(self, event: str, **fields: Any) -> None:
        """Tell what happened."""
        self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Tell what went wrong and is taken care of."""
        self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Tell what failed; pass the exception as `err`."""
        self._proxy_to_logger("error", event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Tell about the exception being handled; its traceback only if it is a mistake of ours."""
        self._proxy_to_logger("error", event, exc_info=sys.exc_info(), **fields)


class _SilentLogger(FleetLogger):
    """Drops every line without rendering it."""

    def _proxy_to_logger(self, *_: Any, **__: Any) -> None:
        return


_SILENT: Final = _SilentLogger(None, [], {})


class _StreamLogger:
    """Writes whole lines; a broken stream must not stop the work that wanted to tell about it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        """Write one line."""
        try:
            with self._lock:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            return

    info = warning = error = msg


def get_logger() -> FleetLogger:
    """Return the logger of any module; safe to call before `configure_logging`."""
    logger: FleetLogger = structlog.get_logger()
    return logger


def log_v(level: int) -> FleetLogger:
    """Return a logger for lines wanted from `-v <level>` on; else one that drops them cheaply."""
    wrapper = structlog.get_config()["wrapper_class"]
    if getattr(wrapper, "verbosity", 0) < level:
        return _SILENT
    return get_logger().bind(v=level)


def configure_logging(
    log: LogSettings, *, stream: TextIO | None = None, clock: Callable[[], float] = time.time
) -> None:
    """Set up logging of the whole process; safe to call again.

    Celery replaces the root logger's handlers unless its `setup_logging` signal has a receiver:
    connect one that does nothing.

    Args:
        log: format and verbosity.
        stream: where to write; default stderr.
        clock: seconds since the epoch.
    """
    output = stream or sys.stderr
    render = logformat.render_json if log.format == "json" else logformat.render_text
    chain: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        logformat.add_severity,
        logformat.Stamp(clock),
        logformat.fold_exception,
        logformat.strip_secrets,
    ]
    wrapper = type("FleetLogger", (FleetLogger,), {"verbosity": log.verbosity})
    writer = _StreamLogger(output)
    structlog.configure(
        processors=[*chain, render],
        wrapper_class=wrapper,
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=False,
    )
    _configure_libraries(log.verbosity, output, [*chain, render])


def _configure_libraries(verbosity: int, output: TextIO, processors: list[Processor]) -> None:
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[logformat.take_record, *processors])
    )
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
    own = logging.DEBUG if verbosity >= logformat.DEBUG_VERBOSITY else logging.INFO
    for name in logformat.OWN_PACKAGES:
        logging.getLogger(name).setLevel(own)
    noisy = logging.NOTSET if verbosity >= _LIBRARY_INFO_VERBOSITY else logging.ERROR
    for name in _NOISY_LIBRARIES:
        logging.getLogger(name).setLevel(noisy)
    logging.captureWarnings(capture=True)
    # A closed stderr is no reason to print a traceback to it.
    logging.raiseExceptions = False
