"""`csi-fleet migrate check --driver=D [NAMESPACE/POD]`: checks what moving a driver would change.

The command only reads. It finds the driver's Go sidecars by their Leases or in the named pod, and
parses their arguments as csi-fleet's commands would parse them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import yaml

from workers.cli.doctor import FAIL, OK, WARN, Finding, show
from workers.cli.kubectl import DRIVERS_LABEL, PART_LABEL, RECORDS_ENDING, REDIS_CLIENT
from workers.cli.sidecars import Sidecar, sidecars
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.spec import Permission, Spec

CSI_DRIVERS: Final = paths.Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
_FOLLOW: Final = ("list", "watch")
REVIEWS: Final = paths.Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)


def run(tools: Tools) -> int:
    """Run the command; return 1 if something prevents the move."""
    words, driver = list(tools.settings.arguments), tools.settings.tool.driver
    if (
        words[:1] != ["check"]
        or not driver
        or len(words) > 2
        or (words[1:] and "/" not in words[1])
    ):
        lacks = f"{words[1]!r} has no namespace. " if words[1:] and "/" not in words[1] else ""
        raise ConfigError(f"{lacks}Run `csi-fleet migrate check --driver=NAME [NAMESPACE/POD]`")
    return show(tools, "migrate check", list(findings(tools, driver, (words[1:] or [""])[0])))


def findings(tools: Tools, driver: str, pod: str) -> Iterator[Finding]:
    """Yield all findings.

    A check that cannot run counts as failed, so that callers can rely on the result.
    """
    leases = Holders({}, {}, is_known=False)
    try:
        leases = holders(tools, driver)
    except RefusedError as error:
        yield Finding("lease", FAIL, f"not checked: {error}")
    try:
        tools.kube.get(CSI_DRIVERS, driver)
        yield Finding("driver", OK, f"CSIDriver {driver} exists")
    except NotFoundError:
        # A CSI driver need not have a CSIDriver object; a Lease with the driver's name shows that
        # the driver exists.
        state = WARN if leases.go or leases.ours else FAIL
        yield Finding("driver", state, f"there is no CSIDriver {driver}. Check the name")
    except RefusedError as error:
        yield Finding("driver", FAIL, f"not checked: {error}")
    for name, holder in leases.go.items():
        yield Finding("lease", OK, f"{name}: the Go sidecar in {holder} is active")
    for name, holder in leases.ours.items():
        yield Finding(
            "lease", OK, f"{name}: csi-fleet in {holder} is active and replaces the Go sidecar"
        )
    found, problems = looked_at(tools, pod, sorted(set(leases.go.values())))
    yield from problems
    if pod and not (found or problems):
        yield Finding("sidecars", FAIL, f"pod {pod} has no container of a Go sidecar")
    elif not (found or problems or leases.ours) and leases.is_known:
        yield Finding(
            "sidecars",
            WARN if _is_served(tools, driver) else FAIL,
            "nothing was compared, because no Go sidecar was found by a Lease. Name the driver's "
            f"pod: `csi-fleet migrate check --driver={driver} NAMESPACE/POD`",
        )
    for sidecar in found:
        yield from of_arguments(sidecar)
    moved = {one.pod["metadata"]["name"] for one in found if one.is_ours()}
    for name, one in {one.pod["metadata"]["name"]: one.pod for one in found}.items():
        labels = _labels_of_namespace(tools, one["metadata"]["namespace"])
        yield from of_pod(one, labels, is_moved=name in moved)
    for sidecar in found:
        yield from of_rights(tools, sidecar)
    yield from _watcher_findings(tools, found)
    yield from both(tools, driver, leases, found)


@dataclass(frozen=True, slots=True)
class Holders:
    """The current holders of the driver's Leases: program -> NAMESPACE/POD.

    Attributes:
        go: the Leases held by Go sidecars.
        ours: the Leases held by csi-fleet.
        is_known: False if the Leases could not be read.
    """

    go: dict[str, str]
    ours: dict[str, str]
    is_known: bool = True


def holders(tools: Tools, driver: str) -> Holders:
    """Read the holders of the driver's Leases.

    Raises:
        ApiError: the Leases cannot be read.
    """
    programs = {
        spec.lease_name(driver): spec.program
        for spec in catalogue.SPECS
        if spec.lease_name is not None and spec.needs_driver and not spec.part_of
    }
    found = Holders({}, {})
    for lease in tools.kube.list(paths.LEASES):
        metadata, spec = lease["metadata"], lease.get("spec") or {}
        program, holder = programs.get(metadata["name"]), str(spec.get("holderIdentity") or "")
        until = stamp(str(spec.get("renewTime", ""))) + (spec.get("leaseDurationSeconds") or 0)
        if program and holder and until > time.time():
            side = found.ours if OURS in holder else found.go
            side[program] = f"{metadata['namespace']}/{holder.partition('_')[0]}"
    return found


def looked_at(tools: Tools, pod: str, holding: list[str]) -> tuple[list[Sidecar], list[Finding]]:
    """Return the sidecars of the named pod, or else of the Lease holders, and the failures."""
    found: list[Sidecar] = []
    problems: list[Finding] = []
    for place in [pod] if pod else holding:
        try:
            found += sidecars(tools, place)
        except NotFoundError:
            if pod:
                problems.append(Finding("pod", FAIL, f"pod {pod} not found"))
        except RefusedError as error:
            problems.append(Finding("pod", FAIL, f"{place}: not checked: {error}"))
    return found, problems


def _read_by_ours(environment: dict[str, str | None]) -> dict[str, str]:
    """Return the sidecar's variables that csi-fleet's flags read.

    They contain the names of the node, the pod and the namespace.
    """
    names = ("NODE_NAME", "POD_NAME", "POD_NAMESPACE", "NAMESPACE")
    found = {name: environment[name] for name in names if name in environment}
    return {name: "elsewhere" if value is None else value for name, value in found.items()}


def of_arguments(sidecar: Sidecar) -> Iterator[Finding]:
    """Check whether csi-fleet accepts the sidecar's arguments."""
    program, arguments, unknown = sidecar.spec.program, sidecar.arguments(), sidecar.unknown()
    count = len(sidecar.given())
    if sidecar.is_ours():
        yield Finding(program, OK, f"{sidecar.place}: already runs csi-fleet")
        return
    unread = f"not checked, because their values are stored elsewhere: {', '.join(unknown)}"
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
        f"{sidecar.place}: `csi-fleet {program}` accepts all of its {count} arguments unchanged"
        + "".join(f"; {one}" for one in told),
    )


