"""`csi-fleet migrate check --driver=D [NAMESPACE/POD]`: what would moving a driver over change?

Reads only. The driver's Go sidecars are found by their Leases, or in the pod that is named; their
arguments are read as our commands would read them.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from workers.cli.doctor import FAIL, OK, WARN, Finding, show
from workers.config.load import parse
from workers.controllers import catalogue
from workers.engine.leasename import OURS
from workers.errors import ApiError, ConfigError, QueueUnavailable
from workers.explain.words import stamp
from workers.kube import paths
from workers.kube.errors import NotFoundError, RefusedError
from workers.queue.keys import lane_name
from workers.queue.limits import read_stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.queue.limits import LaneStats
    from workers.spec import Permission, Spec

CSI_DRIVERS: Final = paths.Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
REVIEWS: Final = paths.Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)
NAMESPACES: Final = paths.Resource("", "v1", "namespaces", "Namespace")
REDIS_CLIENT: Final = "csi-fleet.io/redis-client"
DRIVERS_LABEL: Final = "csi-fleet.io/drivers"
# As the kubelet reads them: `$$` stands for a dollar.
_VARIABLE: Final = re.compile(r"\$(?:\$|\(([^()]+)\))")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A container of the driver's pod that one of our controllers would replace."""

    spec: Spec
    pod: JsonObject
    container: JsonObject

    @property
    def place(self) -> str:
        """For people."""
        metadata = self.pod["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}, container {self.container['name']}"

    def environment(self) -> dict[str, str | None]:
        """The variables that the pod itself names; None for a value that stands elsewhere."""
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        fields = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "spec.nodeName": spec.get("nodeName") or "",
            "spec.serviceAccountName": spec.get("serviceAccountName") or "",
        }
        found: dict[str, str | None] = {}
        for one in self.container.get("env") or ():
            if source := one.get("valueFrom"):
                path = (source.get("fieldRef") or {}).get("fieldPath")
                found[str(one["name"])] = fields.get(str(path))
            else:
                found[str(one["name"])] = self._expanded(one.get("value") or "", found)
        return found

    def _expanded(self, text: str, known: dict[str, str | None]) -> str | None:
        """As the kubelet replaces variables; None if one of them stands elsewhere."""
        is_elsewhere = bool(self.container.get("envFrom"))
        for name in filter(None, _VARIABLE.findall(text)):
            if (known[name] is None) if name in known else is_elsewhere:
                return None
        return _VARIABLE.sub(lambda m: (known.get(m[1]) or m[0]) if m[1] else "$", text)

    def given(self) -> list[str]:
        """Its arguments as the pod has them."""
        words = [*(self.container.get("command") or [])[1:], *(self.container.get("args") or [])]
        return [str(one) for one in words]

    def arguments(self) -> list[str]:
        """As the process gets them, without those whose variables stand elsewhere."""
        known = self.environment()
        found = [self._expanded(one, known) for one in self.given()]
        return [one for one in found if one is not None]

    def unknown(self) -> list[str]:
        """Those whose variables stand elsewhere, such as in a ConfigMap."""
        known = self.environment()
        return [one for one in self.given() if self._expanded(one, known) is None]

    def works_alone(self) -> bool:
        """Whether it is a Go sidecar that works whoever else does."""
        has_ended = (self.pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        return not (has_ended or self._is_ours() or self._elects())

    def _is_ours(self) -> bool:
        """Moved already: our image in the container, whose name stays."""
        command, image, _ = _programs(self.container)
        names = [one["name"] for one in self.container.get("env") or ()]
        return any(one.startswith("csi-fleet") for one in (command, image)) or any(
            one.startswith("CSI_FLEET_") for one in names
        )

    def _elects(self) -> bool:
        flags = (one.lstrip("-").partition("=") for one in self.arguments())
        given = [value.lower() for name, _, value in flags if name == "leader-election"]
        return bool(given) and given[-1] not in {"false", "f", "0"}


def run(tools: Tools) -> int:
    """The command; 1 when something stands in the way."""
    words, driver = list(tools.settings.arguments), tools.settings.tool.driver
    if (
        words[:1] != ["check"]
        or not driver
        or len(words) > 2
        or (words[1:] and "/" not in words[1])
    ):
        lacks = f"{words[1]!r} lacks a namespace: " if words[1:] and "/" not in words[1] else ""
        raise ConfigError(f"{lacks}give `csi-fleet migrate check --driver=NAME [NAMESPACE/POD]`")
    return show(tools, "migrate check", list(findings(tools, driver, (words[1:] or [""])[0])))


def findings(tools: Tools, driver: str, pod: str) -> Iterator[Finding]:
    """Everything there is to say; an object that cannot be read is said too."""
    try:
        tools.kube.get(CSI_DRIVERS, driver)
        yield Finding("driver", OK, f"CSIDriver {driver} is there")
    except NotFoundError:
        yield Finding("driver", WARN, f"there is no CSIDriver {driver}: is the name right?")
    except RefusedError as error:
        yield Finding("driver", WARN, f"not checked: {error}")
    held: dict[str, str] = {}
    ours: dict[str, str] = {}
    try:
        held, ours = holders(tools, driver), holders(tools, driver, of_ours=True)
    except RefusedError as error:
        yield Finding("lease", WARN, f"not checked: {error}")
    for name, holder in held.items():
        yield Finding("lease", OK, f"{name}: the Go sidecar in {holder} works now")
    for name, holder in ours.items():
        yield Finding("lease", OK, f"{name}: csi-fleet in {holder} works now, in its place")
    found, problems = looked_at(tools, pod, sorted(set(held.values())))
    yield from problems
    if pod and not (found or problems):
        yield Finding("sidecars", WARN, f"pod {pod} has no container of a Go sidecar")
    elif not (found or problems or ours):
        yield Finding(
            "sidecars",
            WARN,
            "no Go sidecar was found by a Lease: name the driver's pod, "
            f"`csi-fleet migrate check --driver={driver} NAMESPACE/POD`",
        )
    for sidecar in found:
        yield from of_arguments(sidecar)
    for one in {one.pod["metadata"]["name"]: one.pod for one in found}.values():
        yield from of_pod(one, _labels_of_namespace(tools, one["metadata"]["namespace"]))
    for sidecar in found:
        yield from of_rights(tools, sidecar)
    yield from both(tools, driver, held, ours, found)


def holders(tools: Tools, driver: str, *, of_ours: bool = False) -> dict[str, str]:
    """Program -> NAMESPACE/POD of the Go sidecars, or ours, that hold a Lease of the driver now."""
    programs = {
        spec.lease_name(driver): spec.program
        for spec in catalogue.SPECS
        if spec.lease_name is not None and spec.needs_driver and not spec.part_of
    }
    found: dict[str, str] = {}
    for lease in tools.kube.list(paths.LEASES):
        metadata, spec = lease["metadata"], lease.get("spec") or {}
        program, holder = programs.get(metadata["name"]), str(spec.get("holderIdentity") or "")
        until = stamp(str(spec.get("renewTime", ""))) + (spec.get("leaseDurationSeconds") or 0)
        if program and holder and (OURS in holder) is of_ours and until > time.time():
            found[program] = f"{metadata['namespace']}/{holder.partition('_')[0]}"
    return found


def looked_at(tools: Tools, pod: str, holding: list[str]) -> tuple[list[Sidecar], list[Finding]]:
    """The sidecars in the pod that is named, else in those that hold Leases; and what failed."""
    found: list[Sidecar] = []
    problems: list[Finding] = []
    for place in [pod] if pod else holding:
        try:
            found += sidecars(tools, place)
        except NotFoundError:
            if pod:
                problems.append(Finding("pod", FAIL, f"pod {pod} not found"))
        except RefusedError as error:
            problems.append(Finding("pod", WARN, f"{place}: not checked: {error}"))
    return found, problems


def sidecars(tools: Tools, place: str) -> list[Sidecar]:
    """The containers of a pod (`NAMESPACE/NAME`) that we have a controller for.

    Raises:
        NotFoundError: there is no such pod.
        ApiError: it cannot be read.
    """
    namespace, _, name = place.partition("/")
    pod = tools.kube.get(paths.PODS, name, namespace=namespace)
    lasting = (
        one
        for one in pod["spec"].get("initContainers") or ()
        if one.get("restartPolicy") == "Always"
    )
    found = []
    for container in (*pod["spec"]["containers"], *lasting):
        spec = next(filter(None, map(catalogue.program, _programs(container))), None)
        if spec is not None:
            found.append(Sidecar(spec, pod, container))
    return found


def _programs(container: JsonObject) -> list[str]:
    """What the container may be: its command's, its image's, its own name."""
    command = (container.get("command") or [""])[0].rpartition("/")[2]
    image = container["image"].rpartition("/")[2].partition("@")[0].partition(":")[0]
    return [command, image, container["name"]]


def _read_by_ours(environment: dict[str, str | None]) -> dict[str, str]:
    """What of a sidecar's variables counts with us: where the pod is, as the flags need it."""
    names = ("NODE_NAME", "POD_NAME", "POD_NAMESPACE", "NAMESPACE")
    found = {name: environment[name] for name in names if name in environment}
    return {name: "elsewhere" if value is None else value for name, value in found.items()}


def of_arguments(sidecar: Sidecar) -> Iterator[Finding]:
    """Are its arguments ours too?"""
    program, arguments, unknown = sidecar.spec.program, sidecar.arguments(), sidecar.unknown()
    unread = f"not checked, for their values stand elsewhere: {', '.join(unknown)}"
    chosen = [f"--controllers={sidecar.spec.name}", "--redis-url=redis://redis"]
    try:
        settings = parse("worker", [*chosen, *arguments], _read_by_ours(sidecar.environment()))
    except ConfigError as error:
        state, why = (WARN, f"{unread}; without them: {error}") if unknown else (FAIL, str(error))
        yield Finding(program, state, f"{sidecar.place}: {why}")
        return
    told = [one for one in settings.warnings if "redis" not in one] + [unread] * bool(unknown)
    yield Finding(
        program,
        WARN if told else OK,
        f"{sidecar.place}: `csi-fleet {program}` takes its {len(arguments)} arguments unchanged"
        + "".join(f"; {one}" for one in told),
    )


def _labels_of_namespace(tools: Tools, name: str) -> JsonObject | None:
    """None when we may not look, which is no finding."""
    try:
        return tools.kube.get(NAMESPACES, name)["metadata"].get("labels") or {}
    except ApiError:
        return None


def of_pod(pod: JsonObject, of_namespace: JsonObject | None) -> Iterator[Finding]:
    """What the pod and its namespace lack for a container of ours."""
    metadata, spec = pod["metadata"], pod["spec"]
    lacks = []
    if of_namespace is not None and of_namespace.get(DRIVERS_LABEL) != "true":
        lacks.append(f"label {DRIVERS_LABEL}=true of its namespace (the same policy)")
    if (metadata.get("labels") or {}).get(REDIS_CLIENT) != "true":
        lacks.append(f"label {REDIS_CLIENT}=true (the NetworkPolicy of Redis)")
    names = {one["name"] for one in spec.get("volumes") or ()}
    if not {"redis-ca", "redis-login"} <= names:
        lacks.append("volumes redis-ca and redis-login")
    variables = {one["name"] for each in spec["containers"] for one in each.get("env") or () if one}
    if "CSI_FLEET_REDIS_URL" not in variables:
        lacks.append("variables CSI_FLEET_REDIS_URL, _USERNAME and _PASSWORD_FILE")
    if "CSI_FLEET_RECORDS_KEY_FILE" not in variables:
        lacks.append("variable CSI_FLEET_RECORDS_KEY_FILE (records are signed)")
    words = [(*(one.get("command") or ()), *(one.get("args") or ())) for one in spec["containers"]]
    if not any(word.startswith("--namespace=") for word in chain.from_iterable(words)):
        lacks.append("--namespace=csi-fleet-records (copies of attempts are looked for there)")
    if (spec.get("securityContext") or {}).get("fsGroup") is None:
        lacks.append("fsGroup, or runAsUser 0 of our container (our image runs as user 10001)")
    place = f"{metadata['namespace']}/{metadata['name']}"
    yield Finding(
        "pod",
        WARN if lacks else OK,
        f"{place} lacks {'; '.join(lacks)}"
        if lacks
        else f"{place} has all a container of ours needs",
    )


def of_rights(tools: Tools, sidecar: Sidecar) -> Iterator[Finding]:
    """What the pod's service account may not do that the controller needs."""
    namespace = sidecar.pod["metadata"]["namespace"]
    name = sidecar.pod["spec"].get("serviceAccountName") or "default"
    user = f"system:serviceaccount:{namespace}:{name}"
    lacks: dict[str, None] = {}
    try:
        for rule in sidecar.spec.permissions:
            for resource, verb in _wanted(rule):
                if not _may(tools, user, rule.group, resource, verb):
                    feature = f" ({rule.feature})" if rule.feature else ""
                    lacks[f"{verb} {resource}{feature}"] = None
    except ApiError as error:
        yield Finding("rights", WARN, f"{user}: not checked: {error}")
        return
    check = f"rights of {sidecar.spec.program}"
    if lacks:
        yield Finding(check, WARN, f"{user} lacks {', '.join(lacks)}")
    else:
        yield Finding(check, OK, f"{user} may do all it needs")


def _wanted(rule: Permission) -> Iterator[tuple[str, str]]:
    return ((resource, verb) for resource in rule.resources for verb in rule.verbs)


def _may(tools: Tools, user: str, group: str, resource: str, verb: str) -> bool:
    plural, _, part = resource.partition("/")
    asked: dict[str, Any] = {"group": group, "resource": plural, "subresource": part, "verb": verb}
    body = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "metadata": {}}
    body["spec"] = {"user": user, "resourceAttributes": asked}
    answer = tools.kube.client.create(REVIEWS.path(), body)
    return bool((answer.get("status") or {}).get("allowed"))


