"""`csi-fleet`: runs the given command; reports a user's mistake as one line on stderr."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from workers.config.commandline import overview
from workers.config.flags import TOOLS
from workers.config.flagtable import FLAGS
from workers.config.load import Command, HelpRequested, parse, usage
from workers.controllers import catalogue
from workers.errors import ConfigError, ProvisionerError
from workers.observability.logging import configure_logging, get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workers.config.settings import Settings

# If this module is started with `python -m`, its `__name__` is `__main__`, which is not the name of
# one of csi-fleet's packages.
_log = get_logger("workers")

COMMANDS = ", ".join(Command)
MISTAKE: Final = 2
FATAL: Final = 255
_MODULES: Final = {
    Command.RUN: "run",
    Command.WORKER: "worker",
    Command.BEAT: "beat",
    Command.FLOWER: "flower",
    Command.SNAPSHOT_METADATA: "snapshotmetadata",
    Command.CONFORMANCE: "conformance",
    **dict.fromkeys(TOOLS, "tools"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"] and arguments[1:]:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        sys.stdout.write(overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        arguments[0] = "version"
    command, rest = drop_in(arguments)
    program = "" if command == arguments[0] else sidecar(arguments)
    try:
        settings = parse(command, rest, os.environ, program=program)
        if settings.show_version or command == Command.VERSION:
            from importlib.metadata import version as version_of  # noqa: PLC0415 - slow

            sys.stdout.write(f"csi-fleet {version_of('csi-fleet')}\n")
            return 0
        configure_logging(settings.log.format, settings.log.verbosity)
        for line in settings.warnings:
            _log.warning("check the command-line flags", warning=line)
        if program and command == Command.RUN:
            _check_alone(program, os.environ)
        return dispatch(Command(command), settings, rest)
    except HelpRequested as help_text:
        sys.stdout.write(f"{help_text}\n")
        return 0
    except ConfigError as error:
        sys.stderr.write(f"csi-fleet {program or command}: {error}\n")
        # The tools do not use the exit code that the sidecars use for fatal startup errors (F-014).
        return MISTAKE if command in TOOLS and error.exit_code == FATAL else error.exit_code
    except ProvisionerError as error:
        if command not in TOOLS:
            raise
        sys.stderr.write(f"csi-fleet {command}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def sidecar(arguments: list[str]) -> str:
    """Return the program that these arguments name; csi-provisioner if they start with a flag."""
    return "csi-provisioner" if arguments[0].startswith("-") else arguments[0]


def drop_in(arguments: list[str]) -> tuple[str, list[str]]:
    """Translate the arguments of a Go sidecar into a csi-fleet command and its arguments.

    `csi-attacher ...` runs one controller. If the environment or a flag sets the Redis URL, the
    command is a worker; otherwise it runs the whole system in one program. If the arguments start
    with a flag, they are csi-provisioner's, so that an operator or a chart can keep its argument
    list.
    """
    name = sidecar(arguments)
    rest = arguments[1:] if arguments[0] == name else arguments
    spec = catalogue.program(name)
    if spec is None:
        return name, rest
    has_redis = bool(os.environ.get(FLAGS["redis-url"].env)) or any(
        argument.partition("=")[0] == "--redis-url" for argument in rest
    )
    command = Command.WORKER if has_redis else Command.RUN
    return command, [f"--controllers={spec.name}", *rest]


def _check_alone(program: str, env: Mapping[str, str]) -> None:
    """Report that a sidecar without a Redis URL is an installation of its own.

    Raises:
        ConfigError: other variables show that it should join an installation.
    """
    url = FLAGS["redis-url"].env
    if given := sorted(name for name in env if name.startswith("CSI_FLEET_REDIS_") and name != url):
        raise ConfigError(
            f"{given[0]} is set, but {url} is not, so this container would not join the "
            f"installation of that Redis. Set {url} too"
        )
    _log.warning(
        "without a Redis URL this container is an installation of its own, which other "
        "installations' status, pauses and limits do not include; set the variable to join one",
        program=program,
        variable=url,
    )


def dispatch(command: Command, settings: Settings, argv: Sequence[str]) -> int:
    """Run one command, and import only the modules that it needs."""
    if command is Command.WATCHER:
        from workers.cli.run import replace_by_module  # noqa: PLC0415

        replace_by_module("watcher", argv)
    if command not in _MODULES:
        raise ConfigError(
            f"unknown command {command}; the commands are {COMMANDS}\n{usage(Command.RUN)}"
        )
    module = import_module(f"workers.cli.{_MODULES[command]}")
    # `workers.entry` disabled the garbage collector. `freeze` excludes from collection all objects
    # that exist now, because they are never freed anyway.
    gc.freeze()
    gc.enable()
    if command is Command.RUN:
        return int(module.run(settings, argv))
    if command in TOOLS:
        return int(module.run(command, settings))
    return int(module.run(settings))


if __name__ == "__main__":
    sys.exit(main())
