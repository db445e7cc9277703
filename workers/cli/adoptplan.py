"""Plans what adopting or releasing a driver changes in its workload.

This module is pure: it takes objects, and returns a merge patch and findings. The patch also
stores, in an annotation of the workload, a record of what it removes, so a single request makes the
change and stores the record, or does neither. A user who can forge the record could also change the
containers directly. All state is in the workload, and each step is planned from the workload's
current content, so any step can be interrupted and repeated.

    Go sidecars ---adopt---> worker + record ---release---> Go sidecars + mark ---> Go sidecars

The two sides never work at the same time. If every sidecar has --leader-election, the Lease ensures
this. If not, the Deployment's pods are replaced with the Recreate strategy, and `settle` restores
the original strategy once the new pods are running.

In central mode, the new pods have a gateway instead of the sidecars. Workers reach the driver only
through the gateway, and with Recreate no pod has a gateway until the last pod with Go sidecars has
ended. If there are several replicas, all workers call the same replica, unless the user allows
calls to any of them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import yaml

from workers.cli import centralentry, gateway
from workers.cli.centralentry import Central, Entered
from workers.cli.doctor import FAIL, OK, WARN, Finding
from workers.cli.onecontainer import NAME, build
from workers.cli.sidecars import Sidecar, sidecars_of
from workers.cli.undoers import Undoer, undoers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.cli.onecontainer import Installation, OneContainer
    from workers.kube.objects import JsonObject

RECORD: Final = "csi-fleet.io/adopted"
KINDS: Final = ("Deployment", "StatefulSet")
WORKER: Final = "worker"
CENTRAL: Final = "central"
OURS: Final = frozenset({NAME, gateway.NAME})
_LISTS: Final = ("containers", "initContainers")


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that the user gave to `adopt` or `release`."""

    driver: str
    one_replica: bool = False
    any_replica: bool = False
    force: bool = False
    secret: str = ""
    mode: str = WORKER


@dataclass(slots=True)
class Plan:
    """The planned change.

    Attributes:
        findings: human-readable messages; if one is a `FAIL`, the change must not be made.
        patch: a merge patch for the workload; None if nothing changes.
        overlay: a kustomization that makes the same change, for users whose workload comes from
            a chart or a Git repository.
        elects: the programs whose Lease decides which side works.
        is_moved: whether the containers are already as requested.
        entry: the driver's entry for the drivers file, in central mode.
        needed: objects that the user must create before the change.
    """

    findings: list[Finding] = field(default_factory=list)
    patch: JsonObject | None = None
    overlay: str = ""
    elects: set[str] = field(default_factory=set)
    is_moved: bool = False
    entry: JsonObject = field(default_factory=dict)
    needed: list[JsonObject] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        """Whether a finding prevents the change."""
        return any(one.state == FAIL for one in self.findings)

    def say(self, check: str, state: str, text: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(check, state, text))


def place_of(workload: JsonObject) -> str:
    """Return `Deployment NAMESPACE/NAME`."""
    metadata = workload["metadata"]
    return f"{workload['kind']} {metadata['namespace']}/{metadata['name']}"


def record_of(workload: JsonObject) -> JsonObject | None:
    """Return the workload's record of its removed sidecars, or None if it has no record.

    Raises:
        ValueError: the annotation does not contain a record.
    """
    text = (workload["metadata"].get("annotations") or {}).get(RECORD)
    if text is None:
        return None
    found = json.loads(text)
    if not isinstance(found, dict) or not isinstance(found.get("driver"), str):
        raise ValueError("it names no driver")  # noqa: TRY004 - the text is wrong, not a type
    return found


def is_central(record: JsonObject | None) -> bool:
    """Return True if the record belongs to a driver that central workers serve."""
    return (record or {}).get("as") == CENTRAL


