"""Runs the operator commands; holds their modules and the connections that they share."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workers.cli import terminal
from workers.cli.embedded_redis import SOCKET, url_of
from workers.cli.patience import patience
from workers.cli.statefolder import is_private, is_unwritable
from workers.config.flags import Command
from workers.config.load import default_state_dir
from workers.config.settings import RedisSettings
from workers.errors import ConfigError
from workers.explain import nouns
from workers.kube.client import KubeClient
from workers.kube.resources import KubeResources
from workers.queue.clock import read_clock
from workers.queue.connection import RedisClient, connect
from workers.queue.pauses import Pauses
from workers.queue.presence import Presence
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.config.settings import Settings

_MODULES: Final = {
    Command.STATUS: "status",
    Command.PENDING: "pending",
    Command.EXPLAIN: "explain",
    Command.RETRY: "retry",
    Command.FAILED: "failed",
    Command.PAUSE: "pause",
    Command.RESUME: "pause",
    Command.DRAIN: "pause",
    Command.DRY_RUN: "dry_run",
    Command.AUDIT: "audit",
    Command.DOCTOR: "doctor",
    Command.SECRET_ROLES: "secret_roles",
    Command.SHADOW: "shadow",
    Command.MIGRATE: "migrate",
    Command.ADOPT: "adopt",
    Command.RELEASE: "adopt",
    Command.SUPPORT_BUNDLE: "support_bundle",
    Command.COMPLETION: "completion",
}
TIMEOUT_SECONDS: Final = 5.0
QUICK_SECONDS: Final = 1.5
OUTPUTS: Final = frozenset({"", "text", "wide", *(DATA := ("json", "yaml"))})


def run(command: Command, settings: Settings) -> int:
    """Run one command; return the exit code."""
    if settings.tool.output not in OUTPUTS:
        raise ConfigError(
            f"-o {settings.tool.output} is not an output format. Use wide, json or yaml, or "
            "remove the flag"
        )
    module = import_module(f"workers.cli.{_MODULES[command]}")
    try:
        with patience(command):
            code = int(module.run(Tools(with_redis(settings))))
        sys.stdout.flush()
    except OSError as error:
        # At exit, Python would flush the rest of the output and print the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader (head, less) has seen enough
            return 0
        raise ConfigError(str(error), exit_code=1) from error
    return code


def with_redis(settings: Settings) -> Settings:
    """Return the settings; if they have no URL, add that of a `csi-fleet run` on this machine."""
    if settings.redis.url:
        return settings
    directory, is_safe = Path(settings.process.state_dir), True
    if "state-dir" not in settings.explicit or is_unwritable(directory):
        directory = default_state_dir(os.environ)
        # A different user may have created a folder of that name.
        is_safe = is_private(directory)
    if is_safe and (directory / SOCKET).exists():
        return replace(settings, redis=RedisSettings(url=url_of(directory)))
    return settings


@dataclass
class Tools:
    """The connections of one command, which are opened on first use.

    Attributes:
        settings: the settings of the command.
    """

    settings: Settings

    @property
    def is_data(self) -> bool:
        """Whether the output is for programs."""
        return self.settings.tool.output in DATA

    @property
    def is_wide(self) -> bool:
        """Whether more columns were requested."""
        return self.settings.tool.wide or self.settings.tool.output == "wide"

    def write(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write the output for programs."""
        terminal.write_document(self.settings.tool.output, kind, fields)

    @cached_property
    def kube(self) -> KubeResources:
        """The client of the API server.

        Raises:
            ConfigError: there is no usable client configuration.
        """
        kube = self.settings.kube
        client = KubeClient.from_settings(
            kube.kubeconfig,
            kube.master,
            user_agent="csi-fleet-tool",
            rate=kube.rate(),
        )
        return KubeResources(client)

    @cached_property
    def redis(self) -> RedisClient:
        """The client of the queue's Redis.

        Raises:
            ConfigError: no URL is given.
        """
        url = self.settings.redis.url_with_credentials()
        if not url:
            raise ConfigError(
                "the address of Redis is not known. Set --redis-url or the environment variable "
                "CSI_FLEET_REDIS_URL, or set --state-dir to the folder of a running `csi-fleet run`"
            )
        is_quick = self.settings.command is Command.EXPLAIN  # it can answer without Redis
        return connect(
            url,
            password_file=self.settings.redis.password_file,
            socket_timeout_seconds=QUICK_SECONDS if is_quick else TIMEOUT_SECONDS,
            # Users rerun a failed command themselves; with retries, a command would print nothing
            # for three timeouts.
            retries=0,
        )

    def publish(self, lists: Iterable[str]) -> None:
        """Notify workers that work is due in these lists.

        Celery is imported here, because most commands do not notify workers and importing it would
        slow them down.
        """
        from workers.app import make_app, publisher  # noqa: PLC0415

        publisher(make_app(self.settings))(lists)

    @cached_property
    def queue(self) -> WorkQueue:
        """The work queue, which can notify workers."""
        return WorkQueue(self.redis, publish=self.publish)

    @cached_property
    def registry(self) -> DriverRegistry:
        """The registered drivers.

        The registry reads Redis's clock instead of the queue's. Only scripts advance the queue's
        clock, so it stands still while all processes are dead, and the first read after that would
        report all drivers as alive.
        """
        return DriverRegistry(self.redis, now_ms=lambda: read_clock(self.redis).now_ms)

    @cached_property
    def pauses(self) -> Pauses:
        """The pauses set by operators."""
        return Pauses(self.redis, self.queue)

    @cached_property
    def presence(self) -> Presence:
        """The processes that are alive."""
        return Presence(self.redis)


