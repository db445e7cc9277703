"""Flags of the node helpers: the Go programs' flags and a few more (LP-002, NR-003)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workers.config.flags import Command, Flag, Kind
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

LIVENESS: Final = "livenessprobe"
REGISTRAR: Final = "csi-node-driver-registrar"
NODE: Final = "node"

_BOOL, _DURATION, _STRING, _INT = Kind.BOOL, Kind.DURATION, Kind.STRING, Kind.INT
_NONE: Final = frozenset[Command]()


def _flag(
    name: str, kind: Kind, default: str, text: str, *, ignored: str = "", ours: bool = False
) -> Flag:
    return Flag(name, kind, default, text, _NONE, upstream=not ours, ignored=ignored)


_COMMON: Final = (
    _flag("csi-address", _STRING, "/run/csi/socket", "Socket of the CSI driver."),
    _flag(
        "http-endpoint", _STRING, "", "Listen address for health checks and metrics, as host:port."
    ),
    _flag("automaxprocs", _BOOL, "false", "", ignored="a single thread does the work"),
    Flag("v", Kind.UINT, "0", "Log verbosity; 4 and 5 log each request.", _NONE, shorthand="v"),
    _flag("logging-format", _STRING, "text", "text or json."),
    _flag("vmodule", Kind.VMODULE, "", "", ignored="verbosity is the same for all files; use -v"),
)
_LIVENESS: Final = (
    _flag(
        "probe-timeout",
        _DURATION,
        "3s",
        "Time limit for one request, including the connection and the Probe call.",
    ),
    _flag("metrics-path", _STRING, "/metrics", "HTTP path of the metrics."),
    _flag(
        "serve-before-ready",
        _BOOL,
        "false",
        "Listen even before the driver has answered for the first time; until then, return status "
        "500.",
        ours=True,
    ),
    _flag(
        "min-probe-interval",
        _DURATION,
        "0s",
        "Use the result of the last Probe call if it is not older than this; 0 calls the driver "
        "for each request.",
        ours=True,
    ),
    _flag("terse", _BOOL, "false", "Return `unhealthy` instead of the error message.", ours=True),
)
_LIVENESS_ALONE: Final = (
    _flag("health-port", _STRING, "9808", "Deprecated: port for /healthz on every address."),
    _flag("metrics-address", _STRING, "", "Deprecated: listen address for the metrics only."),
)
_REGISTRAR: Final = (
    _flag(
        "kubelet-registration-path",
        _STRING,
        "",
        "Path of the driver's socket on the host, as the kubelet reaches it. Required.",
    ),
    _flag(
        "plugin-registration-path",
        _STRING,
        "/registration",
        "Folder for the registration socket: the kubelet's plugins_registry.",
    ),
    _flag("timeout", _DURATION, "1s", "Time limit for GetPluginInfo and for each health check."),
    _flag(
        "exit-on-registration-failure",
        _BOOL,
        "true",
        "Exit with code 1 if the kubelet rejects the driver; if false, retry the registration with "
        "growing delays.",
        ours=True,
    ),
)
_REGISTRAR_ALONE: Final = (
    _flag("connection-timeout", _DURATION, "0s", "", ignored="deprecated; the time limit is 30 s"),
    _flag("health-port", _INT, "0", "Deprecated: port for /healthz; 0 or less means no port."),
    _flag("enable-pprof", _BOOL, "false", "", ignored="SIGUSR1 writes the stacks of all threads"),
    _flag(
        "mode",
        _STRING,
        "",
        "Deprecated: with kubelet-registration-probe, exit at once with code 0.",
    ),
    _flag("version", _BOOL, "false", "Print the version and exit."),
)
TABLES: Final = {
    LIVENESS: (*_COMMON, *_LIVENESS, *_LIVENESS_ALONE),
    REGISTRAR: (*_COMMON, *_REGISTRAR, *_REGISTRAR_ALONE),
    NODE: (*_COMMON, *_LIVENESS, *_REGISTRAR),
}
SUMMARIES: Final = {
    LIVENESS: "answers the kubelet's liveness probe for a CSI driver with a Probe call",
    REGISTRAR: "registers a CSI driver with the kubelet of its node",
    NODE: "livenessprobe and csi-node-driver-registrar in one process",
}


@dataclass(slots=True)
class Options:
    """The flag values by name, the names of the given flags, and the warnings."""

    values: dict[str, Any] = field(default_factory=dict)
    explicit: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values


def read(program: str, argv: Sequence[str]) -> Options | str:
    """Read the arguments; return the help text if `--help` is among them.

    Raises:
        ConfigError: a flag is unknown, or a value is missing or invalid; exit code 2.
    """
    flags = {flag.name: flag for flag in TABLES[program]}
    options = Options({name: flag.default_value() for name, flag in flags.items()})
    rest = list(argv)
    while rest:
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        if name in {"h", "help"}:
            return usage(program)
        flag = flags.get(name) or _shorthand(flags, name)
        if flag is None:
            raise ConfigError(f"unknown flag: --{name}; `csi-fleet {program} --help` lists all")
        if not equals:
            value = _next_value(flag, name, rest)
        _store(options, flag, value)
    return options


def usage(program: str) -> str:
    """Return the text that `--help` prints."""
    lines = [f"Usage: csi-fleet {program} [flags]", "", f"{SUMMARIES[program]}.", "", "Flags:"]
    for flag in sorted(TABLES[program], key=lambda one: one.name):
        shown = f" (default {flag.default})" if flag.default else ""
        purpose = f"Accepted without effect: {flag.ignored}." if flag.ignored else flag.help
        lines.append(f"      --{flag.name} {flag.kind.value}\n          {purpose}{shown}")
    return "\n".join(lines) + "\n"


def _shorthand(flags: dict[str, Flag], name: str) -> Flag | None:
    """Return the one-letter flag that a value is directly attached to, as in `-v5`."""
    return None if not (name[:1] == "v" and name[1:].isdigit()) else flags["v"]


def _next_value(flag: Flag, name: str, rest: list[str]) -> str:
    if name != flag.name:
        return name[1:]
    if flag.kind is Kind.BOOL:
        return "true"
    if not rest:
        raise ConfigError(f"flag needs an argument: --{flag.name}")
    return rest.pop(0)


def _store(options: Options, flag: Flag, text: str) -> None:
    try:
        options.values[flag.name] = flag.parse(text)
    except ValueError as error:
        raise ConfigError(f'invalid argument "{text}" for "--{flag.name}" flag: {error}') from error
    if flag.ignored:
        options.warnings.append(f"flag --{flag.name} has no effect: {flag.ignored}")
    options.explicit.add(flag.name)
