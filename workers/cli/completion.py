"""`csi-fleet completion bash|zsh|fish`: prints the script that completes commands and flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.cli import terminal
from workers.cli.pods import POD
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
_FIRST: Final = {
    Command.MIGRATE: "check",
    Command.SHADOW: "report",
    Command.DRY_RUN: "pvc",
    Command.COMPLETION: " ".join(SHELLS),
}
# The first column of the table that `status` prints when its output is piped.
_AWK: Final = '/^DRIVER /{on=1;next} !NF{on=0} on&&$1!="-"&&$1!="none"{print $1}'
_DRIVERS: Final = f"csi-fleet status 2>/dev/null | awk '{_AWK}'"
_DRIVERS_FISH: Final = _DRIVERS.replace("'", "\\'")


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
    """Return the first arguments that a command accepts, separated by spaces."""
    if command not in _ABOUT_OBJECTS:
        return _FIRST.get(command, "")
    further = (POD, *WHOLES) if command is Command.EXPLAIN else ()
    return " ".join([*nouns.nouns(), *further])


def flag_words(command: Command) -> str:
    """Return the flags that a command accepts, separated by spaces."""
    return " ".join(
        f"--{name}" for name, flag in sorted(flags().items()) if command in flag.commands
    )


def bash(*, is_zsh: bool) -> str:
    """Return a completion function for bash; zsh can run it too."""
    known = [(command, flag_words(command)) for command in Command]
    flag_cases = "\n".join(f"    {command}) words='{words}' ;;" for command, words in known)
    known = [(command, objects(command)) for command in Command]
    object_cases = "\n".join(
        f"    {command}) words='{words}' ;;" for command, words in known if words
    )
    head = "autoload -U +X bashcompinit && bashcompinit\n" if is_zsh else ""
    # bash splits `--driver=NAME` into three words.
    return f"""{head}_csi_fleet() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=''
  [ "$current" = = ] && before='=' current=''
  if [ "$COMP_CWORD" -le 1 ]; then
    words='{" ".join(Command)}'
  elif [ "$before" = driver ] || [ "$before" = --driver ] ||
    {{ [ "$before" = = ] && [[ "${{COMP_LINE%=*}}" = *--driver ]]; }}; then
    words="$({_DRIVERS})"
  elif [[ "$current" = -* ]]; then
    case "${{COMP_WORDS[1]}}" in
{flag_cases}
    esac
  elif [ "$COMP_CWORD" -eq 2 ]; then
    case "${{COMP_WORDS[1]}}" in
{object_cases}
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
        for name, flag in sorted(flags().items()):
            if command in flag.commands:
                names = f" -x -a '({_DRIVERS_FISH})'" if name == "driver" else ""
                lines.append(f"complete -c csi-fleet -n {seen} -l {name}{names}")
        if known := objects(command):
            lines.append(f"complete -c csi-fleet -f -n {seen} -a '{known}'")
    return "\n".join(lines)
