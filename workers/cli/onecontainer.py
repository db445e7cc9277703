"""Builds one worker container that replaces several Go sidecars of a pod.

This module is pure: it takes containers, and returns a container and messages. Arguments are parsed
with each sidecar's own flags and written with the flags of `csi-fleet worker --controllers=...`.
What one container cannot express is reported as a problem, never guessed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workers.cli.kubectl import REDIS_CLIENT
from workers.cli.loginsecret import user_of
from workers.cli.sidecars import VARIABLE
from workers.config.commandline import HelpRequested, read_arguments
from workers.config.flags import Command, Kind
from workers.config.flagsets import flag_set, prefixed
from workers.config.flagtable import FLAGS
from workers.config.flagvalues import parse_listen_address
from workers.config.gates import COMMON_GATES, gate_values
from workers.config.load import parse
from workers.controllers import catalogue
from workers.errors import ConfigError

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

    from workers.config.commandline import CommandLine
    from workers.kube.objects import JsonObject
    from workers.spec import Spec

NAME: Final = "csi-fleet-worker"
CA_VOLUME: Final = "csi-fleet-redis-ca"
LOGIN_VOLUME: Final = "csi-fleet-redis-login"
CA_FOLDER: Final = "/run/csi-fleet-redis/ca"
LOGIN_FOLDER: Final = "/run/csi-fleet-redis/login"
# Measured (docs/performance.md): a worker with four controllers uses 55 to 80 MiB.
RESOURCES: Final = {"requests": {"cpu": "20m", "memory": "160Mi"}, "limits": {"memory": "384Mi"}}

# Flags with one value per process. The sidecars' request rates to the API server are added up; for
# times and verbosity, the largest value is used.
_ADDED: Final = {"kube-api-qps": 5.0, "kube-api-burst": 10.0}
_LARGEST: Final = frozenset(
    {
        *("v", "leader-election-lease-duration", "leader-election-renew-deadline"),
        "leader-election-retry-period",
    }
)
_ANY: Final = frozenset({"leader-election", "enable-pprof", "automaxprocs"})
_FIRST: Final = frozenset({"http-endpoint", "metrics-address", "metrics-path", "logging-format"})
_APART: Final = frozenset({"csi-address", "feature-gates", "version"})
# Fields of a sidecar's container that are copied, handled explicitly, or not needed.
_TAKEN: Final = frozenset(
    {
        *("name", "image", "imagePullPolicy", "command", "args", "env", "envFrom", "volumeMounts"),
        *("securityContext", "resources", "ports", "livenessProbe"),
        *("terminationMessagePath", "terminationMessagePolicy", "restartPolicy"),
    }
)


@dataclass(frozen=True, slots=True)
class Installation:
    """The facts about an installation that a worker in a driver's pod depends on."""

    namespace: str
    image: str
    redis_url: str
    records_namespace: str
    pull_policy: str = ""

    @property
    def has_ca(self) -> bool:
        """Whether Redis's CA certificate comes from the ConfigMap redis-ca."""
        return CA_FOLDER in self.redis_url


@dataclass(slots=True)
class OneContainer:
    """The result of `build`.

    Attributes:
        container: the worker; unusable if there are problems.
        label: the label that is added to the pod.
        volumes: the container's volumes that the pod does not have yet.
        elects: the programs with --leader-election.
        problems: the reasons why one container cannot replace the sidecars, each with a remedy.
        notes: what will be different after the change.
    """

    container: JsonObject = field(default_factory=dict)
    label: tuple[str, str] = REDIS_CLIENT
    volumes: list[JsonObject] = field(default_factory=list)
    elects: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Given:
    """One sidecar: its spec, its container and its parsed arguments."""

    spec: Spec
    container: JsonObject
    line: CommandLine

    @property
    def specs(self) -> tuple[Spec, ...]:
        return catalogue.choose(self.spec.name)

    def value(self, name: str) -> Any:
        return self.line.values[name]

    def has(self, name: str) -> bool:
        return name in self.line.explicit