def _labels_of_namespace(tools: Tools, name: str) -> JsonObject | None:
    """Return the namespace's labels, or None if the user is not allowed to read the namespace.

    A missing permission is not reported.
    """
    try:
        return tools.kube.get(paths.NAMESPACES, name)["metadata"].get("labels") or {}
    except ApiError:
        return None


def of_pod(
    pod: JsonObject, of_namespace: JsonObject | None, *, is_moved: bool
) -> Iterator[Finding]:
    """Check what the pod and its namespace are missing for a csi-fleet container.

    Before the move, a gap is a warning. Once the pod has a csi-fleet container, a gap is an error.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    lacks = []
    if of_namespace is not None and DRIVERS_LABEL not in of_namespace.items():
        label = "=".join(DRIVERS_LABEL)
        lacks.append(f"label {label} of its namespace (the NetworkPolicy of Redis)")
    if REDIS_CLIENT not in (metadata.get("labels") or {}).items():
        lacks.append(f"label {'='.join(REDIS_CLIENT)} (the NetworkPolicy of Redis)")
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
        lacks.append("--namespace=csi-fleet-records (csi-fleet looks for copies of attempts there)")
    if (spec.get("securityContext") or {}).get("fsGroup") is None:
        lacks.append(
            "fsGroup, or runAsUser 0 for csi-fleet's container (its image runs as user 10001)"
        )
    place = f"{metadata['namespace']}/{metadata['name']}"
    state = (FAIL if is_moved else WARN) if lacks else OK
    yield Finding(
        "pod",
        state,
        f"{place} does not have: {'; '.join(lacks)}"
        if lacks
        else f"{place} has everything that csi-fleet's container needs",
    )


def of_rights(tools: Tools, sidecar: Sidecar, watcher: str = "") -> Iterator[Finding]:
    """Check which of the controller's permissions the pod's service account lacks.

    Args:
        tools: the connections and settings.
        sidecar: the container, in a pod with that account.
        watcher: the account of the watcher, which may have the permissions to list and watch
            instead; "" for none.
    """
    namespace = sidecar.pod["metadata"]["namespace"]
    name = sidecar.pod["spec"].get("serviceAccountName") or "default"
    user = f"system:serviceaccount:{namespace}:{name}"
    lacks: dict[str, dict[str, None]] = {FAIL: {}, WARN: {}}
    try:
        for rule in sidecar.spec.permissions:
            for resource, verb in _wanted(rule):
                plural, _, part = resource.partition("/")
                asked = {"group": rule.group, "resource": plural, "subresource": part, "verb": verb}
                is_allowed = may(tools, user, asked)
                # Workers only need permission to get the objects that they read live; they read
                # watched objects from Redis.
                if watcher and not is_allowed and verb in {"list", "watch"}:
                    is_allowed = may(tools, watcher, asked)
                if not is_allowed:
                    feature = f" ({rule.feature})" if rule.feature else ""
                    lacks[WARN if feature else FAIL][f"{verb} {resource}{feature}"] = None
    except ApiError as error:
        yield Finding("rights", FAIL, f"{user}: not checked: {error}")
        return
    check = f"rights of {sidecar.spec.program}"
    for state, names in lacks.items():
        if names:
            yield Finding(check, state, f"{user} is not allowed to {', '.join(names)}")
    if not any(lacks.values()):
        yield Finding(check, OK, f"{user} has all the permissions that it needs")


def of_watcher(tools: Tools, specs: Iterable[Spec], watcher: str) -> Iterator[Finding]:
    """Check that the watcher is allowed to watch what the controllers react to.

    The driver's own account does not help here: without these permissions, the watcher does not see
    the work.

    Args:
        tools: the connections and settings.
        specs: the controllers.
        watcher: the account of the watcher.
    """
    missing: dict[tuple[str, str], dict[Resource, list[str]]] = {}
    try:
        for spec in specs:
            for watch in spec.watches:
                one = watch.resource
                asked = {"group": one.group, "resource": one.plural}
                verbs = [v for v in _FOLLOW if not may(tools, watcher, asked | {"verb": v})]
                if verbs:
                    state = FAIL if watch.is_needed(()) else WARN
                    missing.setdefault((state, spec.name), {})[one] = verbs
    except ApiError as error:
        yield Finding("watcher", FAIL, f"{watcher}: not checked: {error}")
        return
    for (state, name), resources in missing.items():
        names = ", ".join(f"{'/'.join(verbs)} {one.plural}" for one, verbs in resources.items())
        rules = [
            {"apiGroups": [one.group], "resources": [one.plural], "verbs": verbs}
            for one, verbs in resources.items()
        ]
        why = (
            "so it would not see this work"
            if state == FAIL
            else "which some features of a driver need"
        )
        yield Finding(
            "watcher",
            state,
            f"{watcher} is not allowed to {names}, {why}. Add `{name}` to `controllers`, and the "
            "driver's features to `features`, in the chart's values (docs/helm.md), or add these "
            f"rules to the watcher's ClusterRole:\n{yaml.safe_dump(rules, sort_keys=False)}",
        )


def records_namespaces(tools: Tools) -> list[str]:
    """Return the namespaces for records of all csi-fleet systems in the cluster.

    Anybody may be able to create a namespace with such a name, so csi-fleet's label must be there.
    """
    return sorted(
        str(one["metadata"]["name"])
        for one in tools.kube.list(paths.NAMESPACES)
        if PART_LABEL in (one["metadata"].get("labels") or {}).items()
        and one["metadata"]["name"].endswith(RECORDS_ENDING)
    )


def watcher_in(records: str) -> str:
    """Return the account of the watcher of the system with this namespace for records."""
    return f"system:serviceaccount:{records.removesuffix(RECORDS_ENDING)}:watcher"


def _watcher_findings(tools: Tools, found: Sequence[Sidecar]) -> Iterator[Finding]:
    """Check the watcher's permissions, if one csi-fleet system is installed or chosen."""
    try:
        names = records_namespaces(tools)
    except ApiError as error:
        yield Finding("watcher", WARN, f"not checked: {error}")
        return
    if "namespace" in tools.settings.explicit:
        names = [one for one in names if one == tools.settings.kube.namespace]
    specs = {one.spec.name: one.spec for one in found}
    if len(names) == 1 and specs:
        state = None
        for one in of_watcher(tools, specs.values(), watcher_in(names[0])):
            state = one.state
            yield one
        if state is None:
            yield Finding("watcher", OK, "the watcher has all the permissions that it needs")
    elif specs:
        text = "csi-fleet is not installed" if not names else "choose one system with --namespace"
        yield Finding("watcher", WARN, f"permissions of the watcher are not checked: {text}")


