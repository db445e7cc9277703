"""`csi-fleet completion bash|zsh|fish`: prints the script that completes commands and flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.cli import terminal
from workers.cli.wholes import WHOLES
from workers.config.flags import Command
from workers.config.flagsets import flag_set
from workers.controllers import catalogue
from workers.errors import ConfigError
from workers.explain import nouns

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.config.flags import Flag

SHELLS: Final = ("bash", "zsh", "fish")
_ABOUT_OBJECTS: Final = frozenset({Command.EXPLAIN, Command.RETRY})


def run(tools: Tools) -> int:
    """Print the script.

    `eval "$(csi-fleet completion bash)"` in the shell's start file loads it.
    """
    arguments = tools.settings.arguments
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise ConfigError(
            f"the name of the shell is missing or unknown. Use one of {', '.join(SHELLS)}"
        )
    terminal.write(fish() if arguments[0] == "fish" else bash(is_zsh=arguments[0] == "zsh"))
    return 0


def flags() -> dict[str, Flag]:
    """Return every flag of every controller, under each of its names."""
    found: dict[str, Flag] = {}
    for text in (*(spec.name for spec in catalogue.SPECS if not spec.part_of), catalogue.ALL):
        found |= flag_set(catalogue.choose(text)).flags
    return found


def objects(command: Command) -> str:
    """Return the kinds of object that a command accepts, separated by spaces."""
    further = tuple(WHOLES) if command is Command.EXPLAIN else ()
    return " ".join([*nouns.nouns(), *further]) if command in _ABOUT_OBJECTS else ""


def words(command: Command) -> str:
    """Return the flags and kinds of object that a command accepts, separated by spaces."""
    known = [f"--{name}" for name, flag in sorted(flags().items()) if command in flag.commands]
    extra = objects(command) or (" ".join(SHELLS) if command is Command.COMPLETION else "")
    return " ".join([extra, *known]).strip()


def bash(*, is_zsh: bool) -> str:
    """Return a completion function for bash; zsh can run it too."""
    cases = "\n".join(f"    {command}) words='{words(command)}' ;;" for command in Command)
    head = "autoload -U +X bashcompinit && bashcompinit\n" if is_zsh else ""
    return f"""{head}_csi_fleet() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words='{" ".join(Command)}'
  if [ "$COMP_CWORD" -gt 1 ]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
complete -o default -F _csi_fleet csi-fleet"""


def fish() -> str:
    """Return the completions for fish."""
    commands = " ".join(Command)
    lines = [f"complete -c csi-fleet -f -n __fish_use_subcommand -a '{commands}'"]
    for command in Command:
        seen = f"'__fish_seen_subcommand_from {command}'"
        lines += [
            f"complete -c csi-fleet -n {seen} -l {name}"
            for name, flag in sorted(flags().items())
            if command in flag.commands
        ]
        if known := objects(command):
            lines.append(f"complete -c csi-fleet -f -n {seen} -a '{known}'")
    return "\n".join(lines)