def build(
    sidecars: Sequence[tuple[Spec, JsonObject]],
    pod_spec: JsonObject,
    *,
    driver: str,
    installation: Installation,
    secret: str,
) -> OneContainer:
    """Build the worker that replaces these containers; the provisioner's container comes first."""
    result = OneContainer()
    given = read_all(sidecars, result)
    if result.problems or not given:
        return result
    arguments = _arguments(given, result)
    container: JsonObject = {
        "name": NAME,
        "image": installation.image,
        **({"imagePullPolicy": installation.pull_policy} if installation.pull_policy else {}),
        "args": ["worker", *arguments, f"--namespace={installation.records_namespace}"],
        "env": [*_environment(given, result), *_redis_environment(driver, installation)],
        "volumeMounts": [*_mounts(given, result), *_redis_mounts(installation)],
        "resources": copy.deepcopy(RESOURCES),
        "securityContext": security(given[0].container, pod_spec, result),
    }
    sources = [one.container.get("envFrom") or [] for one in given]
    if any(one != sources[0] for one in sources):
        result.problems.append(
            "The sidecars read environment variables from different ConfigMaps or Secrets "
            "(envFrom), and it is not known which should win in one container. Give all sidecars "
            "the same envFrom"
        )
    elif sources[0]:
        container["envFrom"] = copy.deepcopy(sources[0])
    _serve_http(given, container, result)
    _tell_dropped(given, result)
    result.container = container
    result.volumes = _volumes(pod_spec, container["securityContext"], secret, installation)
    _check(arguments, given, result)
    return result


def read_all(sidecars: Sequence[tuple[Spec, JsonObject]], result: OneContainer) -> list[Given]:
    """Parse the sidecars' arguments, the provisioner's first; failures are recorded as problems."""
    order = {spec.name: index for index, spec in enumerate(catalogue.SPECS)}
    given = [
        one
        for spec, container in sorted(sidecars, key=lambda pair: order[pair[0].name])
        if (one := _read(spec, container, result)) is not None
    ]
    programs = [spec.program for spec, _ in sidecars]
    for program in sorted({one for one in programs if programs.count(one) > 1}):
        result.problems.append(
            f"The pod has several containers of {program}, so it serves several drivers or runs "
            "one of them twice, but one worker serves only one socket. Move the sidecars container "
            "by container"
        )
    result.elects = {one.spec.program for one in given if one.value("leader-election")}
    return given


def _read(spec: Spec, container: JsonObject, result: OneContainer) -> Given | None:
    flags = flag_set(catalogue.choose(spec.name))
    try:
        line = read_arguments(Command.WORKER, _words(container), flags, spec.program)
    except ConfigError as error:
        result.problems.append(
            f"Container {container['name']}: csi-fleet does not accept its arguments: {error}. "
            "Remove or correct the argument. If its value comes from a ConfigMap or Secret, write "
            "the value into the manifest"
        )
        return None
    except HelpRequested:
        result.problems.append(f"Container {container['name']} only prints its help (--help)")
        return None
    own = [name for name in sorted(line.explicit) if not _is_of_sidecar(line, name)]
    if own:
        result.problems.append(
            f"Container {container['name']}: --{own[0]} is not a flag of {spec.program}, so the "
            "container does not run the Go sidecar. Restore the Go sidecar first (kubectl rollout "
            "undo)"
        )
    if line.arguments:
        result.problems.append(
            f"Container {container['name']}: {line.arguments[0]!r} is not a flag, and "
            f"{spec.program} ignores all arguments after it. Remove it"
        )
    if line.values.get("node-deployment"):
        result.problems.append(
            f"Container {container['name']} works for a single node (--node-deployment). Move the "
            "driver node by node: docs/migration.md"
        )
    return Given(spec, container, line)


def _is_of_sidecar(line: CommandLine, name: str) -> bool:
    flag = line.flags.find(name)
    return flag is None or flag.upstream or name not in FLAGS