def _wanted(rule: Permission) -> Iterator[tuple[str, str]]:
    return ((resource, verb) for resource in rule.resources for verb in rule.verbs)


def may(tools: Tools, user: str, attributes: Mapping[str, str]) -> bool:
    """Return True if RBAC allows the account the access that `attributes` describes.

    Raises:
        ApiError: the API server does not answer, or the caller is not allowed to ask.
    """
    body: dict[str, Any] = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind}
    body |= {"metadata": {}, "spec": {"user": user, "resourceAttributes": dict(attributes)}}
    answer = tools.kube.client.create(REVIEWS.path(), body)
    return bool((answer.get("status") or {}).get("allowed"))


def both(tools: Tools, driver: str, leases: Holders, found: list[Sidecar]) -> Iterator[Finding]:
    """Check whether csi-fleet and one of the Go sidecars in `found` are doing the same work."""
    if not tools.settings.redis.url:
        yield Finding(
            "both",
            WARN,
            "not checked: set --redis-url to the Redis of csi-fleet, so that the command can find "
            "out who serves the driver",
        )
        return
    try:
        records = tools.registry.alive()
    except QueueUnavailable as error:
        yield Finding("both", FAIL, f"not checked: {error}")
        return
    served = {spec.program for _, spec in _serving(records, driver)}
    held = leases.go
    try:
        waits = _standing_by(tools, driver, records) & held.keys()
    except QueueUnavailable as error:
        yield Finding("both", FAIL, f"not checked: {error}")
        return
    twice = [
        _by_lease(one, held[one], leases.ours.get(one))
        for one in sorted((served & held.keys()) - waits)
    ]
    beside = [one for one in found if one.spec.program in served - held.keys()]
    unsure = []
    for one in beside:
        works_alone = one.works_alone()
        if works_alone:
            twice.append(
                f"{one.place} has no --leader-election and is active too. Stop one of the two, or "
                "start both with --leader-election"
            )
        elif works_alone is None or not (leases.is_known or one.is_ours()):
            unsure.append(one.place)
    for problem in twice:
        yield Finding("both", FAIL, f"csi-fleet serves {driver}, and {problem}")
    if twice:
        return
    if not served:
        yield Finding("both", OK, "csi-fleet does not serve the driver; nothing runs twice")
        return
    if waits:
        which = ", ".join(sorted(waits))
        yield Finding("both", OK, f"csi-fleet waits until the Lease of {which} is free")
    has = f"csi-fleet has {', '.join(sorted(served))}"
    if unsure or not leases.is_known:
        why = (
            "the value of --leader-election is stored elsewhere" if leases.is_known else "see lease"
        )
        which = ", ".join(unsure) or "a Go sidecar"
        yield Finding("both", FAIL, f"{has}; whether {which} is active as well is not known: {why}")
    elif found:
        yield Finding("both", OK, f"{has}; nothing that was checked runs twice")
    else:
        yield Finding(
            "both",
            WARN,
            f"{has}, and no Go sidecar holds a Lease. A Go sidecar without --leader-election is "
            "found only in the pod that you name (NAMESPACE/POD)",
        )