def both(
    tools: Tools, driver: str, held: dict[str, str], ours: dict[str, str], found: list[Sidecar]
) -> Iterator[Finding]:
    """Does csi-fleet work on what a Go sidecar works on?

    Args:
        tools: of the command.
        driver: its name.
        held: program -> who holds its Lease, of Go sidecars.
        ours: the same of csi-fleet.
        found: the containers that were looked at.
    """
    if not tools.settings.redis.url:
        yield Finding(
            "both", WARN, "not checked: name csi-fleet's Redis to ask who serves the driver"
        )
        return
    try:
        records = tools.registry.alive()
    except QueueUnavailable as error:
        yield Finding("both", WARN, f"not checked: {error}")
        return
    served = {
        spec.program
        for record in records.values()
        if record.get("name") == driver
        for spec in catalogue.specs(record.get("controllers") or ())
        if not spec.part_of
    }
    try:
        waits = _standing_by(tools, driver, records) & held.keys()
    except QueueUnavailable as error:
        yield Finding("both", WARN, f"not checked: {error}")
        return
    twice = [
        _by_lease(one, held[one], ours.get(one)) for one in sorted((served & held.keys()) - waits)
    ]
    twice += [
        f"{one.place} has no --leader-election and works too: "
        "end one of them, or give both --leader-election"
        for one in found
        if one.spec.program in served - held.keys() and one.works_alone()
    ]
    for problem in twice:
        yield Finding("both", FAIL, f"csi-fleet serves {driver}, and {problem}")
    if twice:
        return
    if not served:
        yield Finding("both", OK, "csi-fleet does not serve it; nothing runs twice")
        return
    if waits:
        which = ", ".join(sorted(waits))
        yield Finding("both", OK, f"csi-fleet stands by until the Lease of {which} is free")
    has = f"csi-fleet has {', '.join(sorted(served))}"
    if found:
        yield Finding("both", OK, f"{has}; nothing that was looked at runs twice")
    else:
        yield Finding(
            "both",
            WARN,
            f"{has}, and no Go sidecar a Lease; one without --leader-election is only seen in "
            "the pod you name (NAMESPACE/POD)",
        )


def _standing_by(tools: Tools, driver: str, records: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The programs whose work here waits for a Lease that another one holds.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    stats = read_stats(tools.of(driver).redis)
    return {
        spec.program
        for queue_name, record in records.items()
        if record.get("name") == driver
        for spec in catalogue.specs(record.get("controllers") or ())
        for kind in spec.kinds
        if kind.has_driver and "lease" in _paused(stats, lane_name(kind.name, queue_name))
    }


def _paused(stats: Mapping[str, LaneStats], lane: str) -> Mapping[str, str]:
    return stats[lane].paused if lane in stats else {}


def _by_lease(program: str, holder: str, ours: str | None) -> str:
    """What is wrong when a Go sidecar works at what csi-fleet serves."""
    if ours is None:
        return (
            f"{holder} holds the Lease of {program}: end one of them, or give csi-fleet "
            "--leader-election, then it waits"
        )
    return (
        f"{holder} holds a Lease of {program} as well as csi-fleet in {ours}: "
        "give both the same --leader-election-namespace"
    )
