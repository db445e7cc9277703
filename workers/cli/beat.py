"""`csi-fleet beat`: celery-redbeat, the fall-back clock. Doubled, late or dead, it does no harm."""

from __future__ import annotations

import signal
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery.signals import beat_init

from workers.app import beat_settings, make_app
from workers.cli.firstping import ask_redis
from workers.observability.logging import get_logger
from workers.process import mark_ready
from workers.queue.remedies import told

if TYPE_CHECKING:
    from workers.config.settings import Settings

_log = get_logger(__name__)


def run(settings: Settings) -> int:
    """The command; returns the exit code. Ends with 1 when Redis goes, to be started again."""
    app = make_app(settings)
    app.conf.update(beat_settings(settings))
    signal.signal(signal.SIGTERM, _stop)
    import_module("redbeat.schedulers")  # its receiver, which makes the lock, comes before ours
    beat_init.connect(without_scripts)
    mark_ready(settings, "beat.ready")
    ask_redis(settings)
    beat: Any = app.Beat(loglevel="WARNING", redirect_stdouts=False, quiet=True, pidfile=None)
    # Its own would write the schedule first, for as long as Redis does not answer.
    beat.install_sync_handler = lambda _: None
    try:
        beat.run()
    except (KeyboardInterrupt, SystemExit):
        return 0
    except Exception as error:  # noqa: BLE001 - redbeat raises whatever its connection does
        _log.warning("beat ended and wants to be started again", err=told(error))
        return 1
    return 0


def without_scripts(sender: Any = None, **_: Any) -> None:
    """Lets the scheduler's lock do with commands what it does with scripts of its own.

    Who may load scripts can stop Redis with one that never ends (SEC-5), so beat may not.
    """
    lock = sender.scheduler.lock
    if lock is not None:
        lock.lua_extend, lock.lua_release = extend, release


def extend(keys: Any, args: Any, client: Any) -> int:
    """Move the end of a lock that is ours: redbeat's script, watched instead of atomic."""
    return _if_ours(client, keys[0], args[0], "pexpire", int(args[1]))


def release(keys: Any, args: Any, client: Any) -> int:
    """Give a lock back that is ours."""
    return _if_ours(client, keys[0], args[0], "delete")


def _if_ours(client: Any, name: str, token: Any, command: str, *args: int) -> int:
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(name)
        held = pipe.get(name)
        if _bytes(held) != _bytes(token):
            return 0
        pipe.multi()
        getattr(pipe, command)(name, *args)
        # Raises WatchError, a RedisError, when the lock changed hands meanwhile.
        return int(pipe.execute()[0])


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _stop(signum: int, frame: object) -> None:
    del signum, frame
    raise SystemExit(0)