def named_object(
    arguments: tuple[str, ...],
    command: str,
    only: frozenset[str] = frozenset(),
    also: str = "",
    *,
    given: str = "",
    further: tuple[str, ...] = (),
) -> tuple[str, str, str]:
    """Return the noun (`pvc`, `va`, ...), namespace and name from the arguments and `-n`.

    Args:
        arguments: the arguments of the command.
        command: the command's name, for the examples.
        only: the nouns that the command accepts; empty for all.
        also: an example of another argument that the command accepts.
        given: the namespace given with `-n`.
        further: words that the command accepts besides nouns.

    Raises:
        ConfigError: the arguments name no object; the message contains an example.
    """
    words = list(arguments)
    if len(words) == 1 and words[0].count("/") in {1, 2}:
        words = words[0].split("/", 1)
    noun = nouns.find(words[0]) if len(words) == 2 else None
    if noun is None or (only and noun.word not in only):
        raise ConfigError(_no_object(words, command, only, also, further))
    namespace, slash, name = words[1].partition("/")
    if not noun.resource.namespaced:
        if slash:
            raise ConfigError(
                f"{words[1]!r} contains a namespace, but this kind of object has none. Run "
                f"`{command} {noun.example}`"
            )
        return noun.word, "", words[1]
    if not slash and given:
        namespace, name = given, words[1]
    example = f"Run `csi-fleet {command} {noun.example}`"
    if not name and (namespace or not slash) and (slash or given):
        raise ConfigError(f"{words[1]!r} has no name. {example}")
    if not namespace or not name or "/" in name:
        raise ConfigError(f"{words[1]!r} has no namespace. {example}, or add `-n NAMESPACE`")
    if slash and given not in {"", namespace}:
        raise ConfigError(f"{words[1]!r} is not in namespace {given}. Remove -n {given}")
    return noun.word, namespace, name


def _no_object(
    words: list[str], command: str, only: frozenset[str], also: str, further: tuple[str, ...]
) -> str:
    """Return the error message: what is wrong with the words, and what is expected."""
    wrong = ""
    if len(words) > 2 and nouns.find(words[0]):
        wrong = f"{command} takes one object, not {' '.join(words[1:])!r}. "
    elif words[1:] and nouns.find(words[0]) is None:
        wrong = f'{command} does not know the kind "{words[0]}". '
    taken = [one for one in nouns.nouns().values() if not only or one.word in only]
    examples = [f"`csi-fleet {command} {one}`" for one in (taken[0].example, also) if one]
    others = ", ".join([*(one.word for one in taken[1:]), *further])
    return f"{wrong}Run {' or '.join(examples)}{f' (also {others})' if others else ''}"
