"""`csi-fleet pause`, `resume` and `drain`: stop and resume work for a driver or a storage class.

The source of truth is a ConfigMap (`workers.kube.pauserecord`). The command writes the ConfigMap
and mirrors it to Redis, where the pause takes effect at once. Without a Redis URL, a watcher
mirrors it within seconds.
"""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Final

from workers.cli import knowndrivers, terminal
from workers.config.flags import Command
from workers.errors import ApiError, ConfigError
from workers.explain.words import duration, nearest
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError
from workers.kube.pauserecord import CLASS, DRIVER, NAME, PauseRecord
from workers.queue.clock import read_clock
from workers.queue.pauses import CLASS_CACHE_SECONDS

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.kube.pauserecord import Recorded

POLL_SECONDS: Final = 0.5


def run(tools: Tools) -> int:
    """Run the command; `drain` returns 1 if work is still running after --wait."""
    tool, command = tools.settings.tool, tools.settings.command
    if tool.driver and tool.storage_class:
        raise ConfigError("--driver and --class cannot be combined. Use one of the two flags")
    if not tool.driver and not tool.storage_class:
        choice = "--driver=NAME" if command is Command.DRAIN else "--driver=NAME or --class=NAME"
        raise ConfigError(f"it is not clear what to pause or resume. Use {choice}")
    kind = DRIVER if tool.driver else CLASS
    name = tool.driver or tool.storage_class
    has_redis = bool(tools.settings.redis.url)
    if command is Command.DRAIN and not has_redis:
        raise ConfigError(
            "drain counts the running work in Redis, so it needs the address of Redis. Set "
            "--redis-url"
        )
    queue_names = queue_names_of(tools, name) if kind == DRIVER and has_redis else [name]
    if command is Command.RESUME:
        was_paused, state = _record(tools, kind, name, None)
        _mirror(tools, state)
        terminal.write(f"{kind} {name} {'has been resumed' if was_paused else 'was not paused'}")
        return 0
    if kind == CLASS:
        _check_class(tools, name)
    _mirror(tools, _record(tools, kind, name, _end_ms(tools))[1])
    if kind == CLASS:
        if has_redis:
            # When this sleep ends, every worker has read the class's pause, so no worker starts
            # another claim.
            time.sleep(CLASS_CACHE_SECONDS)
        terminal.write(f"storage class {name} is paused; attempts in progress will finish")
        return 0
    end = f" for {duration(tool.for_seconds)}" if tool.for_seconds else ""
    terminal.write(f"driver {name} is paused{end}; calls in progress will finish")
    return drain(tools, queue_names) if command is Command.DRAIN else 0


def _record(tools: Tools, kind: str, name: str, until_ms: int | None) -> tuple[bool, Recorded]:
    """Record a pause, or the end of a pause if `until_ms` is None."""
    record, reason = record_of(tools), tools.settings.tool.reason
    change = record.change(kind, name, reason, until_ms)
    try:
        return record.apply(change)
    except ForbiddenError as error:
        # The admission policy, if installed, does not let a worker's account record pauses.
        patch = shlex.quote(json.dumps({"data": change}))
        raise ConfigError(
            f"nothing was changed: {error}. Run this with an account that has the permission: "
            f"kubectl -n {record.namespace} patch configmap {NAME} --type=merge -p {patch} (before "
            f"the first pause: kubectl -n {record.namespace} create configmap {NAME})",
            exit_code=1,
        ) from error


def _end_ms(tools: Tools) -> int:
    """Return the end of the pause in milliseconds, by the clock of Redis's host; 0 for no end."""
    seconds = tools.settings.tool.for_seconds
    now = read_clock(tools.redis).shown_now if tools.settings.redis.url else time.time()
    return round((now + seconds) * 1000) if seconds else 0


def _mirror(tools: Tools, state: Recorded) -> None:
    if tools.settings.redis.url:
        tools.pauses.mirror(state)
    else:
        terminal.write(
            "note: without --redis-url, the change takes effect once a watcher has read it, "
            "within 5 s"
        )


def drain(tools: Tools, names: list[str]) -> int:
    """Wait until none of the drivers' calls is running; return 1 if --wait elapses first."""
    end, before = time.monotonic() + tools.settings.tool.wait_seconds, -1
    while True:
        left = sum(tools.pauses.draining(name) for name in names)
        if left != before:
            terminal.write(f"{left} task{' runs' if left == 1 else 's run'}")
        if not left:
            return 0
        if time.monotonic() > end:
            terminal.write("work is still running after --wait; the pause remains in effect")
            return 1
        before = left
        time.sleep(POLL_SECONDS)


def queue_names_of(tools: Tools, driver: str) -> list[str]:
    """Return a driver's queue names: one per node if it runs on each node, else one.

    The driver need not have workers: a driver without workers can be paused too.

    Raises:
        ConfigError: the name is unknown.
    """
    if found := knowndrivers.served(tools, driver):
        return list(found)
    now = knowndrivers.shown(tools.registry.alive())
    terminal.write(f"note: no worker serves driver {driver} now (drivers served now: {now})")
    return [driver]


def _check_class(tools: Tools, name: str) -> None:
    try:
        tools.kube.get_class(name)
    except NotFoundError as error:
        classes = [str(one["metadata"]["name"]) for one in tools.kube.list(paths.STORAGE_CLASSES)]
        raise ConfigError(
            f'storage class "{name}" does not exist.{nearest(name, classes)}', exit_code=1
        ) from error
    except (ApiError, ConfigError):
        return


def record_of(tools: Tools) -> PauseRecord:
    """Return the pause record in the namespace that the workers read.

    Raises:
        ConfigError: the namespace is unknown.
    """
    settings = tools.settings
    if "namespace" in settings.explicit:
        return PauseRecord(tools.kube, settings.kube.namespace)
    if not settings.redis.url:
        raise ConfigError(
            "without --redis-url, the namespace of csi-fleet's records is not known. Set "
            "--namespace"
        )
    namespaces = {str(one.get("system_namespace") or "") for one in tools.registry.alive().values()}
    namespaces -= {""}
    namespace = namespaces.pop() if len(namespaces) == 1 else settings.kube.namespace
    return PauseRecord(tools.kube, namespace)
