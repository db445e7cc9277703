"""`csi-fleet beat`: celery-redbeat, the fall-back clock. Doubled, late or dead, it does no harm."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

from workers.app import beat_settings, make_app
from workers.process import mark_ready

if TYPE_CHECKING:
    from workers.config.settings import Settings

_log = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """The command; returns the exit code. Ends with 1 when Redis goes, to be started again."""
    app = make_app(settings)
    app.conf.update(beat_settings(settings))
    signal.signal(signal.SIGTERM, _stop)
    mark_ready(settings, "beat.ready")
    try:
        app.Beat(loglevel="WARNING", redirect_stdouts=False, quiet=True, pidfile=None).run()
    except (KeyboardInterrupt, SystemExit):
        return 0
    except Exception as error:  # noqa: BLE001 - redbeat raises whatever its connection does
        _log.warning("beat ended and wants to be started again: %s", error)
        return 1
    return 0


def _stop(signum: int, frame: object) -> None:
    del signum, frame
    raise SystemExit(0)
