"""Generates docs/flags.md: `python -m workers.config.flagdocs > docs/flags.md`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from workers.config.flags import Command
from workers.config.flagtable import COMMON_FLAGS, OWN_FLAGS, REMOVED_BOOLS, REMOVED_VALUES
from workers.config.gates import COMMON_GATES
from workers.controllers import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workers.config.flags import Flag

_HEAD = """# Flags

`python -m workers.config.flagdocs > docs/flags.md` generates this page. To change a flag, edit
its row in the file that [architecture](architecture.md#how-to-add) names.

Write values as in Go: durations such as `1h30m` or `500ms`. A boolean is `--x` or `--x=false`
(never `--x false`); every other flag accepts `--x=v` or `--x v`. If a flag is unknown, the
program ends with exit code 2.

`--controllers` (of `run`, `worker`, `watcher`, `beat` and `doctor`) selects the controllers that
run; the table below lists their names. With one controller, the flags have the same names and
defaults as those of its sidecar: `csi-fleet csi-attacher ARGUMENTS` accepts all arguments of a
csi-attacher container, and the image without a command accepts those of csi-provisioner. With
several controllers, a flag that they share keeps its name. A flag that differs between them gets
the controller's name in front (`--attacher-timeout`); every other flag may be written in this way
too.
"""

_ENVIRONMENT = """## Environment

| Variable | Meaning |
|---|---|
| `KUBECONFIG` | overrides `--kubeconfig` of the sidecars' commands; is the default of the others' |
| `NODE_NAME` | needed with `--node-deployment` |
| `NAMESPACE` | needed with `--enable-capacity`: where the objects live |
| `POD_NAME` | needed with `--enable-capacity`, unless `--capacity-ownerref-level=-1` |
| `POD_NAMESPACE` | default of `--namespace` and `--leader-election-namespace` |
| `CSI_FLEET_REDIS_PASSWORD` | password of Redis |
| `CSI_FLEET_REDIS_SENTINEL_PASSWORD` | password of the sentinels |
| `CSI_FLEET_FLOWER_BASIC_AUTH` | `user:password` for Flower, several separated by commas |
"""


def flags_markdown() -> str:
    """Return the whole text of docs/flags.md."""
    parts = [
        _HEAD,
        _controllers(),
        "## Flags of every sidecar\n",
        _table(COMMON_FLAGS),
        *_of_controllers(),
        "## Flags that only csi-fleet has\n",
        _table(OWN_FLAGS),
        _ENVIRONMENT,
        _gates(),
        _removed(),
    ]
    return "\n".join(parts)


def _controllers() -> str:
    lines = ["## Controllers", "", "| Name | In place of | Alone as |", "|---|---|---|"]
    lines += [
        f"| `{spec.name}` | {spec.program} | `csi-fleet {spec.program}` |"
        for spec in catalogue.SPECS
        if not spec.part_of
    ]
    return "\n".join(lines) + "\n"


def _of_controllers() -> Iterator[str]:
    for spec in catalogue.SPECS:
        if spec.flags:
            yield f"## Flags of the {spec.name} controller\n"
            yield _table(spec.flags)


def _table(flags: Iterable[Flag]) -> str:
    lines = ["| Flag | Type | Default | Commands | Meaning |", "|---|---|---|---|---|"]
    lines += [_row(flag) for flag in flags]
    return "\n".join(lines) + "\n"


def _row(flag: Flag) -> str:
    name = f"`-{flag.shorthand}`, `--{flag.name}`" if flag.shorthand else f"`--{flag.name}`"
    default = f"`{flag.default}`" if flag.default else ""
    meaning = flag.help
    if flag.bound is not None:
        meaning += f" Must {flag.bound.says}."
    if flag.env:
        meaning += f" Environment: `{flag.env}`."
    if flag.ignored:
        meaning += f" Accepted but ignored, with a warning: {flag.ignored}."
    cells = [name, flag.kind.value, default, _commands(flag), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _commands(flag: Flag) -> str:
    users = [command.value for command in Command if command in flag.commands]
    return "all" if len(users) == len(Command) - 2 else ", ".join(users)


def _gates() -> str:
    lines = [
        "## Feature gates",
        "",
        "Other names are accepted with a warning and have no effect;",
        "without the provisioner they end the program with exit code 1.",
        "",
        "| Gate | Controller | Stage | Default | Effect |",
        "|---|---|---|---|---|",
    ]
    owned = [("all", COMMON_GATES), *((spec.name, spec.gates) for spec in catalogue.SPECS)]
    lines += [
        f"| `{gate.name}` | {owner} | {gate.stage} | {str(gate.default).lower()} | {gate.effect} |"
        for owner, gates in owned
        for gate in gates
    ]
    return "\n".join(lines) + "\n"


def _removed() -> str:
    lines = [
        "## Flags of older releases",
        "",
        "csi-fleet accepts and ignores these flags, and logs a warning for each:",
        "",
    ]
    lines += [f"- `--{n}`: {why}" for n, why in sorted((REMOVED_BOOLS | REMOVED_VALUES).items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(flags_markdown())
