"""Builds what replaces a driver's Go sidecars in central mode: a gateway and an entry.

This module is pure: it takes containers, and returns a container, an entry for the drivers file,
and messages. Arguments are parsed with each sidecar's own flags. Where a sidecar's value differs
from the central workers' value, the entry contains the sidecar's value. Values that an entry cannot
set must be equal on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from workers.cli import gateway
from workers.cli.onecontainer import (
    OneContainer,
    is_told,
    read_all,
    security,
    socket,
    text_of,
    value_of,
)
from workers.config.commandline import CommandLine, read_arguments
from workers.config.flags import Command
from workers.config.flagsets import flag_set
from workers.config.gates import COMMON_GATES, gate_values
from workers.controllers import catalogue
from workers.drivers import driversfile
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workers.cli.onecontainer import Given
    from workers.config.flags import Flag
    from workers.kube.objects import JsonObject
    from workers.spec import Spec

# Flags of the process, not of a driver: the central workers keep their own values.
_OF_PROCESS: Final = frozenset(
    {
        *("csi-address", "feature-gates", "version", "kubeconfig", "master", "v", "vmodule"),
        *("kube-api-qps", "kube-api-burst", "http-endpoint", "metrics-address", "metrics-path"),
        *("logging-format", "enable-pprof", "automaxprocs", "leader-election"),
        *("leader-election-namespace", "leader-election-labels", "leader-election-lease-duration"),
        *("leader-election-renew-deadline", "leader-election-retry-period"),
    }
)
_TLS_FOLDER: Final = "/etc/csi-fleet/driver-tls"


@dataclass(frozen=True, slots=True)
class Central:
    """The central workers of an installation.

    Attributes:
        namespace: the namespace of the workers.
        image: the image of csi-fleet.
        pull_policy: the pull policy of the image; "" for the cluster's default.
        arguments: the arguments of a worker.
        controllers: the controllers of a worker, in the format of `CSI_FLEET_CONTROLLERS`.
        port: the port that the workers are allowed to connect to.
    """

    namespace: str
    image: str
    pull_policy: str = ""
    arguments: Sequence[str] = ()
    controllers: str = "provisioner"
    port: int = 10443

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The controllers that the workers run."""
        return catalogue.choose(self.controllers)


@dataclass(slots=True)
class Entered(OneContainer):
    """The result of building the gateway and the entry.

    Attributes:
        entry: the driver's entry for the drivers file.
    """

    entry: JsonObject = field(default_factory=dict)


def build(
    sidecars: Sequence[tuple[Spec, JsonObject]],
    pod_spec: JsonObject,
    *,
    driver: str,
    namespace: str,
    central: Central,
    is_any_replica: bool = False,
) -> Entered:
    """Build the gateway and the entry that replace these containers."""
    result = Entered()
    given = read_all(sidecars, result)
    if result.problems or not given:
        return result
    try:
        line = read_arguments(
            Command.WORKER, list(central.arguments), flag_set(central.specs), "csi-fleet worker"
        )
    except ConfigError as error:
        result.problems.append(
            f"The arguments of the central workers cannot be read: {error}. Check that "
            f"{central.namespace}/worker is the Deployment of csi-fleet's workers"
        )
        return result
    _check_controllers(given, central, result)
    _check_gates(given, line, central, result)
    result.label = (gateway.LABEL, gateway.name_of(driver))
    result.container = _container(given, pod_spec, central, result)
    secret = {"secretName": gateway.name_of(driver), "defaultMode": _mode(pod_spec, result)}
    result.volumes = [{"name": gateway.VOLUME, "secret": secret}]
    result.entry = {
        "name": driver,
        "endpoint": f"{gateway.name_of(driver)}.{namespace}.svc:{central.port}",
        "tls": {
            "ca": f"{_TLS_FOLDER}/ca.crt",
            "certificate": f"{_TLS_FOLDER}/tls.crt",
            "key": f"{_TLS_FOLDER}/tls.key",
        },
        **_flags(given, line, central, result),
    }
    if not is_any_replica:
        result.entry["replicas"] = "one"
    elif any(one.spec.name == "attacher" for one in given):
        # A driver that chooses device names itself was written for a single caller.
        result.entry["limits"] = {"attach": {"per": "node"}, "detach": {"per": "node"}}
    if pod_spec.get("hostNetwork"):
        result.notes.append(
            f"The pod uses the host's network: the gateway listens on port {central.port} of its "
            "node, and no NetworkPolicy applies to it. A client still needs a certificate"
        )
    _check(result)
    return result


def text_of_entry(entry: JsonObject) -> str:
    """Return the text of a drivers file that contains only this entry."""
    return yaml.safe_dump({"drivers": [entry]}, sort_keys=False)


def _check_controllers(given: Sequence[Given], central: Central, result: Entered) -> None:
    known = {spec.name for spec in central.specs}
    wanted = {one.spec.name for one in given}
    if missing := sorted(wanted - known):
        names = [spec.name for spec in catalogue.SPECS if spec.name in known | wanted]
        result.problems.append(
            f"The central workers do not run {', '.join(missing)}. Add them: helm upgrade "
            f"csi-fleet k8s/chart -n {central.namespace} --reuse-values --set "
            f"'controllers={{{','.join(names)}}}'"
        )
    more = [
        s.name for s in central.specs if s.name not in wanted and s.needs_driver and not s.part_of
    ]
    if more:
        result.notes.append(
            f"The central workers also run {', '.join(more)}, for which the driver has no sidecar. "
            "They serve the driver if it has the capabilities"
        )


