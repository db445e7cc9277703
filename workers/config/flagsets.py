"""The flags of a process that runs given controllers.

A flag that only one of the controllers has keeps its name. If several controllers have a flag of
the same name with the same default, the name means a single flag. If the defaults differ, each flag
is prefixed with its controller's name (`--attacher-timeout`), and the bare name is refused with a
hint. The prefixed name of every flag of a chosen controller is always accepted.
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
        flags: the flags by the name that `--help` shows.
        aliases: the prefixed names of flags that need no prefix.
        specs: the controllers that have these flags.
        refused: ambiguous names, each with a hint that says what to write instead.
    """

    flags: Mapping[str, Flag]
    aliases: Mapping[str, Flag] = field(default_factory=dict)
    specs: Sequence[Spec] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Flag | None:
        """Return the flag that has the name, or None if there is none."""
        return self.flags.get(name) or self.aliases.get(name)

    @property
    def takes_one_dash(self) -> bool:
        """Whether `-timeout=5s` is a flag, as in Go's own flag package.

        csi-provisioner uses pflag, which reads it as the shorthand `-t`. The other sidecars do not
        use pflag.
        """
        return bool(self.specs) and all(spec.program != PFLAG_PROGRAM for spec in self.specs)

    def defaults(self) -> dict[str, Any]:
        """Return the default of every flag."""
        return {flag.name: flag.default_value() for flag in self.flags.values()}

    def own(
        self, spec: Spec, values: Mapping[str, Any], explicit: Collection[str]
    ) -> dict[str, Any]:
        """Return every value for one controller; its own flags override common flags."""
        found = dict(values)
        for flag in spec.flags:
            long_name = prefixed(spec, flag)
            if long_name in explicit:
                found[flag.name] = values[long_name]
            elif flag.name not in explicit or self.flags[flag.name] is FLAGS.get(flag.name):
                found[flag.name] = flag.default_value()
        return found

    def common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's values: those of the flags that belong to no controller."""
        return {
            name: flag.default_value() if self._is_hidden(name) else values[name]
            for name, flag in FLAGS.items()
        }

    def _is_hidden(self, name: str) -> bool:
        """Return True if a controller has a flag of that name, which hides the common flag."""
        return name in OTHER_MEANING and self.flags[name] is not FLAGS[name]


def flag_set(specs: Sequence[Spec]) -> FlagSet:
    """Return the flags of a process that runs these controllers."""
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
            flags |= with_prefix  # the bare name still belongs to the common flag
        elif len({(flag.kind, flag.default) for _, flag in found}) == 1:
            commands = frozenset[Any]().union(*(flag.commands for _, flag in found))
            flags[name] = replace(found[0][1], commands=commands)
            aliases |= with_prefix
        else:
            flags |= with_prefix
            choices = " or ".join(f"--{long_name}" for long_name in with_prefix)
            refused[name] = (
                f"--{name} is ambiguous: several of the controllers have a flag of this name. "
                f"Use {choices}"
            )
    return FlagSet(flags, aliases, tuple(specs), refused)


def prefixed(spec: Spec, flag: Flag) -> str:
    """Return the flag's name with the controller's name as prefix."""
    return f"{spec.part_of or spec.name}-{flag.name}"