def _words(container: JsonObject) -> list[str]:
    """Return the arguments; variables that the container itself defines are expanded."""
    known = _literals(container)
    words = [*(container.get("command") or [])[1:], *(container.get("args") or [])]
    return [_expanded(str(one), known, container) for one in words]


def _literals(container: JsonObject) -> dict[str, str]:
    """Return the variables with a plain value, expanded in order as the kubelet does."""
    known: dict[str, str] = {}
    for one in container.get("env") or ():
        known.pop(one["name"], None)
        if not one.get("valueFrom"):
            known[one["name"]] = _expanded(one.get("value") or "", known, container)
    return known


def _expanded(text: str, known: Mapping[str, str], container: JsonObject) -> str:
    """Expand known variables; a `$(NAME)` that the kubelet would keep gets a second dollar sign."""
    names = {one["name"] for one in container.get("env") or ()}

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name is None or (name not in known and (name in names or container.get("envFrom"))):
            return match[0]
        return known.get(name, f"${match[0]}")

    return VARIABLE.sub(replaced, text)


def _references(text: str) -> set[str]:
    return {name for name in VARIABLE.findall(text) if name}


# Arguments.


def _arguments(given: Sequence[Given], result: OneContainer) -> list[str]:
    """Return the arguments of `csi-fleet worker` that combine those of all sidecars."""
    controllers = ",".join(one.spec.name for one in given)
    return [
        f"--controllers={controllers}",
        *socket(given, result),
        *_gates(given, result),
        *_common(given, result),
        *_own(given),
    ]


def socket(given: Sequence[Given], result: OneContainer) -> list[str]:
    """Return the address of the socket as the first container sees it.

    The addresses in all containers must refer to the same file.
    """
    addresses = [one.value("csi-address") for one in given]
    if any(len(one) != 1 for one in addresses):
        result.problems.append(
            "A sidecar has several --csi-address flags, but one worker container serves only one "
            "driver. Give each container one address"
        )
        return []
    places = {
        _place(one.container, address[0]) for one, address in zip(given, addresses, strict=True)
    }
    if len(places) > 1:
        result.problems.append(
            "The sidecars connect to different sockets: "
            + ", ".join(f"{one.spec.program} to {one.value('csi-address')[0]}" for one in given)
            + ". One worker serves only one socket. Move the sidecars container by container"
        )
    return [f"--csi-address={addresses[0][0]}"]


def _place(container: JsonObject, address: str) -> tuple[str, str]:
    """Return the socket's volume and the path in that volume; ("", path) if it is in no volume."""
    path = address.removeprefix("unix://")
    mounts = container.get("volumeMounts") or ()
    inside = [one for one in mounts if f"{path}/".startswith(one["mountPath"].rstrip("/") + "/")]
    if not inside:
        return "", path
    mount = max(inside, key=lambda one: len(one["mountPath"].rstrip("/")))
    rest = path[len(mount["mountPath"].rstrip("/")) :]
    part = str(mount.get("subPath") or mount.get("subPathExpr") or "")
    return mount["name"], f"{part}{rest}"


def _gates(given: Sequence[Given], result: OneContainer) -> list[str]:
    """Return the feature gates, without duplicates.

    The controllers that read a gate must agree on its value.
    """
    merged: dict[str, bool] = {}
    for one in given:
        merged |= one.value("feature-gates")
    for name in sorted(merged):
        seen: dict[bool, list[str]] = {}
        for one in given:
            known = [*COMMON_GATES, *(gate for spec in one.specs for gate in spec.gates)]
            values = gate_values(one.value("feature-gates"), known)
            if name in values:
                seen.setdefault(values[name], []).append(one.spec.program)
            elif name in {"AllAlpha", "AllBeta"}:
                is_on = bool(one.value("feature-gates").get(name))
                seen.setdefault(is_on, []).append(one.spec.program)
        if len(seen) > 1:
            result.problems.append(
                f"The feature gate {name} is on for {', '.join(seen[True])} and off for "
                f"{', '.join(seen[False])}. A worker has only one value for each gate. Give all "
                "sidecars the same value"
            )
        elif seen:
            merged[name] = next(iter(seen))
    if not merged:
        return []
    return ["--feature-gates=" + ",".join(f"{n}={str(v).lower()}" for n, v in merged.items())]


