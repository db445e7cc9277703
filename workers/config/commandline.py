"""Reads an argument list in Go's flag syntax, with the flags of `flagtable`.

Accepts `--f v` and `--f=v`; a boolean accepts a value only with `=`; `--` ends the flags; the only
shorthand is `-v5`; `-f=v` is accepted by all programs but csi-provisioner
(`FlagSet.takes_one_dash`). Flags and arguments may be mixed. Only the type of each value is
checked.

Source: spf13/pflag, flag.go parseLongArg and parseSingleShortArg.
"""

from __future__ import annotations

import textwrap
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workers.config.flags import EXAMPLES, EXITS, SUMMARIES, TOOLS, Command, Flag, Kind
from workers.config.flagtable import REMOVED_BOOLS, REMOVED_VALUES
from workers.config.spelling import meant
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.config.flagsets import FlagSet


class HelpRequested(Exception):  # noqa: N818  a request, not an error
    """The user requested `--help`; the caller has to print the text and exit with 0."""


@dataclass(slots=True)
class CommandLine:
    """A parsed argument list.

    Args:
        command: the command that accepts these flags.
        program: the command, or the Go sidecar that it replaces.
        flags: all known flags.
        values: the values of all known flags, keyed by flag name, with the defaults filled in.
        explicit: the names of the given flags.
        texts: for each given flag, the strings that were given for it, in order.
        arguments: the arguments that are neither a flag nor a value.
        warnings: one line for each flag that was accepted but has no effect.
    """

    command: Command
    program: str
    flags: FlagSet
    values: dict[str, Any] = field(default_factory=dict)
    explicit: set[str] = field(default_factory=set)
    texts: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_arguments(
    command: Command, argv: Sequence[str], flags: FlagSet, program: str = ""
) -> CommandLine:
    """Read the arguments after the subcommand, or after the sidecar's name.

    Raises:
        ConfigError: a flag is unknown, or a value is missing or bad. The exit code is 2, and
            the message is pflag's.
        HelpRequested: `-h` or `--help` was given.
    """
    line = CommandLine(command, program or command, flags, values=flags.defaults())
    rest = deque(argv)
    while rest:
        argument = rest.popleft()
        if argument == "--":
            line.arguments.extend(rest)
            break
        if argument.startswith("--"):
            _read_long(line, argument, rest)
        elif argument.startswith("-") and argument != "-":
            _read_short(line, argument, rest)
        else:
            line.arguments.append(argument)
    return line


def synopsis(command: Command, program: str = "") -> str:
    """Return the usage line of a command."""
    arguments, _ = SUMMARIES[command]
    return " ".join(filter(None, ["csi-fleet", program or command, arguments, "[flags]"]))


def usage(command: Command, flags: FlagSet, program: str = "") -> str:
    """Return the `--help` text of one command, or of the sidecar that it replaces."""
    _, purpose = SUMMARIES[command]
    lines = [
        f"Usage: {synopsis(command, program)}",
        "",
        f"{purpose[0].upper()}{purpose[1:]}.".replace("?.", "?"),
        "",
    ]
    own = [flag for flag in flags.flags.values() if command in flag.commands]
    if command in TOOLS:  # operators read this, so flags that few commands accept come first
        own = [flag for flag in own if not flag.ignored]
        own.sort(key=lambda flag: (len(flag.commands) > len(TOOLS), flag.name))
        groups = {"Flags": own}
    else:
        own.sort(key=lambda flag: flag.name)
        groups = {
            "Flags of the sidecars": [one for one in own if one.upstream and not one.ignored],
            "Flags that only csi-fleet has": [one for one in own if not one.upstream],
            "Accepted but ignored": [one for one in own if one.upstream and one.ignored],
        }
    for title, members in groups.items():
        if members:
            lines += [f"{title}:", *(line for flag in members for line in _usage_lines(flag)), ""]
    if command in EXAMPLES:
        asked = EXITS.get(command, "an object does not exist, or a server does not answer")
        lines += ["Examples:", *(f"  csi-fleet {one}" for one in EXAMPLES[command]), ""]
        lines += [f"Exit codes: 0 success; 1 {asked}; 2 the command line is wrong.", ""]
    return "\n".join(lines[:-1]) + "\n"


def overview() -> str:
    """Return the text of `csi-fleet --help`."""
    lines = ["Usage: csi-fleet COMMAND [flags]", "", "Commands:"]
    lines += [f"  {command:12} {SUMMARIES[command][1]}" for command in Command]
    return "\n".join([*lines, "", "`csi-fleet COMMAND --help` lists a command's flags.", ""])