def adopt(workload: JsonObject, installation: Installation | Central, choice: Choice) -> Plan:
    """Plan the replacement of the Go sidecars with a worker or, in central mode, with a gateway."""
    plan = Plan()
    record = _checked_record(workload, choice.driver, plan)
    if plan.is_refused:
        return plan
    found = movable(workload)
    has_worker = _worker(workload) is not None
    _check_kind(workload, plan)
    if not found:
        if has_worker and record is not None and not record.get("released"):
            plan.is_moved = True
            if not _is_of_mode(workload, record, choice, plan):
                return plan
            if isinstance(installation, Central):
                _refresh_gateway(workload, record, installation, choice, plan)
            else:
                plan.elects = set(record.get("elects") or ())
                _refresh_image(workload, installation, plan)
        elif has_worker:
            plan.is_moved = True
            plan.say("sidecars", OK, f"{place_of(workload)} has a worker and no Go sidecar")
        else:
            plan.say(
                "sidecars",
                FAIL,
                f"{place_of(workload)} has no Go sidecar that csi-fleet replaces, so it may not be "
                "the driver's controller. Name a different workload: `csi-fleet adopt DRIVER "
                "NAMESPACE/NAME`",
            )
        return plan
    if record is not None and has_worker and not record.get("released"):
        _is_of_mode(workload, record, choice, plan)
    for one in found:
        if one.is_ours():
            plan.say(
                "sidecars",
                FAIL,
                f"Container {one.container['name']} already runs csi-fleet: it was moved container "
                "by container. Restore the Go sidecars first (kubectl rollout undo), then run "
                "adopt",
            )
    result = _built(workload, found, installation, choice)
    for text in result.problems:
        plan.say("arguments", FAIL, text)
    is_elected = bool(found) and all(one.spec.program in result.elects for one in found)
    is_by_lease = is_elected and choice.mode == WORKER
    plan.elects = result.elects if choice.mode == WORKER else set()
    _check_names(workload, result, record, plan)
    _check_replicas(workload, choice, plan, is_elected=is_elected)
    _check_handover(workload, plan, is_by_lease=is_by_lease)
    if not plan.is_refused:
        plan.patch = _adopting(workload, found, result, record, choice, is_by_lease=is_by_lease)
        plan.overlay = _overlay(workload, found, result)
        names = ", ".join(one.container["name"] for one in found)
        place = f"{place_of(workload)}: container {result.container['name']} replaces {names}"
        if isinstance(result, Entered):
            plan.entry = result.entry
            served = f"central workers serve {choice.driver} at {result.entry['endpoint']}"
            plan.say("sidecars", OK, f"{place}; {served}")
        else:
            arguments = " ".join(result.container["args"])
            plan.say("sidecars", OK, f"{place}: csi-fleet {arguments}")
        for text in result.notes:
            plan.say("arguments", WARN, text)
    _check_owners(workload, plan, choice)
    return plan


def _built(
    workload: JsonObject,
    found: Sequence[Sidecar],
    installation: Installation | Central,
    choice: Choice,
) -> OneContainer:
    pairs = [(one.spec, one.container) for one in found]
    pod_spec = workload["spec"]["template"]["spec"]
    if isinstance(installation, Central):
        return centralentry.build(
            pairs,
            pod_spec,
            driver=choice.driver,
            namespace=workload["metadata"]["namespace"],
            central=installation,
            is_any_replica=choice.any_replica,
        )
    return build(
        pairs,
        pod_spec,
        driver=choice.driver,
        installation=installation,
        secret=choice.secret,
    )


def release(workload: JsonObject, choice: Choice) -> Plan:
    """Plan the replacement of the worker with the original Go sidecars."""
    plan = Plan()
    record = _checked_record(workload, choice.driver, plan)
    if plan.is_refused:
        return plan
    found, has_worker = movable(workload), _worker(workload) is not None
    if record is None:
        if found and not has_worker:
            plan.is_moved = True
            plan.elects = _electing(found)
            plan.say("sidecars", OK, f"{place_of(workload)} has its Go sidecars and no worker")
        else:
            plan.say(
                "record",
                FAIL,
                f"{place_of(workload)} has no record of its Go sidecars (annotation {RECORD}), so "
                "it is not known what to restore. Apply the driver's own manifest or chart again, "
                "or remove the patch from its kustomization",
            )
        return plan
    if record.get("released"):
        plan.is_moved = True
        plan.elects = _electing(found)
        return plan
    plan.patch = _releasing(workload, record)
    plan.elects = set(record.get("elects") or ())
    names = ", ".join(one["container"]["name"] for one in record["removed"])
    ours = gateway.NAME if is_central(record) else NAME
    plan.say("sidecars", OK, f"{place_of(workload)}: {names} replace {ours}")
    _check_owners(workload, plan, choice)
    return plan