def _check_gates(
    given: Sequence[Given], line: CommandLine, central: Central, result: Entered
) -> None:
    """Check that the central workers have the sidecars' feature gates, which apply per process."""
    for one in given:
        told = one.value("feature-gates")
        known = [*COMMON_GATES, *(gate for spec in one.specs for gate in spec.gates)]
        theirs = gate_values(told, known)
        ours = gate_values(line.values["feature-gates"], known)
        for name in sorted(set(told) & theirs.keys()):
            if theirs[name] != ours.get(name, theirs[name]):
                result.problems.append(
                    f"{one.spec.program} has the feature gate {name}={str(theirs[name]).lower()}, "
                    "the central workers have a different value. Add --feature-gates to their "
                    "arguments (helm upgrade ... --set 'worker.args={--feature-gates=...}' -n "
                    f"{central.namespace}), or remove it from the sidecar"
                )


def _flags(
    given: Sequence[Given], line: CommandLine, central: Central, result: Entered
) -> JsonObject:
    """Return the fields `flags` and `controllers` of the entry.

    They contain the sidecars' values that differ from the central workers' values.
    """
    own: JsonObject = {}
    controllers: dict[str, JsonObject] = {}
    for one in given:
        found: JsonObject = {}
        for spec, flag in _own_flags(one):
            has_told = is_told(one, flag.name)
            is_same = _is_same(one, spec, flag, line)
            text = text_of(one, flag.name) if has_told else flag.default
            if flag.per_driver or one.spec.name != "provisioner":
                if has_told or not is_same:
                    found[flag.name] = text
            elif has_told and not is_same:
                result.problems.append(
                    f"{one.spec.program} has --{flag.name}={text}, but the central workers have a "
                    "different value, which applies to all drivers. Add the flag to their "
                    f"arguments (helm upgrade ... --set 'worker.args={{--{flag.name}={text}}}' -n "
                    f"{central.namespace}), or remove it from the sidecar"
                )
        if found and one.spec.name == "provisioner":
            own = found
        elif found:
            controllers[one.spec.name] = {"flags": found}
    _note_capacity(given, result)
    entry = {"flags": own} if own else {}
    return {**entry, **({"controllers": controllers} if controllers else {})}


def _own_flags(one: Given) -> Iterator[tuple[Spec, Flag]]:
    """Yield the sidecar's flags, except flags of the process and ignored flags."""
    for spec in one.specs:
        for flag in spec.flags:
            if flag.name not in _OF_PROCESS and not flag.ignored:
                yield spec, flag


def _is_same(one: Given, spec: Spec, flag: Flag, line: CommandLine) -> bool:
    """Return True if the central workers use the sidecar's value for all drivers."""
    if spec not in line.flags.specs:
        return False
    theirs = line.flags.own(spec, line.values, line.explicit)[flag.name]
    return bool(theirs == value_of(one, flag.name))


def _note_capacity(given: Sequence[Given], result: Entered) -> None:
    if any(one.line.values.get("enable-capacity") for one in given):
        result.notes.append(
            "csi-fleet creates its CSIStorageCapacity objects in its own namespace. Afterwards, "
            "delete the objects of csi-provisioner: kubectl delete csistoragecapacities -n "
            "NAMESPACE -l csi.storage.k8s.io/managed-by=external-provisioner"
        )


def _container(
    given: Sequence[Given], pod_spec: JsonObject, central: Central, result: Entered
) -> JsonObject:
    """Return the gateway's container; it mounts the socket and runs as the first sidecar's user."""
    found = socket(given, result)
    if not found:
        return {}
    path = found[0].partition("=")[2].removeprefix("unix://")
    mounts = given[0].container.get("volumeMounts") or ()
    inside = [one for one in mounts if f"{path}/".startswith(one["mountPath"].rstrip("/") + "/")]
    if not inside or not path.startswith("/"):
        result.problems.append(
            f"The driver's socket {path} is in no volume that {given[0].spec.program} mounts, so "
            "the gateway cannot reach it. Mount the socket's folder"
        )
        return {}
    if not path.replace("/", "").replace("-", "").replace(".", "").replace("_", "").isalnum():
        result.problems.append(
            f"The path {path} of the driver's socket contains characters that have a special "
            "meaning for haproxy. Rename the socket"
        )
    mount = max(inside, key=lambda one: len(one["mountPath"].rstrip("/")))
    made = gateway.container(central.image, central.pull_policy, path, central.port, [dict(mount)])
    if "subPathExpr" in mount:
        names = {one["name"]: one for one in given[0].container.get("env") or ()}
        made["env"] += [one for name, one in names.items() if f"$({name})" in mount["subPathExpr"]]
    made["securityContext"] = security(given[0].container, pod_spec, result)
    return made


def _mode(pod_spec: JsonObject, result: Entered) -> int:
    """Return the file mode of the gateway's Secret.

    Only the gateway mounts the Secret, and the gateway's user must be able to read it.
    """
    of_pod = pod_spec.get("securityContext") or {}
    own: dict[str, Any] = result.container.get("securityContext") or {}
    user = own.get("runAsUser", of_pod.get("runAsUser"))
    return 0o440 if user == 0 or of_pod.get("fsGroup") is not None else 0o444


def _check(result: Entered) -> None:
    """Check the entry with the parser that the workers use."""
    if result.problems:
        return
    here = {name: value for name, value in result.entry.items() if name != "tls"}
    try:
        driversfile.parse(text_of_entry({**here, "insecure": True}), Path("entry"))
    except ConfigError as error:
        result.problems.append(
            f"The drivers file cannot express the arguments of the sidecars: {error}. Remove or "
            "correct the argument"
        )