def _common(given: Sequence[Given], result: OneContainer) -> list[str]:
    """Return the flags that all sidecars share, with one value for the process."""
    own = {flag.name for one in given for spec in one.specs for flag in spec.flags}
    names = [
        name
        for name, flag in FLAGS.items()
        if name not in own | _APART and not flag.ignored and any(one.has(name) for one in given)
    ]
    found: list[str] = []
    for name in names:
        texts = [one.line.texts[name][-1] for one in given if one.has(name)]
        values = [one.value(name) for one in given]
        if name in _ADDED:
            told = [one.value(name) if one.has(name) else _ADDED[name] for one in given]
            # Values of 0 or less have special meanings and cannot be added up.
            total = sum(told) if min(told) > 0 else min(told)
            found.append(f"--{name}={total:g}")
        elif name in _LARGEST:
            most = max(one.value(name) for one in given if one.has(name))
            text = next(
                one.line.texts[name][-1]
                for one in given
                if one.has(name) and one.value(name) == most
            )
            found.append(f"--{name}={text}")
        elif name in _ANY:
            if any(values):
                found.append(f"--{name}")
        elif name in _FIRST:
            found += _first(name, texts, given, result)
        elif any(one != values[0] for one in values):
            result.problems.append(
                f"The sidecars have different values of --{name}: "
                + ", ".join(f"{one.spec.program} {one.value(name)!r}" for one in given)
                + ". A worker has only one value. Give all sidecars the same value"
            )
        else:
            found.append(f"--{name}={texts[0]}")
    return found


def _first(
    name: str, texts: Sequence[str], given: Sequence[Given], result: OneContainer
) -> list[str]:
    """Return the first of the values given for a flag of the process; a note lists the others."""
    whole = [text for text in texts if text]
    if not whole:
        return []
    if name == "metrics-address" and any(one.value("http-endpoint") for one in given):
        result.notes.append(
            f"--metrics-address={whole[0]} is omitted, because --http-endpoint serves the metrics"
        )
        return []
    if others := sorted(set(whole[1:]) - {whole[0]}):
        result.notes.append(
            f"The worker has only --{name}={whole[0]}; {', '.join(others)} is no longer served"
            if name in {"http-endpoint", "metrics-address"}
            else f"The worker has only --{name}={whole[0]}, not {', '.join(others)}"
        )
    return [f"--{name}={whole[0]}"]


def _own(given: Sequence[Given]) -> list[str]:
    """Return the flags of individual controllers.

    An ambiguous flag is prefixed with its controller's name.
    """
    merged = flag_set([spec for one in given for spec in one.specs])
    owners: dict[str, list[Given]] = {}
    for one in given:
        for name in {flag.name for spec in one.specs for flag in spec.flags}:
            owners.setdefault(name, []).append(one)
    found: list[str] = []
    for name, having in sorted(owners.items()):
        told = [one for one in having if is_told(one, name)]
        if not told:
            continue
        is_shared = (
            name in merged.flags
            and name not in FLAGS
            and all(value_of(one, name) == value_of(having[0], name) for one in having)
        )
        if is_shared:
            found.append(f"--{name}={text_of(told[0], name)}")
        else:
            found += [f"--{_long(one, name)}={text_of(one, name)}" for one in told]
    return found


def _long(one: Given, name: str) -> str:
    return next(
        prefixed(spec, flag) for spec in one.specs for flag in spec.flags if flag.name == name
    )