def settle(workload: JsonObject) -> JsonObject | None:
    """Return the patch to apply once the new side is working; None if nothing has to change.

    The patch restores the workload's own strategy, and after a release it removes the record.
    """
    try:
        record = record_of(workload)
    except ValueError:
        return None
    if record is None:
        return None
    patch: JsonObject = {}
    # A driver adopted by an earlier release has a Service that spreads the workers' connections
    # over all pods.
    is_spread = is_central(record) and not (record.get("any_replica") or record.get("chosen"))
    is_kept = is_spread and not record.get("released")
    strategy = None if is_kept else record.pop("strategy", None)
    if strategy is not None:
        patch["spec"] = {"strategy": strategy}
    if record.get("released"):
        return patch | {"metadata": {"annotations": {RECORD: None}}}
    return patch | {"metadata": {"annotations": {RECORD: _text(record)}}} if patch else None


def movable(workload: JsonObject) -> list[Sidecar]:
    """Return the Go sidecars in the workload's pods that connect to a driver."""
    metadata, template = workload["metadata"], workload["spec"]["template"]
    pod = {
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": template["spec"],
    }
    return [
        one
        for one in sidecars_of(pod)
        if one.spec.needs_driver and one.container["name"] not in OURS
    ]


def patched(workload: JsonObject, patch: JsonObject) -> JsonObject:
    """Return the workload with the patch applied and without fields that the API server adds."""
    found: JsonObject = _merged(workload, patch)
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    found["metadata"] = {key: found["metadata"][key] for key in kept if key in found["metadata"]}
    found.pop("status", None)
    return found


def is_rolled_out(workload: JsonObject) -> bool:
    """Return True if all pods have the newest template and are ready."""
    spec, status = workload["spec"], workload.get("status") or {}
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return False
    wanted = spec.get("replicas", 1)
    if workload["kind"] == "StatefulSet":
        is_new = status.get("currentRevision") == status.get("updateRevision")
        return is_new and status.get("readyReplicas", 0) >= wanted
    return bool(
        status.get("replicas", 0) == status.get("updatedReplicas", 0) == wanted
        and status.get("availableReplicas", 0) >= wanted
    )


def _electing(found: Sequence[Sidecar]) -> set[str]:
    return {one.spec.program for one in found if one.works_alone() is False}


def _checked_record(workload: JsonObject, driver: str, plan: Plan) -> JsonObject | None:
    try:
        record = record_of(workload)
    except ValueError as error:
        plan.say(
            "record",
            FAIL,
            f"The annotation {RECORD} of {place_of(workload)} is unreadable: {error}. Apply the "
            "driver's own manifest or chart, then remove the annotation",
        )
        return None
    if record is not None and record["driver"] != driver:
        plan.say(
            "record",
            FAIL,
            f"{place_of(workload)} was adopted for {record['driver']}, not for {driver}. Use that "
            "driver name, or name a different workload",
        )
    return record


def _is_of_mode(workload: JsonObject, record: JsonObject, choice: Choice, plan: Plan) -> bool:
    """Return True if the driver was adopted in the requested mode; otherwise add a finding."""
    mode = str(record.get("as") or WORKER)
    if mode != choice.mode:
        plan.say(
            "record",
            FAIL,
            f"{place_of(workload)} is adopted as {mode}. Release it first: `csi-fleet release "
            f"{choice.driver}`, then adopt it as {choice.mode}; or use --as={mode}",
        )
    return mode == choice.mode


def _check_kind(workload: JsonObject, plan: Plan) -> None:
    kind = workload["kind"]
    if kind == "DaemonSet":
        plan.say(
            "workload",
            FAIL,
            f"{place_of(workload)} serves each node separately, so one worker cannot replace it. "
            "Move it node by node: docs/migration.md",
        )
    elif kind not in KINDS:
        plan.say(
            "workload",
            FAIL,
            f"{place_of(workload)} is not a {' or '.join(KINDS)}, so csi-fleet does not know how "
            "its pods are replaced. Move it container by container: docs/migration.md",
        )
    if workload["metadata"].get("deletionTimestamp"):
        plan.say(
            "workload",
            FAIL,
            f"{place_of(workload)} is being deleted. Wait until it has been recreated",
        )


