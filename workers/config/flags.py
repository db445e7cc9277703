"""Defines what a command-line flag consists of, and the commands of `csi-fleet`.

`flagtable` contains the flags themselves; `commandline` reads an argument list with them. One row
is the single source for a flag's parsing, its `--help` text and its documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final

from workers.config import flagvalues

if TYPE_CHECKING:
    from collections.abc import Callable


class Command(StrEnum):
    """The subcommands of `csi-fleet`."""

    RUN = "run"
    WATCHER = "watcher"
    WORKER = "worker"
    BEAT = "beat"
    FLOWER = "flower"
    SNAPSHOT_METADATA = "snapshot-metadata"
    STATUS = "status"
    PENDING = "pending"
    EXPLAIN = "explain"
    RETRY = "retry"
    FAILED = "failed"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    DRY_RUN = "dry-run"
    AUDIT = "audit"
    DOCTOR = "doctor"
    SHADOW = "shadow"
    MIGRATE = "migrate"
    ADOPT = "adopt"
    RELEASE = "release"
    CONFORMANCE = "conformance"
    SUPPORT_BUNDLE = "support-bundle"
    SECRET_ROLES = "secret-roles"  # noqa: S105 - the name of a command
    COMPLETION = "completion"
    VERSION = "version"


SUMMARIES = {
    Command.RUN: ("", "run everything except Flower: watcher, workers, beat and Redis"),
    Command.WATCHER: ("", "turn API events into queued work"),
    Command.WORKER: ("", "run the controllers for the CSI drivers that it can reach"),
    Command.BEAT: ("", "trigger periodic work"),
    Command.FLOWER: ("", "web UI for the Celery tasks"),
    Command.SNAPSHOT_METADATA: ("", "serve the changed blocks of snapshots to backup programs"),
    Command.STATUS: ("", "show drivers, queues, workers and Redis at a glance"),
    Command.PENDING: ("", "list everything that is waiting, grouped by cause"),
    Command.EXPLAIN: (
        "pvc NAMESPACE/NAME | va NAME | driver NAME | class NAME | namespace NAME | ...",
        "show why an object is waiting, and what has happened to it",
    ),
    Command.RETRY: ("pvc NAMESPACE/NAME | va NAME | ...", "retry an object now"),
    Command.FAILED: ("[NAMESPACE...]", "list what keeps failing or is no longer retried, and why"),
    Command.PAUSE: ("--driver=NAME | --class=NAME", "start no new work for a driver or a class"),
    Command.RESUME: ("--driver=NAME | --class=NAME", "end a pause"),
    Command.DRAIN: ("--driver=NAME", "pause a driver and wait until no work is running"),
    Command.DRY_RUN: (
        "pvc NAMESPACE/NAME | -f FILE",
        "print the request that the driver would receive",
    ),
    Command.AUDIT: ("--csi-address=SOCKET", "find volumes without a PV and PVs without a volume"),
    Command.DOCTOR: ("", "check that everything csi-fleet needs is in place"),
    Command.MIGRATE: (
        "check --driver=NAME [NAMESPACE/POD]",
        "check a migration: what would change, what is missing, what runs twice",
    ),
    Command.ADOPT: (
        "DRIVER [NAMESPACE/WORKLOAD]",
        "replace a driver's Go sidecars with one worker",
    ),
    Command.RELEASE: ("DRIVER [NAMESPACE/WORKLOAD]", "restore a driver's Go sidecars"),
    Command.SHADOW: (
        "report",
        "compare a shadow's decisions with those of the Go sidecar beside it",
    ),
    Command.CONFORMANCE: (
        "--endpoint=SOCKET",
        "check that a driver follows the CSI rules that csi-fleet relies on",
    ),
    Command.SECRET_ROLES: (
        "--account=NAMESPACE/NAME",
        "print the Roles for reading the Secrets that the cluster's classes name",
    ),
    Command.SUPPORT_BUNDLE: (
        "> FILE",
        "collect what helps to diagnose a problem, without credentials",
    ),
    Command.COMPLETION: (
        "bash | zsh | fish",
        "print a shell completion script for commands and flags",
    ),
    Command.VERSION: ("", "the version"),
}
"""The arguments and purpose of each command, for `--help`."""

EXAMPLES = {
    Command.STATUS: ("status", "status --driver=nfs.csi.k8s.io --wide", "status -o json"),
    Command.PENDING: ("pending -A", "pending -n shop", "pending --driver=nfs.csi.k8s.io -o json"),
    Command.EXPLAIN: (
        *("explain pvc shop/data", "explain pvc data -n shop", "explain va csi-0a1b"),
        *("explain driver nfs.csi.k8s.io", "explain class fast", "explain namespace shop"),
    ),
    Command.RETRY: ("retry pvc shop/data", "retry pv pvc-0a1b"),
    Command.FAILED: ("failed", "failed -n shop", "failed --driver=nfs.csi.k8s.io --replay"),
    Command.PAUSE: ("pause --driver=nfs.csi.k8s.io --for=1h --reason='array upgrade'",),
    Command.RESUME: ("resume --driver=nfs.csi.k8s.io", "resume --class=fast"),
    Command.DRAIN: ("drain --driver=nfs.csi.k8s.io --wait=10m",),
    Command.DRY_RUN: ("dry-run pvc shop/data", "dry-run -f claim.yaml"),
    Command.AUDIT: ("audit --csi-address=/csi/csi.sock",),
    Command.DOCTOR: ("doctor", "doctor --driver=nfs.csi.k8s.io"),
    Command.MIGRATE: ("migrate check --driver=nfs.csi.k8s.io kube-system/csi-nfs-0",),
    Command.ADOPT: (
        "adopt nfs.csi.k8s.io --dry-run",
        "adopt ebs.csi.aws.com kube-system/ebs-csi-controller --one-replica",
    ),
    Command.RELEASE: ("release nfs.csi.k8s.io",),
    Command.SHADOW: ("shadow report", "shadow report --driver=nfs.csi.k8s.io"),
    Command.SUPPORT_BUNDLE: (
        "support-bundle > bundle.yaml",
        "support-bundle -o json > bundle.json",
    ),
    Command.SECRET_ROLES: ("secret-roles --account=csi-fleet/worker",),
}
"""Examples of the commands that operators run, for `--help`."""

_NOT_THERE = "the object does not exist, or Redis or the API server does not answer"
EXITS = {
    Command.STATUS: "something needs attention (lines that start with !)",
    Command.PENDING: (
        "the driver or namespace is unknown, or Redis or the API server does not answer"
    ),
    Command.EXPLAIN: _NOT_THERE,
    Command.RETRY: f"{_NOT_THERE}, or no worker serves the object's driver",
    Command.FAILED: "a driver or namespace is unknown, or Redis does not answer",
    Command.DRAIN: "work was still running after the time of --wait",
    Command.AUDIT: "the audit found something",
    Command.DOCTOR: "a check reported FAIL",
    Command.MIGRATE: "a check reported FAIL",
    Command.ADOPT: "the command was refused, or had not finished after the time of --wait",
    Command.RELEASE: "the command was refused, or had not finished after the time of --wait",
    Command.SHADOW: "a decision differed, or nothing was compared",
}
"""The meaning of exit code 1, by command.