def is_told(one: Given, name: str) -> bool:
    """Return True if the arguments set the flag, with or without the controller's prefix."""
    return one.has(name) or _long(one, name) in one.line.explicit


def value_of(one: Given, name: str) -> Any:
    long_name = _long(one, name)
    return one.value(long_name if long_name in one.line.explicit else name)


def text_of(one: Given, name: str) -> str:
    long_name = _long(one, name)
    written = long_name if long_name in one.line.explicit else name
    flag = one.line.flags.find(written)
    if flag is not None and flag.kind is Kind.BOOL:
        return str(one.value(written)).lower()
    return one.line.texts[written][-1]


def _check(arguments: Sequence[str], given: Sequence[Given], result: OneContainer) -> None:
    """Check the arguments with the parser that the worker uses."""
    environ = {
        entry["name"]: "elsewhere" if entry.get("valueFrom") else str(entry.get("value") or "")
        for one in given
        for entry in one.container.get("env") or ()
        if entry["name"] in {"NODE_NAME", "POD_NAME", "POD_NAMESPACE", "NAMESPACE"}
    }
    environ |= {"NAMESPACE": "elsewhere", "POD_NAME": "elsewhere"}
    try:
        settings = parse("worker", ["--redis-url=redis://redis", *arguments], environ)
    except ConfigError as error:
        result.problems.append(
            f"csi-fleet does not accept these arguments in one container: {error}. Move the "
            "sidecars container by container"
        )
        return
    result.notes += [one for one in settings.warnings if "redis" not in one]


# Environment, mounts, user and probes.


def _environment(given: Sequence[Given], result: OneContainer) -> list[JsonObject]:
    """Return the sidecars' environment variables, without duplicates."""
    found: dict[str, JsonObject] = {}
    left_out: set[str] = set()
    for one in given:
        literals = _literals(one.container)
        for entry in one.container.get("env") or ():
            name = entry["name"]
            if found.setdefault(name, entry) == entry:
                continue
            # A variable that only the sidecar's own arguments use has been expanded in those
            # arguments.
            if name in literals and not found[name].get("valueFrom"):
                left_out.add(name)
                continue
            result.problems.append(
                f"The sidecars have different values for the environment variable {name}, but a "
                "container has only one. Give all sidecars the same value"
            )
    used = {
        reference
        for one in given
        for word in _words(one.container)
        for reference in _references(word)
    }
    for name in sorted(left_out):
        if name in used or not all(_only_argument(one, name) for one in given):
            result.problems.append(
                f"The sidecars have different values for the environment variable {name}, but a "
                "container has only one. Give all sidecars the same value"
            )
    names = {"NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"}
    added = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in names.items()
        if name not in found
    ]
    kept = [copy.deepcopy(entry) for name, entry in found.items() if name not in left_out]
    return [*kept, *added]


def _only_argument(one: Given, name: str) -> bool:
    """Return True if the container does not define the variable, or uses it in its arguments."""
    container = one.container
    words = [*(container.get("command") or [])[1:], *(container.get("args") or [])]
    has = any(entry["name"] == name for entry in container.get("env") or ())
    return not has or any(name in _references(str(word)) for word in words)


def _redis_environment(driver: str, installation: Installation) -> list[JsonObject]:
    return [
        {"name": "CSI_FLEET_REDIS_URL", "value": installation.redis_url},
        {"name": "CSI_FLEET_REDIS_USERNAME", "value": user_of(driver)},
        {"name": "CSI_FLEET_REDIS_PASSWORD_FILE", "value": f"{LOGIN_FOLDER}/password"},
        {"name": "CSI_FLEET_RECORDS_KEY_FILE", "value": f"{LOGIN_FOLDER}/records-key"},
    ]