def _check_names(
    workload: JsonObject, result: OneContainer, record: JsonObject | None, plan: Plan
) -> None:
    """Check for containers and volumes of the pod whose names conflict with csi-fleet's names."""
    spec = workload["spec"]["template"]["spec"]
    if record is None and (ours := _worker(workload)) is not None:
        plan.say(
            "workload",
            FAIL,
            f"{place_of(workload)} has a container {ours['name']} and the Go sidecars, but no "
            "record of an adoption. Remove the container or the Go sidecars from its manifest",
        )
    own = set((record or {}).get("volumes") or ())
    names = {one["name"] for one in spec.get("volumes") or ()} - own
    for one in result.volumes:
        if one["name"] in names:
            plan.say(
                "workload",
                FAIL,
                f"{place_of(workload)} has a volume {one['name']} of its own. Rename that volume",
            )


def _check_replicas(workload: JsonObject, choice: Choice, plan: Plan, *, is_elected: bool) -> None:
    replicas = workload["spec"].get("replicas", 1)
    if replicas <= 1:
        return
    if not is_elected:
        plan.say(
            "replicas",
            FAIL,
            f"{place_of(workload)} has {replicas} replicas and a sidecar without "
            "--leader-election, so two sidecars already work at the same time. Scale the workload "
            "to one replica (kubectl scale), or start the sidecars with --leader-election",
        )
    elif choice.mode == WORKER and not (choice.one_replica or choice.any_replica):
        plan.say(
            "replicas",
            FAIL,
            f"{place_of(workload)} has {replicas} replicas. The Go sidecars call the driver in one "
            "replica, but workers call the driver in every replica. Use --any-replica if the "
            "driver keeps no state of its own (a list of free device names, for example), "
            "otherwise --one-replica",
        )
    elif choice.mode == CENTRAL and workload["kind"] == "StatefulSet":
        plan.say(
            "replicas",
            FAIL,
            f"{place_of(workload)} has {replicas} replicas. A StatefulSet replaces its pods one by "
            "one, so the Go sidecars in one pod and the gateway in another would work at the same "
            "time. Scale it to one replica (kubectl scale)",
        )
    elif choice.any_replica:
        plan.say(
            "replicas", WARN, f"The workers call the driver in each of the {replicas} replicas"
        )
    elif not choice.one_replica:
        plan.say(
            "replicas",
            WARN,
            f"All workers call the driver in the same one of the {replicas} replicas, and switch "
            "to another replica when no worker can reach it",
        )


def _check_handover(workload: JsonObject, plan: Plan, *, is_by_lease: bool) -> None:
    """Check that pods will be replaced automatically; warn if no Lease hands over the work."""
    spec = workload["spec"]
    if spec.get("paused"):
        plan.say(
            "workload",
            FAIL,
            f"The roll-out of {place_of(workload)} is paused, so no new pod would be created. "
            f"Resume it: kubectl -n {workload['metadata']['namespace']} rollout resume deployment "
            f"{workload['metadata']['name']}",
        )
    update = spec.get("updateStrategy") or {}
    if workload["kind"] == "StatefulSet" and (
        update.get("type") == "OnDelete" or (update.get("rollingUpdate") or {}).get("partition")
    ):
        plan.say(
            "workload",
            FAIL,
            f"{place_of(workload)} does not replace its pods automatically (updateStrategy). Set "
            "RollingUpdate without a partition",
        )
    if not is_by_lease:
        plan.say(
            "hand-over",
            WARN,
            "The driver is not handed over by a Lease: the old pods end before the new pods start, "
            "and no claim is served in between",
        )


def _check_owners(workload: JsonObject, plan: Plan, choice: Choice) -> None:
    for one in undoers(workload):
        if one.is_at_once:
            state = WARN if choice.force else FAIL
            plan.say("owner", state, _undone(one, "undoes the change at once"))
        else:
            plan.say("owner", WARN, _undone(one, "undoes the change when it is applied again"))


def _undone(one: Undoer, does: str) -> str:
    return (
        f"{one.who} {does}, so the pod would have both the Go sidecars and the worker. To keep the "
        f"change, {one.remedy}"
    )


