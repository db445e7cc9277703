"""`csi-fleet beat`: runs celery-redbeat as a fallback clock; running two, or none, is harmless."""

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
    """Run the command; return 1 if Redis is lost, so that the process is restarted."""
    app = make_app(settings)
    app.conf.update(beat_settings(settings))
    signal.signal(signal.SIGTERM, _exit)
    beat_init.connect(stop_on_term)
    import_module("redbeat.schedulers")  # its receiver creates the lock, so it must come first
    beat_init.connect(without_scripts)
    mark_ready(settings, "beat.ready")
    ask_redis(settings)
    beat: Any = app.Beat(loglevel="WARNING", redirect_stdouts=False, quiet=True, pidfile=None)
    # Before it stops beat, Celery's signal handler would write the schedule, and would wait while
    # Redis is unavailable.
    beat.install_sync_handler = lambda _: None
    try:
        beat.run()
    except (KeyboardInterrupt, SystemExit):
        return 0
    except Exception as error:  # noqa: BLE001 - redbeat raises whatever its connection does
        _log.warning("beat exited and must be restarted", err=told(error))
        return 1
    return 0


def stop_on_term(sender: Any = None, **_: Any) -> None:
    """Stop even if the signal arrives in a `__del__`, where Python swallows the SystemExit.

    The SystemExit ends beat's sleep between two rounds; a stopped service starts no further round.
    """

    def stop(signum: int, frame: object) -> None:
        sender.stop()
        _exit(signum, frame)

    signal.signal(signal.SIGTERM, stop)


def without_scripts(sender: Any = None, **_: Any) -> None:
    """Replace the scripts of the scheduler's lock with commands.

    A user who is allowed to load scripts can block Redis with a script that never ends, so beat is
    not given that permission.
    """
    lock = sender.scheduler.lock
    if lock is not None:
        lock.lua_extend, lock.lua_release = extend, release


def extend(keys: Any, args: Any, client: Any) -> int:
    """Extend our lock as redbeat's script does, using WATCH to make the commands atomic."""
    return _if_ours(client, keys[0], args[0], "pexpire", int(args[1]))


def release(keys: Any, args: Any, client: Any) -> int:
    """Release our lock."""
    return _if_ours(client, keys[0], args[0], "delete")


def _if_ours(client: Any, name: str, token: Any, command: str, *args: int) -> int:
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(name)
        held = pipe.get(name)
        if _bytes(held) != _bytes(token):
            return 0
        pipe.multi()
        getattr(pipe, command)(name, *args)
        # Raises WatchError, a RedisError, if the lock's owner has changed in the meantime.
        return int(pipe.execute()[0])


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _exit(signum: int, frame: object) -> None:
    del signum, frame
    raise SystemExit(0)
