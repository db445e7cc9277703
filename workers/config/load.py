"""Builds the settings of a process, as one frozen value, from the flags and the environment.

Most flag names, defaults and meanings are csi-provisioner's (F- rules); some flags are our own;
`flagtable` lists them, and `settings` defines the result. Nothing here opens a connection. The only
files that are read are the service account's namespace and the password and key files that flags
name.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from workers.config import checks as configchecks
from workers.config import commandline, settings
from workers.config.commandline import CommandLine, HelpRequested, read_arguments
from workers.config.flagfields import read, with_flags
from workers.config.flags import TOOLS, Command
from workers.config.flagsets import flag_set
from workers.config.flagtable import FLAGS
from workers.config.gates import COMMON_GATES, build_gates, gate_values
from workers.config.redisurl import split_sentinel_login
from workers.config.settings import Settings
from workers.config.spelling import meant
from workers.config.toolflags import ToolSettings
from workers.controllers import catalogue
from workers.cpuquota import available_cpus
from workers.errors import ConfigError
from workers.spec import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workers.config.gates import GateSpec
    from workers.spec import Spec

__all__ = ["Command", "HelpRequested", "Settings", "parse", "usage"]

_RESYNC: Final = frozenset({"resync", "attacher-resync"})
SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

# Commands that are not sidecars: their --kubeconfig overrides KUBECONFIG, as in kubectl.
FLAG_FIRST: Final = TOOLS | {Command.RUN}

DEFAULT_CONTROLLERS: Final = FLAGS["controllers"].default

# The largest default number of threads per worker process: idle threads are cheap, but any further
# running threads would only wait for the interpreter lock.
MAX_DEFAULT_CONCURRENCY: Final = 64

# More worker processes than this on one host do not help, because the API server is then the limit.
MAX_DEFAULT_WORKERS: Final = 8


def parse(
    command: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    namespace_file: Path = SERVICE_ACCOUNT_NAMESPACE,
    program: str = "",
) -> Settings:
    """Read the flags after the subcommand, and the environment.

    Args:
        command: a `Command`.
        argv: the arguments after the command.
        environ: the environment variables; nothing else of the process is read.
        namespace_file: the file that contains the service account's namespace.
        program: the Go sidecar that these arguments were written for; they have the same meaning as
            there.

    Raises:
        ConfigError: the settings are invalid. The message is one line, and the exit code is
            that of F-014.
        HelpRequested: `--help` was given; the text is written to stdout and the exit code is 0.
    """
    if command not in frozenset(Command):
        sidecars = [one.program for one in catalogue.SPECS if not one.part_of]
        known = ", ".join([*Command, *sidecars])
        hint = meant(command, [*Command, *sidecars])
        raise ConfigError(f"unknown command: {command};{hint} the commands are {known}")
    specs = catalogue.choose(controllers_of(argv, environ))
    line = read_arguments(Command(command), argv, flag_set(specs), program)
    if any(part in line.values["redis-url"] for part in ("@", "sentinel_password=")):
        line.warnings.append(
            "the login in --redis-url can be read in the process list. Set CSI_FLEET_REDIS_URL "
            "instead, or use --redis-username and CSI_FLEET_REDIS_PASSWORD"
        )
    _read_environment(line, environ)
    _check_gates(line.values["feature-gates"], specs)
    gates, gate_warnings = build_gates(line.values["feature-gates"], _gates_of(specs))
    result = Settings(
        command=line.command,
        arguments=tuple(line.arguments),
        explicit=frozenset(line.explicit),
        show_version=line.values["version"],
        gates=gates,
        log=read(settings.LogSettings, line.values),
        chosen=tuple(spec.name for spec in specs),
    )
    if result.show_version or line.command is Command.VERSION:
        return result
    if "kubeconfig" in line.explicit and line.command in FLAG_FIRST and not program:
        environ = {**environ, "KUBECONFIG": line.values["kubeconfig"]}
    result = replace(result, **_parts(line, specs, environ, namespace_file))
    configchecks.check(result, line.values, line.flags)
    warnings = (*line.warnings, *gate_warnings, *configchecks.advise(result))
    return replace(result, warnings=warnings)


def usage(command: Command, controllers: str = DEFAULT_CONTROLLERS) -> str:
    """Return the `--help` text of one command that runs these controllers."""
    return commandline.usage(command, flag_set(catalogue.choose(controllers)))


def controllers_of(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the value of `--controllers`, which determines which other flags exist."""
    flag = FLAGS["controllers"]
    found = environ.get(flag.env) or flag.default
    for index, argument in enumerate(argv):
        if argument == "--":
            break
        name, equals, value = argument.partition("=")
        if name == f"--{flag.name}":
            found = value if equals else next(iter(argv[index + 1 :]), "")
    return found