def _refresh_image(workload: JsonObject, installation: Installation, plan: Plan) -> None:
    """Update the image of an adopted driver's worker to the installation's image."""
    worker = _worker(workload) or {}
    where = f"{place_of(workload)} is adopted: container {NAME} replaces the sidecars"
    if worker.get("image") == installation.image:
        plan.say("sidecars", OK, where)
        return
    containers = copy.deepcopy(workload["spec"]["template"]["spec"]["containers"])
    for one in containers:
        if one["name"] == NAME:
            one["image"] = installation.image
    plan.patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    plan.say("sidecars", OK, f"{where}; its image becomes {installation.image}")


def _refresh_gateway(
    workload: JsonObject, record: JsonObject, central: Central, choice: Choice, plan: Plan
) -> None:
    """Rebuild an adopted driver's gateway and entry from the recorded sidecars."""
    earlier = replace(choice, any_replica=bool(record.get("any_replica")))
    before = _merged(workload, _releasing(workload, record))
    result = _built(before, movable(before), central, earlier)
    for text in result.problems:
        plan.say("arguments", FAIL, text)
    if plan.is_refused or not isinstance(result, Entered):
        return
    plan.entry = result.entry
    plan.say(
        "sidecars",
        OK,
        f"{place_of(workload)} is adopted: central workers serve {choice.driver} through container "
        f"{gateway.NAME}",
    )
    if record.get("made") == _digest(result.container):
        return
    containers = copy.deepcopy(workload["spec"]["template"]["spec"]["containers"])
    index = next(i for i, one in enumerate(containers) if one["name"] == gateway.NAME)
    containers[index] = result.container
    made = {**record, "made": _digest(result.container)}
    plan.patch = {
        "metadata": {"annotations": {RECORD: _text(made)}},
        "spec": {"template": {"spec": {"containers": containers}}},
    }
    plan.say("sidecars", OK, "The gateway's container has changed")


def _digest(container: JsonObject) -> str:
    return hashlib.sha256(_text(container).encode()).hexdigest()[:16]


def _worker(workload: JsonObject) -> JsonObject | None:
    containers = workload["spec"]["template"]["spec"]["containers"]
    return next((one for one in containers if one["name"] in OURS), None)


def _adopting(
    workload: JsonObject,
    found: Sequence[Sidecar],
    result: OneContainer,
    earlier: JsonObject | None,
    choice: Choice,
    *,
    is_by_lease: bool,
) -> JsonObject:
    spec, template = workload["spec"], workload["spec"]["template"]
    earlier = earlier or {}
    names = {one.container["name"] for one in found}
    record: JsonObject = {
        "driver": choice.driver,
        "as": choice.mode,
        "removed": _removed(template["spec"], names),
        "elects": sorted(result.elects),
        "volumes": [one["name"] for one in result.volumes],
    }
    labels = template["metadata"].get("labels") or {}
    if result.label[0] not in labels or earlier.get("labelled"):
        record["labelled"] = result.label[0]
    if choice.mode == CENTRAL:
        record["made"] = _digest(result.container)
        record["any_replica"] = choice.any_replica
        record["chosen"] = not choice.any_replica
    changed: JsonObject = {"template": _template(template, result, names, record["volumes"])}
    if choice.one_replica and spec.get("replicas", 1) > 1:
        record["replicas"] = spec["replicas"]
        changed["replicas"] = 1
    elif "replicas" in earlier:
        record["replicas"] = earlier["replicas"]
    _recreate(workload, changed, record, earlier, is_by_lease=is_by_lease)
    return {"metadata": {"annotations": {RECORD: _text(record)}}, "spec": changed}


def _recreate(
    workload: JsonObject,
    changed: JsonObject,
    record: JsonObject,
    earlier: JsonObject,
    *,
    is_by_lease: bool,
) -> None:
    """Set the Recreate strategy if no Lease ensures that the old pods stop first."""
    if "strategy" in earlier:  # an interrupted move has already changed it
        record["strategy"] = earlier["strategy"]
    elif is_by_lease or workload["kind"] != "Deployment":
        return
    else:
        own = copy.deepcopy(workload["spec"].get("strategy") or {"type": "RollingUpdate"})
        if own.get("type") == "Recreate":
            return
        record["strategy"] = own
    if not is_by_lease:
        changed["strategy"] = {"type": "Recreate", "rollingUpdate": None}


