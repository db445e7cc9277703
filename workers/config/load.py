"""Which settings does this process run with? One frozen value, from flags and environment.

Flag names, defaults and meanings are csi-provisioner's (F- rules), plus ours; `flagtable` lists
them, `settings` holds the result. Nothing here opens a connection; the only files read are the
service account's namespace and the password files that flags name.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from workers.config import checks as configchecks
from workers.config import settings
from workers.config.commandline import CommandLine, HelpRequested, read_arguments, usage
from workers.config.flags import Command
from workers.config.flagtable import FLAGS
from workers.config.gates import build_gates
from workers.config.settings import Settings
from workers.config.toolflags import tool_settings
from workers.cpuquota import available_cpus
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Command", "HelpRequested", "Settings", "parse", "usage"]

SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

# Threads of one worker process when nobody says otherwise: idle threads are cheap, but more than
# this many running ones only wait for the interpreter lock.
MAX_DEFAULT_CONCURRENCY: Final = 64

# More worker processes than this on one host bring nothing: the API server is the limit by then.
MAX_DEFAULT_WORKERS: Final = 8


def parse(
    command: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    namespace_file: Path = SERVICE_ACCOUNT_NAMESPACE,
) -> Settings:
    """Read the flags after the subcommand, and the environment.

    Args:
        command: a `Command`.
        argv: the arguments after it.
        environ: the environment; nothing else of the process is looked at.
        namespace_file: where the service account's namespace is mounted.

    Raises:
        ConfigError: one line and the exit code of F-014.
        HelpRequested: `--help`; the text goes to stdout, exit 0.
    """
    if command not in frozenset(Command):
        known = ", ".join(Command)
        raise ConfigError(f"unknown command: {command}; commands are {known}")
    line = read_arguments(Command(command), argv)
    if "@" in line.values["redis-url"]:
        line.warnings.append(
            "a login in --redis-url can be read in the process list: use CSI_FLEET_REDIS_URL, or "
            "--redis-username and CSI_FLEET_REDIS_PASSWORD"
        )
    _read_environment(line, environ)
    gates, gate_warnings = build_gates(line.values["feature-gates"])
    result = Settings(
        command=line.command,
        arguments=tuple(line.arguments),
        explicit=frozenset(line.explicit),
        show_version=line.values["version"],
        gates=gates,
        log=settings.LogSettings(line.values["v"], line.values["logging-format"]),
    )
    if result.show_version or line.command is Command.VERSION:
        return result
    namespace = line.values["namespace"] or _own_namespace(environ, namespace_file)
    result = replace(
        result,
        driver=_driver(line),
        kube=_kube(line, environ, namespace),
        provision=_provision(line),
        capacity=_capacity(line, environ),
        node=_node(line, environ),
        leader=_leader(line, _own_namespace(environ, namespace_file)),
        http=_http(line),
        redis=_redis(line, environ),
        process=_process(line, environ),
        flower=_flower(line, environ),
        tool=tool_settings(line.values),
    )
    configchecks.check(result, line.values)
    warnings = (*line.warnings, *gate_warnings, *configchecks.advise(result))
    return replace(result, warnings=warnings)


def _read_environment(line: CommandLine, environ: Mapping[str, str]) -> None:
    """Fill flags that were not given from their variables."""
    for name, flag in FLAGS.items():
        text = environ.get(flag.env, "") if flag.env else ""
        if text and name not in line.explicit and line.command in flag.commands:
            line.values[name] = flag.parse(text)
            line.explicit.add(name)


def _own_namespace(environ: Mapping[str, str], namespace_file: Path) -> str:
    """Where this pod runs: POD_NAMESPACE, the service account's namespace, `default`."""
    if environ.get("POD_NAMESPACE"):
        return environ["POD_NAMESPACE"]
    try:
        return namespace_file.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _driver(line: CommandLine) -> settings.DriverSettings:
    values = line.values
    has_others = values["drivers-file"] or values["provisioner"]
    central = has_others and "csi-address" not in line.explicit
    return settings.DriverSettings(
        csi_addresses=() if central else values["csi-address"],
        provisioners=values["provisioner"],
        drivers_file=values["drivers-file"],
        drivers_pool=values["drivers-pool"],
        timeout_seconds=values["timeout"],
    )


def _kube(line: CommandLine, environ: Mapping[str, str], namespace: str) -> settings.KubeSettings:
    values = line.values
    return settings.KubeSettings(
        # Upstream's order, the reverse of every other variable (F-002).
        kubeconfig=environ.get("KUBECONFIG") or values["kubeconfig"],
        master=values["master"],
        qps=values["kube-api-qps"],
        burst=values["kube-api-burst"],
        capacity_qps=values["kube-api-capacity-qps"],
        capacity_burst=values["kube-api-capacity-burst"],
        namespace=namespace,
    )


