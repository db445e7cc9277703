"""Which flags does a process with these controllers take, and whose value does each one set?

A flag of one chosen controller keeps its name. What several of them have under one name is one flag
as long as their defaults agree; where they differ, each carries its controller's name in front
(`--attacher-timeout`), and the bare name is refused with these words. With the name in front every
flag of a chosen controller is accepted, alone or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagtable import FLAGS, OTHER_MEANING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from workers.config.flags import Flag
    from workers.spec import Spec

PFLAG_PROGRAM: Final = "csi-provisioner"


@dataclass(frozen=True, slots=True)
class FlagSet:
    """The flags of one process.

    Attributes:
        flags: by the name that `--help` shows.
        aliases: the same with the controller's name in front, where that is not needed.
        specs: the controllers they are of.
        refused: names that could mean several flags, and what to write instead.
    """

    flags: Mapping[str, Flag]
    aliases: Mapping[str, Flag] = field(default_factory=dict)
    specs: Sequence[Spec] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Flag | None:
        """The flag somebody wrote, None if there is none."""
        return self.flags.get(name) or self.aliases.get(name)

    @property
    def takes_one_dash(self) -> bool:
        """Whether `-timeout=5s` is a flag, as with Go's own flag package.

        csi-provisioner reads its flags with pflag, to which that is `-t`; the others do not.
        """
        return bool(self.specs) and all(spec.program != PFLAG_PROGRAM for spec in self.specs)

    def defaults(self) -> dict[str, Any]:
        """The value of every flag when none is given."""
        return {flag.name: flag.default_value() for flag in self.flags.values()}

    def own(
        self, spec: Spec, values: Mapping[str, Any], explicit: Collection[str]
    ) -> dict[str, Any]:
        """Every value as one controller sees it: its own flags' over the common ones'."""
        found = dict(values)
        for flag in spec.flags:
            long_name = prefixed(spec, flag)
            if long_name in explicit:
                found[flag.name] = values[long_name]
            elif flag.name not in explicit or self.flags[flag.name] is FLAGS.get(flag.name):
                found[flag.name] = flag.default_value()
        return found

    def common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Every value as the engine sees it: the flags that belong to no controller."""
        return {
            name: flag.default_value() if self._is_hidden(name) else values[name]
            for name, flag in FLAGS.items()
        }

    def _is_hidden(self, name: str) -> bool:
        """Whether a controller took the bare name for something else."""
        return name in OTHER_MEANING and self.flags[name] is not FLAGS[name]


def flag_set(specs: Sequence[Spec]) -> FlagSet:
    """The flags of a process that runs these controllers."""
    flags = dict(FLAGS)
    aliases: dict[str, Flag] = {}
    refused: dict[str, str] = {}
    is_one = len([spec for spec in specs if not spec.part_of]) == 1
    owners: dict[str, list[tuple[Spec, Flag]]] = {}
    for spec in specs:
        for flag in spec.flags:
            owners.setdefault(flag.name, []).append((spec, flag))
    for name, found in owners.items():
        with_prefix = {
            prefixed(spec, flag): replace(flag, name=prefixed(spec, flag)) for spec, flag in found
        }
        if name in FLAGS and not is_one:
            flags |= with_prefix  # the bare name stays ours
        elif len({(flag.kind, flag.default) for _, flag in found}) == 1:
            commands = frozenset[Any]().union(*(flag.commands for _, flag in found))
            flags[name] = replace(found[0][1], commands=commands)
            aliases |= with_prefix
        else:
            flags |= with_prefix
            choices = " or ".join(f"--{long_name}" for long_name in with_prefix)
            refused[name] = f"--{name} differs between the controllers: write {choices}"
    return FlagSet(flags, aliases, tuple(specs), refused)


def prefixed(spec: Spec, flag: Flag) -> str:
    """The flag's name with its controller's in front."""
    return f"{spec.part_of or spec.name}-{flag.name}"