def _mounts(given: Sequence[Given], result: OneContainer) -> list[JsonObject]:
    """Return the sidecars' volume mounts, without duplicates."""
    found: dict[str, JsonObject] = {}
    for one in given:
        for mount in one.container.get("volumeMounts") or ():
            path = mount["mountPath"].rstrip("/") or "/"
            if found.setdefault(path, mount) != mount:
                result.problems.append(
                    f"The sidecars mount different volumes at {path}, but a container can mount "
                    "only one volume there. Give all sidecars the same mount"
                )
    return copy.deepcopy(list(found.values()))


def _redis_mounts(installation: Installation) -> list[JsonObject]:
    login = {"name": LOGIN_VOLUME, "mountPath": LOGIN_FOLDER, "readOnly": True}
    ca = {"name": CA_VOLUME, "mountPath": CA_FOLDER, "readOnly": True}
    return [ca, login] if installation.has_ca else [login]


def _volumes(
    pod_spec: JsonObject, security: JsonObject, secret: str, installation: Installation
) -> list[JsonObject]:
    """Return the volumes that the worker needs.

    The container's user is allowed to read the Secret, because no other container mounts it.
    """
    of_pod = pod_spec.get("securityContext") or {}
    user = security.get("runAsUser", of_pod.get("runAsUser"))
    mode = 0o440 if user == 0 or of_pod.get("fsGroup") is not None else 0o444
    login = {"name": LOGIN_VOLUME, "secret": {"secretName": secret, "defaultMode": mode}}
    ca = {"name": CA_VOLUME, "configMap": {"name": "redis-ca"}}
    return [ca, login] if installation.has_ca else [login]


def security(container: JsonObject, pod_spec: JsonObject, result: OneContainer) -> JsonObject:
    """Return a security context whose user can open the driver's socket.

    The context grants no more privileges than the sidecar had. The Go sidecars' images run as root
    by default; csi-fleet's image does not.
    """
    found: JsonObject = copy.deepcopy(container.get("securityContext") or {})
    of_pod = pod_spec.get("securityContext") or {}
    user = found.get("runAsUser", of_pod.get("runAsUser"))
    if user is None:
        if found.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
            result.problems.append(
                f"Container {container['name']} must not run as root, but names no user, so it is "
                "not known which user may open the driver's socket. Set runAsUser"
            )
        user = found["runAsUser"] = 0
    if found.get("privileged"):
        return found
    found.setdefault("allowPrivilegeEscalation", False)
    found.setdefault("readOnlyRootFilesystem", True)
    # Root needs this capability for a socket that belongs to a different user.
    found.setdefault(
        "capabilities", {"drop": ["ALL"], **({"add": ["DAC_OVERRIDE"]} if user == 0 else {})}
    )
    return found


def _serve_http(given: Sequence[Given], container: JsonObject, result: OneContainer) -> None:
    """Copy the port and liveness probe from the sidecar whose endpoint the worker will serve."""
    name = next(
        (one for one in ("http-endpoint", "metrics-address") if any(g.value(one) for g in given)),
        "",
    )
    if not name:
        return
    having = next(one for one in given if one.value(name))
    try:
        _, port = parse_listen_address(having.value(name))
    except ValueError:
        port = 0  # a variable precedes the port, or `parse` will refuse the address
        port = int(tail) if (tail := having.value(name).rpartition(":")[2]).isdigit() else port
    ports = [one for one in having.container.get("ports") or () if one["containerPort"] == port]
    if ports:
        container["ports"] = copy.deepcopy(ports)
    probe = having.container.get("livenessProbe")
    names = {port, *(one.get("name") for one in ports)}
    if probe and (probe.get("httpGet") or {}).get("port") in names:
        container["livenessProbe"] = copy.deepcopy(probe)
    others = [one for one in given if one is not having and one.container.get("livenessProbe")]
    for one in others:
        result.notes.append(f"The liveness probe of {one.container['name']} is omitted")


def _tell_dropped(given: Sequence[Given], result: OneContainer) -> None:
    for one in given:
        if left := sorted(one.container.keys() - _TAKEN):
            result.notes.append(f"Container {one.container['name']}: {', '.join(left)} is omitted")