def _usage_lines(flag: Flag) -> list[str]:
    head = f"  -{flag.shorthand}, --{flag.name}" if flag.shorthand else f"      --{flag.name}"
    if flag.kind is not Kind.BOOL:
        head += f" {flag.kind.value}"
    text = flag.help
    if flag.default:
        text += f" (default {flag.default})"
    if flag.env:
        text += f" [env {flag.env}]"
    if flag.ignored:
        text += f" Accepted but ignored: {flag.ignored}."
    return [head, *textwrap.wrap(text, 92, initial_indent=" " * 10, subsequent_indent=" " * 10)]


def _read_long(line: CommandLine, argument: str, rest: deque[str]) -> None:
    name, equals, value = argument[2:].partition("=")
    if not name or name.startswith("-"):
        raise ConfigError(f"bad flag syntax: {argument}")
    if name == "help":
        raise HelpRequested(usage(line.command, line.flags, line.program))
    flag = line.flags.find(name)
    if flag is None or line.command not in flag.commands:
        if flag is None and _skip_removed(line, name, equals, rest):
            return
        if name in line.flags.refused:
            raise ConfigError(line.flags.refused[name])
        raise _unknown(line, name, flag)
    if not equals:
        if flag.kind is Kind.BOOL:
            value = "true"
        elif rest:
            value = rest.popleft()
        else:
            raise ConfigError(f"flag needs an argument: --{name}")
    _store(line, flag, value)


def _read_short(line: CommandLine, argument: str, rest: deque[str]) -> None:
    letter, value = argument[1], argument[2:]
    long_name, equals, _ = argument[1:].partition("=")
    if argument in {"-h", "-help"}:
        raise HelpRequested(usage(line.command, line.flags, line.program))
    if line.flags.takes_one_dash and line.flags.find(long_name):
        _read_long(line, f"-{argument}", rest)
        return
    if _skip_removed(line, long_name, equals, rest):
        return
    flag = next((f for f in line.flags.flags.values() if f.shorthand == letter), None)
    if flag is None or line.command not in flag.commands:
        hint = f"; write --{long_name}" if line.flags.find(long_name) else ""
        raise ConfigError(f"unknown shorthand flag: '{letter}' in {argument}{hint}")
    if flag.kind is Kind.BOOL:
        _store(line, flag, value.removeprefix("=") or "true")
        return
    if not value and not rest:
        raise ConfigError(f"flag needs an argument: '{letter}' in {argument}")
    _store(line, flag, value.removeprefix("=") if value else rest.popleft())


def _store(line: CommandLine, flag: Flag, text: str) -> None:
    earlier = line.values[flag.name] if flag.name in line.explicit else None
    try:
        line.values[flag.name] = flag.merge(earlier, text)
    except ValueError as error:
        shown = f"-{flag.shorthand}, --{flag.name}" if flag.shorthand else f"--{flag.name}"
        reason = flag.refusal(error)
        raise ConfigError(f'invalid argument "{text}" for "{shown}" flag: {reason}') from error
    if flag.ignored and flag.name not in line.explicit:
        line.warnings.append(f"flag --{flag.name} has no effect: {flag.ignored}")
    line.explicit.add(flag.name)
    line.texts.setdefault(flag.name, []).append(text)


def _skip_removed(line: CommandLine, name: str, equals: str, rest: deque[str]) -> bool:
    """Skip a flag of an older release, with its value (F-001); some klog flags have underscores."""
    dashed = name.replace("_", "-")
    reason = REMOVED_BOOLS.get(dashed) or REMOVED_VALUES.get(dashed)
    if reason is None:
        return False
    if dashed in REMOVED_VALUES and not equals and rest:
        rest.popleft()
    warning = f"flag --{dashed} is ignored: {reason}"
    if warning not in line.warnings:
        line.warnings.append(warning)
    return True


def _unknown(line: CommandLine, name: str, flag: Flag | None) -> ConfigError:
    command = line.command
    if flag is None:
        known = [one.name for one in line.flags.flags.values() if command in one.commands]
        hint = meant(f"--{name}", [f"--{one}" for one in known])
        return ConfigError(
            f"unknown flag: --{name};{hint} `csi-fleet {line.program} --help` lists all flags"
        )
    users = ", ".join(sorted(flag.commands))
    return ConfigError(f"unknown flag: --{name} is a flag of {users}, not of {command}")