For a command that is not listed here, it means that the object is missing or a server is
unavailable.
"""

TOOLS = frozenset(
    {
        Command.STATUS,
        Command.PENDING,
        Command.EXPLAIN,
        Command.RETRY,
        Command.FAILED,
        Command.PAUSE,
        Command.RESUME,
        Command.DRAIN,
        Command.DRY_RUN,
        Command.AUDIT,
        Command.DOCTOR,
        Command.SECRET_ROLES,
        Command.SHADOW,
        Command.MIGRATE,
        Command.ADOPT,
        Command.RELEASE,
        Command.SUPPORT_BUNDLE,
        Command.COMPLETION,
    }
)
"""Commands that operators run while the system is running; they accept arguments, then end."""


class Kind(Enum):
    """The type of a flag's value; the enum's value is the word that `--help` shows for the type."""

    STRING = "string"
    STRINGS = "string..."
    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    DURATION = "duration"
    LABELS = "key:value,..."
    GATES = "Name=bool,..."
    KEYS = "key,..."
    QUANTITY = "quantity"
    VMODULE = "pattern=N,..."


def _strings(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


CONTROLLER_COMMANDS = frozenset({Command.RUN, Command.WORKER})
"""Commands that accept their controllers' flags; the watcher reads the drivers' records instead."""

RESYNC_COMMANDS = CONTROLLER_COMMANDS | {Command.WATCHER, Command.BEAT}
"""Commands that accept the resync period under each of its names; the watcher runs the resync."""

_PARSERS: dict[Kind, Callable[[str], Any]] = {
    Kind.STRING: str,
    Kind.STRINGS: _strings,
    Kind.BOOL: flagvalues.parse_bool,
    Kind.INT: flagvalues.parse_int,
    Kind.UINT: flagvalues.parse_uint,
    Kind.FLOAT: flagvalues.parse_float,
    Kind.DURATION: flagvalues.parse_duration,
    Kind.LABELS: flagvalues.parse_labels,
    Kind.GATES: flagvalues.parse_gates,
    Kind.KEYS: flagvalues.parse_keys,
    Kind.QUANTITY: flagvalues.parse_quantity,
    Kind.VMODULE: flagvalues.parse_vmodule,
}


_WANTED: Final = {
    Kind.BOOL: "true or false",
    Kind.INT: "a whole number",
    Kind.UINT: "a whole number, 0 or more",
    Kind.FLOAT: "a number",
    Kind.DURATION: "a time such as 30s, 5m or 1h30m",
    Kind.QUANTITY: "a size such as 512Mi or 10Gi",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """The allowed values of a flag; `says` completes an error message after "must"."""

    is_met: Callable[[Any], bool]
    says: str


def at_least(least: float, shown: str = "") -> Bound:
    """Return a lower bound."""
    return Bound(lambda value: value >= least, f"be at least {shown or least}")


POSITIVE: Final = Bound(lambda value: value > 0, "be greater than 0")
NOT_NEGATIVE: Final = Bound(lambda value: value >= 0, "not be negative")


@dataclass(frozen=True, slots=True)
class Flag:
    """One command-line flag.

    Args:
        name: the name without dashes.
        kind: the type of the value.
        default: the default in Go's spelling, as `--help` prints it; "" for an empty map or list.
        help: one or two sentences.
        commands: the commands that accept the flag.
        upstream: whether the Go sidecars have the flag too.
        env: the environment variable that is used if the flag is absent.
        shorthand: one letter, or "".
        ignored: why the flag has no effect here; if the flag is given, this text is logged once
            as a warning.
        bound: the allowed values; None allows all values of the type.
        per_driver: whether the drivers file can set the flag for one driver.
    """

    name: str
    kind: Kind
    default: str
    help: str
    commands: frozenset[Command] = CONTROLLER_COMMANDS
    upstream: bool = True
    env: str = ""
    shorthand: str = ""
    ignored: str = field(default="")
    bound: Bound | None = None
    per_driver: bool = False

    def problem(self, value: Any) -> str:
        """Return what is wrong with a value, or "" if it is valid."""
        if self.bound is None or self.bound.is_met(value):
            return ""
        return f"{self.name} must {self.bound.says}"

    def parse(self, text: str) -> Any:
        """Read one value.

        Raises:
            ValueError: the string is not a value of this kind; the message is Go's.
        """
        return _PARSERS[self.kind](text)

    def refusal(self, error: ValueError) -> str:
        """Return why a value is refused: Go's message for upstream flags, else the valid values."""
        wanted = "" if self.upstream else _WANTED.get(self.kind, "")
        if not wanted:
            return str(error)
        return f"use {wanted}" + (f"; it must {self.bound.says}" if self.bound else "")

    def merge(self, earlier: Any, text: str) -> Any:
        """Read one more value of a repeated flag; lists and maps extend `earlier`.

        For the first value, `earlier` is None.

        Raises:
            ValueError: the string is not a value of this kind, as for `parse`.
        """
        value = self.parse(text)
        if self.kind is Kind.STRINGS:
            return tuple(dict.fromkeys((*(earlier or ()), *value)))
        if self.kind in {Kind.LABELS, Kind.GATES}:
            return {**(earlier or {}), **value}
        return value

    def default_value(self) -> Any:
        """Return the value to use if the flag is not given; a map is a new object on each call."""
        if self.kind in {Kind.LABELS, Kind.GATES}:
            return {}
        return self.parse(self.default)