def _provision(line: CommandLine) -> settings.ProvisionSettings:
    values = line.values
    return settings.ProvisionSettings(
        volume_name_prefix=values["volume-name-prefix"],
        volume_name_uuid_length=values["volume-name-uuid-length"],
        default_fstype=values["default-fstype"],
        extra_create_metadata=values["extra-create-metadata"],
        controller_publish_readonly=values["controller-publish-readonly"],
        prevent_volume_mode_conversion=values["prevent-volume-mode-conversion"],
        strict_topology=values["strict-topology"],
        immediate_topology=values["immediate-topology"],
        retry_interval_start_seconds=values["retry-interval-start"],
        retry_interval_max_seconds=values["retry-interval-max"],
        worker_threads=values["worker-threads"],
        cloning_protection_threads=values["cloning-protection-threads"],
        snapshot_orphan_sweep_seconds=values["snapshot-orphan-sweep-interval"],
        resync_period_seconds=values["resync-period"],
    )


def _capacity(line: CommandLine, environ: Mapping[str, str]) -> settings.CapacitySettings:
    values = line.values
    return settings.CapacitySettings(
        enabled=values["enable-capacity"],
        for_immediate_binding=values["capacity-for-immediate-binding"],
        poll_interval_seconds=values["capacity-poll-interval"],
        ownerref_level=values["capacity-ownerref-level"],
        threads=values["capacity-threads"],
        always_topology=values["capacity-always-topology"],
        namespace=environ.get("NAMESPACE", ""),
        pod_name=environ.get("POD_NAME", ""),
    )


def _node(line: CommandLine, environ: Mapping[str, str]) -> settings.NodeSettings:
    values = line.values
    return settings.NodeSettings(
        enabled=values["node-deployment"],
        node_name=environ.get("NODE_NAME", ""),
        immediate_binding=values["node-deployment-immediate-binding"],
        base_delay_seconds=values["node-deployment-base-delay"],
        max_delay_seconds=values["node-deployment-max-delay"],
    )


def _leader(line: CommandLine, own_namespace: str) -> settings.LeaderSettings:
    values = line.values
    return settings.LeaderSettings(
        # One Lease for all nodes would leave all but one idle (F-021).
        enabled=values["leader-election"] and not values["node-deployment"],
        namespace=values["leader-election-namespace"] or own_namespace,
        lease_duration_seconds=values["leader-election-lease-duration"],
        renew_deadline_seconds=values["leader-election-renew-deadline"],
        retry_period_seconds=values["leader-election-retry-period"],
        labels=tuple(sorted(values["leader-election-labels"].items())),
    )


def _http(line: CommandLine) -> settings.HttpSettings:
    values = line.values
    elected = values["leader-election"] and not values["node-deployment"]
    return settings.HttpSettings(
        endpoint=values["http-endpoint"] or values["metrics-address"],
        metrics_path=values["metrics-path"],
        pprof=values["enable-pprof"],
        leader_health=bool(elected and values["http-endpoint"]),
    )


def _redis(line: CommandLine, environ: Mapping[str, str]) -> settings.RedisSettings:
    """Take the credentials out of the URL; the flags and variables for them win."""
    values = line.values
    scheme, separator, rest = values["redis-url"].partition("://")
    authority_end = min((rest.find(c) for c in "/?" if c in rest), default=len(rest))
    login, _, host = rest[:authority_end].rpartition("@")
    username, _, password = login.partition(":")
    return settings.RedisSettings(
        url=scheme + separator + host + rest[authority_end:],
        username=values["redis-username"] or unquote(username),
        password=_redis_password(values, environ) or unquote(password),
    )


def _redis_password(values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    path = values["redis-password-file"]
    if path:
        return _read_secret("--redis-password-file", path)
    return environ.get("CSI_FLEET_REDIS_PASSWORD", "")


def _process(line: CommandLine, environ: Mapping[str, str]) -> settings.ProcessSettings:
    values = line.values
    cpus = available_cpus() if values["automaxprocs"] else 1
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    return settings.ProcessSettings(
        workers=values["workers"] or min(cpus, MAX_DEFAULT_WORKERS),
        concurrency=values["concurrency"]
        or max(1, min(2 * values["worker-threads"], MAX_DEFAULT_CONCURRENCY)),
        lease_ttl_seconds=values["lease-ttl"],
        state_dir=values["state-dir"] or str(Path(temporary) / f"csi-fleet-{os.getuid()}"),
    )


def _flower(line: CommandLine, environ: Mapping[str, str]) -> settings.FlowerSettings:
    values = line.values
    path = values["flower-basic-auth-file"]
    if path:
        logins = _read_secret("--flower-basic-auth-file", path).splitlines()
    else:
        logins = environ.get("CSI_FLEET_FLOWER_BASIC_AUTH", "").split(",")
    return settings.FlowerSettings(
        address=values["flower-address"],
        port=values["flower-port"],
        basic_auth=tuple(login.strip() for login in logins if login.strip()),
    )


def _read_secret(flag: str, path: str) -> str:
    """Read a password file; a missing one is the user's mistake, told in one line."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{flag}: cannot read {path}: {reason}") from None