def _parts(
    line: CommandLine, specs: Sequence[Spec], environ: Mapping[str, str], namespace_file: Path
) -> dict[str, Any]:
    """Return the settings for each part of the system."""
    values = line.flags.common(line.values)
    own = {spec.name: _values_of(line, spec, environ) for spec in specs}
    provisioner = own.get("provisioner", {})
    in_node_mode = any(found.get("node-deployment") for found in own.values())
    controllers = {spec.name: spec.read_settings(own[spec.name]) for spec in specs}
    if values["shadow"] and "capacity" in controllers:
        # Capacity objects need a response from the driver, and a shadow does not call the driver.
        controllers["capacity"] = replace(controllers["capacity"], enabled=False)
    namespace = values["namespace"] or _own_namespace(environ, namespace_file)
    driver = _driver(line, values, specs, own)
    return {
        "controllers": controllers,
        "values": own,
        "driver": driver,
        "kube": _kube(values | own.get("capacity", {}), environ, namespace),
        "provision": controllers.get("provisioner", settings.ProvisionSettings()),
        "capacity": controllers.get("capacity", settings.CapacitySettings()),
        "resync_period_seconds": _resync_seconds(line, values, specs),
        "node": _node(provisioner, environ, enabled=in_node_mode),
        "leader": _leader(
            values,
            _own_namespace(environ, namespace_file),
            is_apart=in_node_mode or values["shadow"],
        ),
        "http": _http(values, in_node_mode=in_node_mode),
        "redis": _redis(values, environ),
        "process": _process(values, environ, own.values(), driver),
        "flower": _flower(values, environ),
        "blocks": read(settings.BlockSettings, values),
        "tool": read(ToolSettings, values),
    }


def _resync_seconds(line: CommandLine, values: Mapping[str, Any], specs: Sequence[Spec]) -> float:
    """Return the period of the common resync, the shortest one given; 0 for no resync.

    csi-attacher's flag is `--resync` (A-100); each flag can be prefixed with its controller's name.
    """
    names = {one for one in line.explicit if one.endswith("resync-period") or one in _RESYNC}
    periods = [float(line.values[name]) for name in names]
    if not names or (names <= _RESYNC and {spec.name for spec in specs} != {"attacher"}):
        periods.append(float(values["resync-period"]))
    return min((one for one in periods if one > 0), default=0.0)


