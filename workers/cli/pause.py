"""`csi-fleet pause`, `resume` and `drain`: stop the work for a driver or a storage class.

What is said goes to Redis, where it holds at once, and to the API server, from which it comes back
when Redis loses its data. Without the API server it holds all the same, and the command says that
it may get lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from workers.cli import knowndrivers, terminal
from workers.config.flags import Command
from workers.engine.pausecopies import CLASS, DRIVER, Copy, PauseCopies
from workers.errors import ApiError, ConfigError
from workers.explain.words import duration, nearest
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.queue.pauses import CLASS_CACHE_SECONDS

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.queue.pauses import Said

POLL_SECONDS: Final = 0.5


def run(tools: Tools) -> int:
    """The command; `drain` ends with 1 when work still runs after --wait."""
    tool, command = tools.settings.tool, tools.settings.command
    if tool.driver and tool.storage_class:
        raise ConfigError("give --driver or --class, not both")
    if not tool.driver and not tool.storage_class:
        choice = "--driver=NAME" if command is Command.DRAIN else "--driver=NAME or --class=NAME"
        raise ConfigError(f"give {choice}")
    if tool.storage_class:
        return _of_class(tools)
    known = queue_names(tools, tool.driver)
    if command is Command.RESUME:
        was_paused = any(
            "operator" in stats.paused
            for lane, stats in tools.queue.stats().items()
            if lane.partition("|")[2] in known
        )
        for name in known:
            tools.pauses.resume_driver(name)
        _drop_copy(tools, DRIVER, tool.driver)
        terminal.write(f"driver {tool.driver} {'goes on' if was_paused else 'was not paused'}")
        return 0
    seconds = tool.for_seconds or None
    said = [tools.pauses.pause_driver(name, tool.reason, seconds=seconds) for name in known]
    _keep_copy(tools, DRIVER, tool.driver, said[0])
    end = f" for {duration(tool.for_seconds)}" if seconds else ""
    terminal.write(f"driver {tool.driver} is paused{end}; running work ends by itself")
    return drain(tools, known) if command is Command.DRAIN else 0


def drain(tools: Tools, names: list[str]) -> int:
    """Waits until nothing of the drivers runs."""
    end, before = time.monotonic() + tools.settings.tool.wait_seconds, -1
    while True:
        left = sum(tools.pauses.draining(name) for name in names)
        if left != before:
            terminal.write(f"{left} tasks run")
        if not left:
            return 0
        if time.monotonic() > end:
            terminal.write("still running after --wait; the pause stays")
            return 1
        before = left
        time.sleep(POLL_SECONDS)


def queue_names(tools: Tools, driver: str) -> list[str]:
    """Queue names of a driver: one, or one per node. One that is not served can be paused too.

    Raises:
        ConfigError: nobody knows this name.
    """
    if found := knowndrivers.served(tools, driver):
        return list(found)
    now = knowndrivers.shown(tools.registry.alive())
    terminal.write(f"note: no worker serves driver {driver} now (served: {now})")
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


def _of_class(tools: Tools) -> int:
    tool = tools.settings.tool
    name = tool.storage_class
    if tools.settings.command is Command.RESUME:
        was_paused = tools.pauses.resume_class(name)
        _drop_copy(tools, CLASS, name)
        terminal.write(f"class {name} {'goes on' if was_paused else 'was not paused'}")
        return 0
    _check_class(tools, name)
    seconds = tool.for_seconds or None
    said = tools.pauses.pause_class(name, tool.reason, seconds=seconds)
    _keep_copy(tools, CLASS, name, said)
    # By then every worker has read it: a claim that is made after our word is not begun.
    time.sleep(CLASS_CACHE_SECONDS)
    terminal.write(f"class {name} is paused; attempts in progress are finished")
    return 0


def _keep_copy(tools: Tools, kind: str, name: str, said: Said) -> None:
    try:
        copies(tools).keep(Copy(kind, name, said))
    except (ApiError, ConfigError) as error:
        terminal.write(
            f"WARNING: no copy of this pause is in the API server: it ends when Redis loses its "
            f"data ({error}). Repeat the command when this is mended"
        )


def _drop_copy(tools: Tools, kind: str, name: str) -> None:
    try:
        copies(tools).drop(kind, name)
    except (ApiError, ConfigError) as error:
        terminal.write(
            f"WARNING: the copy of the pause stays in the API server: it comes back when Redis "
            f"loses its data ({error}). Repeat the command when this is mended"
        )


def copies(tools: Tools) -> PauseCopies:
    """In the namespace that the workers look into."""
    settings = tools.settings
    namespaces = {str(one.get("system_namespace") or "") for one in tools.registry.alive().values()}
    if "namespace" not in settings.explicit and len(namespaces - {""}) == 1:
        return PauseCopies(tools.kube, (namespaces - {""}).pop())
    return PauseCopies(tools.kube, settings.kube.namespace)
