"""Flags of the commands that operators run: `status`, `explain`, `retry`, `pause`, `audit`, ..."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workers.config.flagfields import setting
from workers.config.flags import NOT_NEGATIVE, Bound, Command, Flag, Kind

_REPORTS: Final = frozenset(
    {
        Command.STATUS,
        Command.PENDING,
        Command.EXPLAIN,
        Command.FAILED,
        Command.DRY_RUN,
        Command.AUDIT,
        Command.DOCTOR,
        Command.SHADOW,
        Command.MIGRATE,
        Command.CONFORMANCE,
        Command.SUPPORT_BUNDLE,
    }
)
_HOLDS: Final = frozenset({Command.PAUSE, Command.RESUME, Command.DRAIN})
_TIMED: Final = frozenset({Command.PAUSE, Command.DRAIN})
_STATUS: Final = frozenset({Command.STATUS})
_LISTS: Final = frozenset({Command.PENDING, Command.FAILED})
_OBJECTS: Final = _LISTS | {Command.EXPLAIN, Command.RETRY, Command.DRY_RUN}
_FAILED: Final = frozenset({Command.FAILED})
_DRY_RUN: Final = frozenset({Command.DRY_RUN})
_AUDIT: Final = frozenset({Command.AUDIT})
_SECRET_ROLES: Final = frozenset({Command.SECRET_ROLES})
_DOCTOR: Final = frozenset({Command.DOCTOR})
_SHADOW: Final = frozenset({Command.SHADOW, Command.MIGRATE})
_CONFORMANCE: Final = frozenset({Command.CONFORMANCE})
_ADOPT: Final = frozenset({Command.ADOPT})
_MOVES: Final = frozenset({Command.ADOPT, Command.RELEASE})

TOOL_FLAGS: Final = (
    Flag("output", Kind.STRING, "", "Output format: `wide` adds columns, `json` and `yaml` are for "
         "programs; if empty, a table is printed.", _REPORTS, upstream=False, shorthand="o"),
    Flag("in-namespace", Kind.STRING, "", "Namespace of the objects that the command works on "
         "(`--namespace` is the namespace of csi-fleet itself).",
         _OBJECTS, upstream=False, shorthand="n"),
    Flag("all-namespaces", Kind.BOOL, "false", "Include the objects of all namespaces. This is the "
         "default.", _LISTS, upstream=False, shorthand="A"),
    Flag("wide", Kind.BOOL, "false", "Print one line for each kind of work. The same as `-o wide`.",
         _STATUS,
         upstream=False),
    Flag("watch", Kind.BOOL, "false", "Refresh the output every two seconds until Ctrl-C is "
         "pressed.", _STATUS,
         upstream=False),
    Flag("driver", Kind.STRING, "", "Name of the CSI driver that the command works on.",
         _STATUS | _HOLDS | _LISTS | _AUDIT | _DOCTOR | _SECRET_ROLES | _SHADOW, upstream=False),
    Flag("account", Kind.STRINGS, "csi-fleet/worker", "NAMESPACE/NAME of the workers' service "
         "account. May be repeated.", _SECRET_ROLES, upstream=False),
    Flag("class", Kind.STRING, "", "Name of the storage class that the command works on.",
         frozenset({Command.PAUSE, Command.RESUME}) | _MOVES, upstream=False),
    Flag("reason", Kind.STRING, "", "Reason for the pause. `explain` and `status` show it.",
         _TIMED, upstream=False),
    Flag("for", Kind.DURATION, "0s", "Resume automatically after this time; 0 means never.", _TIMED,
         upstream=False, bound=NOT_NEGATIVE),
    Flag("wait", Kind.DURATION, "5m", "How long drain waits for running work to end. adopt "
         "and release wait this long for the new pods, and again for the claim of --verify.",
         frozenset({Command.DRAIN}) | _MOVES, upstream=False, bound=NOT_NEGATIVE),
    Flag("as", Kind.STRING, "worker", "What replaces the Go sidecars: `worker` is one worker "
         "container in the driver's pod; `central` is a gateway container there that connects the "
         "central workers to the driver.",
         _ADOPT, upstream=False),
    Flag("dry-run", Kind.BOOL, "false", "Print every object as the command would write it, and "
         "change nothing.",
         _MOVES, upstream=False),
    Flag("one-replica", Kind.BOOL, "false", "Scale the driver's workload to one replica; release "
         "scales it back.", _ADOPT, upstream=False),
    Flag("any-replica", Kind.BOOL, "false", "Let the workers call all replicas of the driver "
         "at the same time. Use it only for a driver that keeps no state of its own.",
         _ADOPT,
         upstream=False),
    Flag("verify", Kind.BOOL, "false", "Afterwards create a claim, wait until it is Bound, and "
         "delete it. Set --class if the driver has several storage classes.", _MOVES,
         upstream=False),
    Flag("image", Kind.STRING, "", "Image of the worker or the gateway. Default: the image of the "
         "watcher.", _ADOPT,
         upstream=False),
    Flag("secret", Kind.STRING, "", "Name of the Secret, in the driver's namespace, with the "
         "driver's Redis password and records key. Default: the Secret whose `username` is the "
         "driver's Redis user, else redis-password-worker.", _ADOPT, upstream=False),
    Flag("force", Kind.BOOL, "false", "Change the workload even if a controller owns it and will "
         "undo the change.", _MOVES, upstream=False),
    Flag("replay", Kind.BOOL, "false", "Retry all listed objects now.", _FAILED,
         upstream=False),
    Flag("filename", Kind.STRING, "", "YAML or JSON file with the claim (`-` for standard input).",
         _DRY_RUN, upstream=False, shorthand="f"),
    Flag("grace", Kind.DURATION, "1m", "Time between the two passes of an audit.", _AUDIT,
         upstream=False, bound=NOT_NEGATIVE),
    Flag("delete", Kind.STRING, "", "Id of a volume or snapshot to delete, if the audit finds that "
         "it belongs to no object in the cluster.",
         _AUDIT, upstream=False),
    Flag("confirm", Kind.STRING, "", "Repeats the id of --delete to confirm the deletion. Without "
         "this flag, the command asks for confirmation on the terminal.", _AUDIT, upstream=False),
    Flag("forget", Kind.STRING, "", "Name of a volume: drop the record of its attempt, if the "
        "audit reports the attempt as stranded.", _AUDIT, upstream=False),
    Flag("endpoint", Kind.STRING, "", "Address of the CSI driver to check: unix:///path or "
         "tcp://host:port.", _CONFORMANCE, upstream=False),
    Flag("parameter", Kind.STRINGS, "", "Storage class parameter for the check, as KEY=VALUE. May "
         "be repeated.", _CONFORMANCE, upstream=False),
    Flag("size", Kind.QUANTITY, "1Gi", "Size of each volume that the check creates.", _CONFORMANCE,
         upstream=False, bound=Bound(lambda text: not text.startswith("-"), "not be negative")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The flag values of one of the commands that operators run."""

    output: str = setting("output", TOOL_FLAGS)
    namespace: str = setting("in-namespace", TOOL_FLAGS)
    all_namespaces: bool = setting("all-namespaces", TOOL_FLAGS)
    wide: bool = setting("wide", TOOL_FLAGS)
    watch: bool = setting("watch", TOOL_FLAGS)
    driver: str = setting("driver", TOOL_FLAGS)
    accounts: tuple[str, ...] = setting("account", TOOL_FLAGS)
    storage_class: str = setting("class", TOOL_FLAGS)
    reason: str = setting("reason", TOOL_FLAGS)
    for_seconds: float = setting("for", TOOL_FLAGS)
    wait_seconds: float = setting("wait", TOOL_FLAGS)
    replay: bool = setting("replay", TOOL_FLAGS)
    mode: str = setting("as", TOOL_FLAGS)
    dry_run: bool = setting("dry-run", TOOL_FLAGS)
    one_replica: bool = setting("one-replica", TOOL_FLAGS)
    any_replica: bool = setting("any-replica", TOOL_FLAGS)
    verify: bool = setting("verify", TOOL_FLAGS)
    image: str = setting("image", TOOL_FLAGS)
    secret: str = setting("secret", TOOL_FLAGS)
    force: bool = setting("force", TOOL_FLAGS)
    filename: str = setting("filename", TOOL_FLAGS)
    grace_seconds: float = setting("grace", TOOL_FLAGS)
    delete: str = setting("delete", TOOL_FLAGS)
    confirm: str = setting("confirm", TOOL_FLAGS)
    forget: str = setting("forget", TOOL_FLAGS)
    endpoint: str = setting("endpoint", TOOL_FLAGS)
    parameters: tuple[str, ...] = setting("parameter", TOOL_FLAGS)
    size: str = setting("size", TOOL_FLAGS)