def _template(
    template: JsonObject, result: OneContainer, names: set[str], volumes: Sequence[str]
) -> JsonObject:
    """Return the pod template with the worker in the first sidecar's position."""
    spec = template["spec"]
    containers: list[JsonObject] = []
    for one in spec["containers"]:
        if one["name"] in names and result.container not in containers:
            containers.append(result.container)
        if one["name"] not in names | OURS:
            containers.append(one)
    if result.container not in containers:
        containers.append(result.container)
    kept = [one for one in spec.get("volumes") or () if one["name"] not in volumes]
    changed: JsonObject = {
        "containers": copy.deepcopy(containers),
        "volumes": [*copy.deepcopy(kept), *result.volumes],
    }
    if any(one["name"] in names for one in spec.get("initContainers") or ()):
        left = [one for one in spec["initContainers"] if one["name"] not in names]
        changed["initContainers"] = copy.deepcopy(left) or None
    return {"metadata": {"labels": dict([result.label])}, "spec": changed}


def _removed(spec: JsonObject, names: set[str]) -> list[JsonObject]:
    """Return the containers to remove, each with the name of its list and its index there.

    The index is the container's position in the list without the worker.
    """
    return [
        {"list": one, "index": index, "container": copy.deepcopy(container)}
        for one in _LISTS
        for index, container in enumerate(_without_worker(spec, one))
        if container["name"] in names
    ]


def _without_worker(spec: JsonObject, name: str) -> list[JsonObject]:
    return [one for one in spec.get(name) or () if one["name"] not in OURS]


def _releasing(workload: JsonObject, record: JsonObject) -> JsonObject:
    spec, template = workload["spec"], workload["spec"]["template"]
    pod = template["spec"]
    lists = {name: copy.deepcopy(_without_worker(pod, name)) for name in _LISTS}
    there = {one["name"] for each in lists.values() for one in each}
    for one in sorted(record["removed"], key=lambda each: each["index"]):
        # A sidecar that somebody has already restored is kept as it is.
        if one["container"]["name"] not in there:
            lists[one["list"]].insert(one["index"], one["container"])
    ours = set(record.get("volumes") or ())
    volumes = [one for one in pod.get("volumes") or () if one["name"] not in ours]
    changed: JsonObject = {
        "template": {
            "metadata": {"labels": {record["labelled"]: None} if record.get("labelled") else {}},
            "spec": {
                "containers": lists["containers"],
                "initContainers": lists["initContainers"] or None,
                "volumes": copy.deepcopy(volumes) or None,
            },
        }
    }
    if "replicas" in record and spec.get("replicas", 1) == 1:
        changed["replicas"] = record["replicas"]
    kept: JsonObject = {"driver": record["driver"], "as": record.get("as"), "released": True}
    programs = {one["container"]["name"] for one in record["removed"]}
    is_elected = len(record.get("elects") or ()) == len(programs)
    is_by_lease = is_elected and not is_central(record)
    _recreate(workload, changed, kept, record, is_by_lease=is_by_lease)
    # Keep the driver's name until the end: while no Lease is held, the workload can be found only
    # by this record.
    return {"metadata": {"annotations": {RECORD: _text(kept)}}, "spec": changed}


def _text(record: JsonObject) -> str:
    return json.dumps(record, separators=(",", ":"), sort_keys=True)


def _overlay(workload: JsonObject, found: Sequence[Sidecar], result: OneContainer) -> str:
    """Return the change as a kustomization, for a workload that comes from a chart or from Git."""
    spec = workload["spec"]["template"]["spec"]
    names = {one.container["name"] for one in found}
    lists: JsonObject = {
        name: [
            {"name": one["name"], "$patch": "delete"}
            for one in spec.get(name) or ()
            if one["name"] in names
        ]
        for name in _LISTS
    }
    lists["containers"].append(result.container)
    pod = {name: items for name, items in lists.items() if items} | {"volumes": result.volumes}
    patch = {
        "apiVersion": workload.get("apiVersion", "apps/v1"),
        "kind": workload["kind"],
        "metadata": {
            "name": workload["metadata"]["name"],
            "namespace": workload["metadata"]["namespace"],
        },
        "spec": {
            "template": {"metadata": {"labels": dict([result.label])}, "spec": pod},
        },
    }
    target = {"kind": workload["kind"], "name": workload["metadata"]["name"]}
    overlay = {"patches": [{"target": target, "patch": yaml.safe_dump(patch, sort_keys=False)}]}
    return yaml.safe_dump(overlay, sort_keys=False, default_style=None)


def _merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