def _values_of(line: CommandLine, spec: Spec, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the input for one controller's settings: its flags, its gates and the environment."""
    values = line.flags.own(spec, line.values, line.explicit)
    values["feature-gates"] = gate_values(values["feature-gates"], spec.gates)
    return values | {ENVIRONMENT: environ}


def _gates_of(specs: Sequence[Spec]) -> tuple[GateSpec, ...]:
    gates = [*COMMON_GATES, *(gate for spec in specs for gate in spec.gates)]
    return tuple({gate.name: gate for gate in gates}.values())


def _check_gates(requested: Mapping[str, bool], specs: Sequence[Spec]) -> None:
    """Refuse a gate that no controller has (A-101).

    If the provisioner runs, such a gate only causes a warning, because manifests in use still name
    gates that upstream has dropped.

    Raises:
        ConfigError: a gate is refused; the exit code is 1.
    """
    if not specs or any(spec.name == "provisioner" for spec in specs):
        return
    known = {gate.name for gate in _gates_of(catalogue.SPECS)} | {"AllAlpha", "AllBeta"}
    for name in requested.keys() - known:
        raise ConfigError(
            f"failed to store flag gates: unrecognized feature gate: {name}", exit_code=1
        )


def _read_environment(line: CommandLine, environ: Mapping[str, str]) -> None:
    """Set the flags that were not given from their environment variables."""
    for name, flag in line.flags.flags.items():
        text = environ.get(flag.env, "") if flag.env else ""
        if text and name not in line.explicit and line.command in flag.commands:
            try:
                line.values[name] = flag.parse(text)
            except ValueError as error:
                raise ConfigError(f"{flag.env}={text}: {flag.refusal(error)}") from error
            line.explicit.add(name)


def _own_namespace(environ: Mapping[str, str], namespace_file: Path) -> str:
    """Return this pod's namespace: POD_NAMESPACE, else the service account's, else `default`."""
    if environ.get("POD_NAMESPACE"):
        return environ["POD_NAMESPACE"]
    try:
        return namespace_file.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _driver(
    line: CommandLine,
    values: Mapping[str, Any],
    specs: Sequence[Spec],
    own: Mapping[str, Mapping[str, Any]],
) -> settings.DriverSettings:
    has_others = values["drivers-file"] or values["provisioner"]
    needs_none = not any(spec.needs_driver for spec in specs)
    # A controller without a driver opens no socket, even if a shared command line names a socket.
    is_without = needs_none or (has_others and "csi-address" not in line.explicit)
    timeouts = [found["timeout"] for found in own.values() if "timeout" in found]
    timeout = timeouts[0] if timeouts else settings.DriverSettings().timeout_seconds
    found = read(settings.DriverSettings, {"timeout": timeout, **values})
    return replace(found, csi_addresses=()) if is_without else found


def _kube(
    values: Mapping[str, Any], environ: Mapping[str, str], namespace: str
) -> settings.KubeSettings:
    found = settings.KubeSettings(
        # As in upstream, the environment variable takes precedence over this flag (F-002). Every
        # other flag takes precedence over its variable; see FLAG_FIRST.
        kubeconfig=environ.get("KUBECONFIG") or values["kubeconfig"],
        namespace=namespace,
    )
    return with_flags(found, values)


def _node(
    values: Mapping[str, Any], environ: Mapping[str, str], *, enabled: bool
) -> settings.NodeSettings:
    found = settings.NodeSettings(enabled=enabled, node_name=environ.get("NODE_NAME", ""))
    return with_flags(found, values)


def _leader(
    values: Mapping[str, Any], own_namespace: str, *, is_apart: bool
) -> settings.LeaderSettings:
    return read(
        settings.LeaderSettings,
        values,
        # With one Lease for all nodes, only one node would work (F-021). A shadow writes no Lease.
        enabled=values["leader-election"] and not is_apart,
        namespace=values["leader-election-namespace"] or own_namespace,
        labels=tuple(sorted(values["leader-election-labels"].items())),
    )


def _http(values: Mapping[str, Any], *, in_node_mode: bool) -> settings.HttpSettings:
    elected = values["leader-election"] and not in_node_mode
    return read(
        settings.HttpSettings,
        values,
        endpoint=values["http-endpoint"] or values["metrics-address"],
        leader_health=bool(elected and values["http-endpoint"]),
    )


def _redis(values: Mapping[str, Any], environ: Mapping[str, str]) -> settings.RedisSettings:
    """Move the credentials out of the URL; flags and variables for credentials take precedence."""
    scheme, separator, rest = values["redis-url"].strip().partition("://")
    authority_end = min((rest.find(c) for c in "/?" if c in rest), default=len(rest))
    login, _, host = rest[:authority_end].rpartition("@")
    username, _, password = login.partition(":")
    url, sentinel_username, sentinel_password, sentinel_file = split_sentinel_login(
        scheme + separator + host + rest[authority_end:]
    )
    return read(
        settings.RedisSettings,
        values,
        url=url,
        username=values["redis-username"] or unquote(username),
        password=_password("redis", values, environ) or unquote(password),
        password_file=_absolute(values["redis-password-file"]),
        sentinel_username=values["redis-sentinel-username"] or sentinel_username,
        sentinel_password=_password("redis-sentinel", values, environ) or sentinel_password,
        sentinel_password_file=_absolute(values["redis-sentinel-password-file"]) or sentinel_file,
        record_keys=_record_keys(values, environ),
    )


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def _record_keys(values: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, ...]:
    path = values["records-key-file"]
    text = (
        _read_secret("--records-key-file", path)
        if path
        else environ.get("CSI_FLEET_RECORDS_KEY", "")
    )
    return tuple(text.split())


def _password(whose: str, values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    path = values[f"{whose}-password-file"]
    if path:
        # The first line is the current password; during a rotation, Redis accepts the passwords on
        # all lines.
        return _read_secret(f"--{whose}-password-file", path).partition("\n")[0].strip()
    return environ.get(f"CSI_FLEET_{whose.upper().replace('-', '_')}_PASSWORD", "")


def _default_workers(values: Mapping[str, Any], driver: settings.DriverSettings) -> int:
    """Return the default number of worker processes: at most one per CPU and per driver.

    A process uses one CPU at a time; for a single driver, a second process would only cost memory.
    """
    most = MAX_DEFAULT_WORKERS
    if not (values["automaxprocs"] or driver.drivers_file):
        most = min(len(driver.csi_addresses), most)
    return min(most, available_cpus()) if most > 1 else 1


def temporary(environ: Mapping[str, str]) -> Path:
    """Return a folder for temporary files, even if the container's root folder is read-only."""
    try:
        return Path(environ.get("TMPDIR") or tempfile.gettempdir())
    except FileNotFoundError:
        return Path("/dev/shm")  # noqa: S108 - private to the container


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Return the default state folder, which `run` uses unless another process is using it."""
    return temporary(environ) / f"csi-fleet-{os.getuid()}"


def _process(
    values: Mapping[str, Any],
    environ: Mapping[str, str],
    own: Iterable[Mapping[str, Any]],
    driver: settings.DriverSettings,
) -> settings.ProcessSettings:
    threads = max((found.get("worker-threads", 0) for found in own), default=0)
    return read(
        settings.ProcessSettings,
        values,
        workers=values["workers"] or _default_workers(values, driver),
        concurrency=values["concurrency"]
        or max(1, min(2 * threads or MAX_DEFAULT_CONCURRENCY, MAX_DEFAULT_CONCURRENCY)),
        state_dir=values["state-dir"] or str(default_state_dir(environ)),
    )


def _flower(values: Mapping[str, Any], environ: Mapping[str, str]) -> settings.FlowerSettings:
    path = values["flower-basic-auth-file"]
    if path:
        logins = _read_secret("--flower-basic-auth-file", path).splitlines()
    else:
        logins = environ.get("CSI_FLEET_FLOWER_BASIC_AUTH", "").split(",")
    return read(
        settings.FlowerSettings,
        values,
        basic_auth=tuple(login.strip() for login in logins if login.strip()),
        tls=(values["flower-tls-cert-file"], values["flower-tls-key-file"]),
        secret_files=tuple(
            values[name]
            for name in ("flower-basic-auth-file", "flower-oidc-secret-file")
            if values[name]
        ),
        oidc=_flower_oidc(values),
    )


def _flower_oidc(values: Mapping[str, Any]) -> settings.OidcSettings | None:
    provider = values["flower-oidc-provider"]
    if not provider:
        return None
    path = values["flower-oidc-secret-file"]
    return settings.OidcSettings(
        provider=provider,
        allowed=values["flower-oidc-allowed"],
        client_id=values["flower-oidc-client-id"],
        secret=_read_secret("--flower-oidc-secret-file", path) if path else "",
        redirect_uri=values["flower-oidc-redirect-uri"],
    )


def _read_secret(flag: str, path: str) -> str:
    """Read a password file; a missing file raises a ConfigError with a message of one line."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{flag}: cannot read {path}: {reason}") from None