def _is_served(tools: Tools, driver: str) -> bool:
    """Return True if csi-fleet already serves the driver; False if its Redis does not answer."""
    if not tools.settings.redis.url:
        return False
    try:
        return any(True for _ in _serving(tools.registry.alive(), driver))
    except QueueUnavailable:
        return False


def _standing_by(tools: Tools, driver: str, records: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the programs whose work in csi-fleet is waiting for a Lease held by another program.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    stats = read_stats(tools.redis)
    paused = {lane for lane, one in stats.items() if "lease" in one.paused}
    waiting: set[str] = set()
    working: set[str] = set()
    for queue_name, spec in _serving(records, driver):
        lanes = {lane_name(one.name, queue_name) for one in spec.kinds if one.has_driver}
        if lanes:
            (waiting if lanes & paused else working).add(spec.program)
    return waiting - working


def _serving(records: Mapping[str, Mapping[str, Any]], driver: str) -> Iterator[tuple[str, Spec]]:
    """Yield the queue name and the controller of everything in csi-fleet that serves the driver."""
    for queue_name, record in records.items():
        if record.get("name") == driver:
            for spec in catalogue.specs(record.get("controllers") or ()):
                if not spec.part_of:
                    yield queue_name, spec


def _by_lease(program: str, holder: str, ours: str | None) -> str:
    """Describe the conflict of a Go sidecar that does the same work as csi-fleet."""
    if ours is None:
        return (
            f"{holder} holds the Lease of {program}. Stop one of the two, or start csi-fleet with "
            "--leader-election, so that it waits"
        )
    return (
        f"{holder} holds a Lease of {program} and csi-fleet in {ours} holds one too. Start both "
        "with the same --leader-election-namespace"
    )
