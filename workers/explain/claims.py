"""Finds, from facts alone, the first cause that prevents a claim from being bound.

The causes are checked in the order of the work: first what must exist before the driver is called,
then what delays the claim in the queue, then the responses of the driver and the API server.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from workers.explain import deletion, queueing, refusals, remedies
from workers.explain.commands import DESCRIBE, RECREATE, RETRY
from workers.explain.facts import Cause, ClaimFacts
from workers.explain.moves import ADMIN, ITSELF
from workers.explain.words import WHEN_REJECTED, duration, moment, stamp
from workers.translate.claims import (
    WAIT_FOR_FIRST_CONSUMER,
    claim_class_name,
    provisioner_annotation,
    selected_node,
)
from workers.translate.fields import is_deleting, text, text_list
from workers.translate.quantity import QuantityError, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
# This must match the message in workers.topology.requirements.
_NO_TOPOLOGY: Final = "no available topology found"
# This must match the message in workers.controllers.provisioner.saving.
_NOT_SAVED: Final = "failed to save volume "
_READ_ADVICE: Final = (
    "Create the secret, or correct the class's csi.storage.k8s.io/provisioner-secret-* parameters."
)
_QUOTA: Final = re.compile(r"exceeded quota: ([^,\s]+)")
_RELEASE: Final = (
    """kubectl patch pv {volume} --type=json -p '[{{"op":"remove","path":"/spec/claimRef"}}]'"""
    "  # only to use its data again"
)


def claim_cause(facts: ClaimFacts) -> Cause:
    """Return the first cause that applies to the claim."""
    found = next((found for look in _LOOKS if (found := look(facts))), None)
    return _named(facts, found or _unseen(facts))


def cause_of_objects(facts: ClaimFacts) -> Cause | None:
    """Return the first cause that the objects show without Redis; None if they show no cause."""
    found = next((found for look in _OF_OBJECTS if (found := look(facts))), None)
    return _named(facts, found) if found else None


def _named(facts: ClaimFacts, cause: Cause) -> Cause:
    return cause.with_names(
        **{
            "class": facts.class_name,
            "driver": facts.driver_name,
            "node": selected_node(facts.claim or {}),
            "pod": facts.pods[0] if facts.pods else "",
            "secret": facts.secret.name if facts.secret else "",
            "secret_namespace": facts.secret.namespace if facts.secret else "",
            "quota": facts.quotas[0].name if facts.quotas else "",
        }
    )


def _absent(facts: ClaimFacts) -> Cause | None:
    if facts.claim is not None:
        return None
    if facts.refusal:
        return _not_created(facts)
    if facts.quotas:
        one = facts.quotas[0]
        return Cause(
            "quota",
            f"There is no claim {facts.namespace}/{facts.name}, and the namespace's ResourceQuota "
            f"{one.name} is used up: {one.resource} {one.used} of {one.hard}. The API server "
            "refuses to create a claim that exceeds the quota.",
            "Delete other claims or raise the quota, then create the claim again.",
        )
    return Cause(
        "not-found",
        f"There is no claim {facts.namespace}/{facts.name}.{facts.hint}",
        "Check the namespace and the name: kubectl get pvc -A",
    )


def _not_created(facts: ClaimFacts) -> Cause:
    """Return the cause if the controller of a workload tried to create the claim and failed."""
    kind, creator, message = facts.refusal or ("", "", "")
    quota = _QUOTA.search(message)
    return Cause(
        "quota" if quota else "not-created",
        f"There is no claim {facts.namespace}/{facts.name}, because {kind} {creator} could not "
        f"create it: {message}",
        "Remove what the message names; if it is a quota, delete other claims, or raise the quota. "
        "The claim is then created automatically.",
        names={
            "creator_kind": kind,
            "creator": creator,
            **({"quota": quota.group(1)} if quota else {}),
        },
    )


def _deleted(facts: ClaimFacts) -> Cause | None:
    cause = deletion.held(facts.claim or {})
    if cause is None or not facts.pods:
        return cause
    more = f" and {len(facts.pods) - 1} more" if len(facts.pods) > 1 else ""
    return Cause(
        "used-by-pod",
        f"The claim was deleted, but pod {facts.pods[0]}{more} still uses it "
        "(finalizer kubernetes.io/pvc-protection).",
        "Delete the pod, or the workload that the pod belongs to; then the claim is gone.",
    )


def _bound(facts: ClaimFacts) -> Cause | None:
    claim = facts.claim or {}
    volume_name = (claim.get("spec") or {}).get("volumeName") or ""
    phase = (claim.get("status") or {}).get("phase") or ""
    if phase == "Lost" and not volume_name:
        return Cause(
            "lost",
            "The claim has the annotations of a bound claim but names no volume: it was copied or "
            "restored from a bound claim.",
            "Delete the claim and create it again without the annotations "
            "pv.kubernetes.io/bind-completed and pv.kubernetes.io/bound-by-controller.",
        )
    if phase == "Lost":
        return Cause(
            "lost",
            f"The claim has lost its volume: PersistentVolume {volume_name} does not exist.",
            "Restore the PersistentVolume, or create the claim again without spec.volumeName.",
        )
    if volume_name and phase == "Bound":
        return Cause("bound", f"The claim is bound to volume {volume_name}.", is_problem=False)
    if volume_name and facts.volume is None:
        return Cause(
            "volume-missing",
            f"The claim requests volume {volume_name}, which does not exist.",
            "Create that PersistentVolume, or create the claim again without spec.volumeName.",
            templates=("kubectl get pv", *RECREATE),
        )
    if facts.volume is not None:
        if cause := _of_another(claim, facts.volume) or _unlike(claim, facts.volume):
            return cause
        return Cause(
            "binding",
            f"Volume {facts.volume['metadata']['name']} has been saved; kube-controller-manager is "
            "binding the claim to it now.",
            "If this persists, check kube-controller-manager.",
            is_problem=False,
        )
    return None


def _of_another(claim: Mapping[str, Any], volume: Mapping[str, Any]) -> Cause | None:
    """Return a cause if the volume is bound to a different claim, else None.

    That claim may be an earlier one of the same name.
    """
    owner, metadata = (volume.get("spec") or {}).get("claimRef") or {}, claim["metadata"]
    names = [(one.get("namespace"), one.get("name")) for one in (owner, metadata)]
    is_other = bool(owner) and names[0] != names[1]
    if not is_other and (owner.get("uid") or metadata.get("uid")) == metadata.get("uid"):
        return None
    whose = f"claim {'/'.join(map(str, names[0]))}" if is_other else "an earlier claim of this name"
    is_released = text(volume, "status", "phase") == "Released"
    reuse = (
        " To use the data on that volume instead, ask the cluster's administrator to remove "
        "spec.claimRef from the volume; the claim is then bound to it."
        if is_released
        else ""
    )
    return Cause(
        "volume-of-another",
        f"Volume {volume['metadata']['name']} belongs to {whose}.",
        f"Create the claim again with a different spec.volumeName or without one.{reuse}",
        templates=(
            "kubectl get pv {volume} -o yaml",
            *RECREATE,
            *((_RELEASE,) if is_released else ()),
        ),
    )


def _unlike(claim: Mapping[str, Any], volume: Mapping[str, Any]) -> Cause | None:
    """Return a cause if the volume that the claim names lacks what the claim requests, else None.

    kube-controller-manager makes the same checks (checkVolumeSatisfyClaim), but only if no claim is
    entered in the volume. It does not look at the claim's selector.
    """
    if not text(claim, "spec", "volumeName") or (volume.get("spec") or {}).get("claimRef"):
        return None
    name = volume["metadata"]["name"]
    differences = [
        f"the claim's {field} is {wanted or 'empty'}, the volume's is {offered or 'empty'}"
        for field, wanted, offered in _compared(claim, volume)
    ]
    if is_deleting(volume):
        differences = ["the volume is being deleted"]
    if not differences:
        return None
    return Cause(
        "volume-mismatch",
        f"The claim requests volume {name}, but it cannot be bound to that volume: "
        f"{'; '.join(differences)}.",
        "Create the claim again with values that match the volume, or with a different "
        "spec.volumeName.",
    )


def _compared(
    claim: Mapping[str, Any], volume: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield each field in which a volume does not satisfy a claim, with the claim's and its value.

    The values are "" if the field is not set.
    """
    for field, wanted, offered in (
        ("storageClassName", claim_class_name(claim), claim_class_name(volume)),
        *(
            (field, text(claim, "spec", field) or default, text(volume, "spec", field) or default)
            for field, default in (("volumeMode", "Filesystem"), ("volumeAttributesClassName", ""))
        ),
    ):
        if wanted != offered:
            yield field, wanted, offered
    modes = [text_list(one, "spec", "accessModes") for one in (claim, volume)]
    if not set(modes[0]) <= set(modes[1]):
        yield "accessModes", ", ".join(modes[0]), ", ".join(modes[1])
    wanted = text(claim, "spec", "resources", "requests", "storage")
    offered = text(volume, "spec", "capacity", "storage")
    with suppress(QuantityError):
        if parse(wanted or "0") > parse(offered or "0"):
            yield "size", wanted, offered


def _class(facts: ClaimFacts) -> Cause | None:
    if not facts.class_name:
        if facts.names_class:
            return Cause(
                "no-class",
                "The claim requests no storage class (the name is empty), so nothing is "
                "provisioned. It is waiting for a manually created PersistentVolume.",
                "Set spec.storageClassName to a class, or create a matching PersistentVolume.",
            )
        return Cause(
            "no-class",
            "The claim names no storage class, and the cluster has no default class.",
            "Set spec.storageClassName to a class, or mark one class as the default.",
        )
    if facts.unreadable and not facts.driver_name:
        return _unreadable(facts)
    if facts.storage_class is None and not facts.unreadable:
        return Cause(
            "class-missing",
            f'Storage class "{facts.class_name}" does not exist.{facts.hint}',
            "Create the class, or create the claim again with a class that exists: kubectl get sc",
        )
    if facts.driver_name == NO_PROVISIONER:
        return Cause(
            "static-class",
            f'Storage class "{facts.class_name}" has no dynamic provisioning; it is for manually '
            "created volumes.",
            "Create a matching PersistentVolume.",
        )
    return None


def _unserved(facts: ClaimFacts) -> Cause | None:
    if facts.driver is not None:
        return None
    node = selected_node(facts.claim or {})
    if facts.driver_name in facts.served.names and node:
        if facts.node is not None and not facts.node.exists:
            return _gone(facts, node)
        return Cause(
            "not-served",
            f'No worker on node "{node}" provisions volumes for driver "{facts.driver_name}"; '
            "workers on other nodes do.",
            "Check the driver's pod on that node.",
        )
    return queueing.unserved(
        facts.driver_name,
        facts.served,
        workers=facts.workers,
        is_driver=facts.csi_driver_exists or (facts.state is not None and facts.state.is_known),
    )


def _late(facts: ClaimFacts) -> Cause | None:
    claim = facts.claim or {}
    storage_class = facts.storage_class or {}
    if storage_class.get("volumeBindingMode") != WAIT_FOR_FIRST_CONSUMER or selected_node(claim):
        return None
    if found := queueing.last_error(facts.state, facts.last_error):
        return Cause(
            "rescheduled",
            "Provisioning failed for the node that the scheduler chose, so csi-fleet returned the "
            f"claim to the scheduler: {found[0]}",
            "Wait until the scheduler has chosen a node again. If it keeps choosing the same node, "
            "check that the driver is running there and that the node has free space: kubectl get "
            "csistoragecapacities -A.",
        )
    if not facts.pods:
        return Cause(
            "waits-for-consumer",
            f'The claim is waiting for its first consumer: storage class "{facts.class_name}" '
            "delays binding, and no pod uses the claim yet.",
            "Start a pod that mounts the claim.",
            is_problem=False,
        )
    if facts.pod_node:
        return Cause(
            "waits-for-consumer",
            f"The claim is waiting for the scheduler to choose a node, but pod {facts.pods[0]} "
            f"names node {facts.pod_node} itself (spec.nodeName), so the scheduler does not "
            "consider the pod.",
            "Create the pod again without spec.nodeName. To keep the node, set spec.nodeSelector "
            "to the node's label kubernetes.io/hostname instead.",
        )
    why = f": {facts.pod_problem}" if facts.pod_problem else "."
    return Cause(
        "waits-for-consumer",
        f"The claim is waiting for its first consumer: pod {facts.pods[0]} uses it, but the "
        f"scheduler has not chosen a node for the pod{why}",
        "Check the pod's events: kubectl describe pod.",
    )


def _selector(facts: ClaimFacts) -> Cause | None:
    if ((facts.claim or {}).get("spec") or {}).get("selector") is None:
        return None
    return Cause(
        "selector",
        "The claim has a selector, which works only with manually created volumes; no volume is "
        "provisioned.",
        "Create the claim again without spec.selector.",
    )


def _unpopulated(facts: ClaimFacts) -> Cause | None:
    if not facts.source or facts.populator != "":
        return None
    return Cause(
        "no-populator",
        f"The claim's volume is to be filled from {facts.source}, but no VolumePopulator names "
        "that kind, so nothing will fill the volume.",
        "Install a populator for that kind (kubectl get volumepopulators lists the installed "
        "ones), or create the claim again with a correct spec.dataSourceRef.",
    )


def _source(facts: ClaimFacts) -> Cause | None:
    if not facts.missing_source:
        return None
    if facts.missing_crd:
        return Cause(
            "source-missing",
            f"The claim's volume is to be created from {facts.missing_source}, but the API server "
            f"does not know that kind: the CRD {facts.missing_crd} is not installed.",
            "Install the CRDs of the snapshots and the snapshot controller, or create the claim "
            "again with a different source.",
            move=ADMIN,
            names={"crd": facts.missing_crd},
            templates=("kubectl get crd {crd}", DESCRIBE),
        )
    return Cause(
        "source-missing",
        f"The claim's volume is to be created from {facts.missing_source}, which does not exist.",
        "Create the source, or create the claim again with a different source. To retry at once, "
        f"run csi-fleet retry pvc {facts.namespace}/{facts.name}.",
        names=_source_names(facts.missing_source),
    )


def _source_names(source: str) -> dict[str, str]:
    """Return the names of a source such as `VolumeSnapshot shop/nightly`."""
    kind, _, name = source.partition(" ")
    return {"source_kind": kind.lower(), "source_namespace": name.partition("/")[0]}


def _source_not_ready(facts: ClaimFacts) -> Cause | None:
    source = facts.waiting_source
    if source is None:
        return None
    kind = "snapshot" if source.kind == "VolumeSnapshot" else "pvc"
    code, rest = "source-not-ready", "The volume is created automatically once the source is ready."
    if source.is_deleting:
        code, rest = "source-terminating", "Create the claim again with a different source."
    return Cause(
        code,
        f"The claim's volume is to be created from {source.kind} {source.name}, which "
        f"{'is being deleted' if source.is_deleting else 'is not ready yet'}.",
        rest,
        names={"source": f"{kind} {source.name}"},
    )


def _source_of_another(facts: ClaimFacts) -> Cause | None:
    """Return a cause if the source's data is in the storage of a different driver, else None."""
    if not facts.driver_name or facts.source_driver in {"", facts.driver_name}:
        return None
    return Cause(
        "source-unsupported",
        f"The claim's volume is to be created from {facts.ready_source}, whose data belongs to "
        f'driver "{facts.source_driver}". The driver of storage class "{facts.class_name}" is '
        f'"{facts.driver_name}", and a driver can copy only its own volumes.',
        "Create the claim again with a class of the source's driver.",
        templates=("kubectl get storageclass", *RECREATE),
    )


def _class_parameters(facts: ClaimFacts) -> Cause | None:
    if not facts.class_problem:
        return None
    return Cause(
        "class-invalid",
        f'The parameters of storage class "{facts.class_name}" cannot be used: '
        f"{facts.class_problem}",
        "Correct the class. A class cannot be changed, so delete it and create it again; its "
        "claims are then provisioned automatically.",
    )


def _attributes_class(facts: ClaimFacts) -> Cause | None:
    if not facts.missing_attributes_class:
        return None
    return Cause(
        "class-missing",
        f'VolumeAttributesClass "{facts.missing_attributes_class}" does not exist.',
        "Create the class, or create the claim again with a different one.",
        templates=("kubectl get volumeattributesclass", DESCRIBE),
    )


def _populated(facts: ClaimFacts) -> Cause | None:
    if not facts.source:
        return None
    who = f"populator {facts.populator}" if facts.populator else "a populator of that kind"
    if facts.last_error:
        return Cause(
            "waits-for-populator",
            f"The claim is waiting for {who}, which fills the volume from {facts.source}. The "
            f"newest warning about the claim: {facts.last_error[0]}",
            "Remove what the warning names, or ask whoever runs the populator. The populator "
            "then continues automatically.",
            move=ADMIN,
            templates=(DESCRIBE, "kubectl get volumepopulators -o yaml"),
        )
    return Cause(
        "waits-for-populator",
        f"The claim is waiting for {who}, which fills the volume from {facts.source}; csi-fleet "
        "provisions only the volume that the populator requests.",
        "If this persists, check the populator's log and the events of the claim.",
        is_problem=False,
    )


def _not_requested(facts: ClaimFacts) -> Cause | None:
    if provisioner_annotation(facts.claim or {}) is not None:
        return None
    return Cause(
        "not-requested",
        "kube-controller-manager has not requested a volume for the claim yet (the annotation "
        "volume.kubernetes.io/storage-provisioner is missing).",
        "If this persists, check kube-controller-manager.",
    )


def _held(facts: ClaimFacts) -> Cause | None:
    if facts.state is None:
        return None
    return queueing.paused(
        facts.state,
        facts.class_pause,
        facts.class_pause_until,
        paused_class=facts.class_name,
    )


def _running(facts: ClaimFacts) -> Cause | None:
    return queueing.running(facts.state) if facts.state is not None else None


def _unsaved(facts: ClaimFacts) -> Cause | None:
    """Return a cause if the volume exists but its PV has not been saved, else None."""
    state = facts.state
    if state is None or state.unsaved is None:
        return None
    found = queueing.last_error(state, facts.last_error)
    why = f": {found[0]}" if found else "."
    return Cause(
        "save-refused",
        f"The volume was created, but the API server rejects its PersistentVolume{why}",
        f"{WHEN_REJECTED}{queueing.next_try(state)} The volume is kept, and CreateVolume is not "
        "repeated.",
        state.due,
    )


def _node(facts: ClaimFacts) -> Cause | None:
    node = facts.node
    if node is None or not (facts.driver or {}).get("topology"):
        return None
    if not node.exists:
        return _gone(facts, node.name)
    if node.csi_drivers is None or facts.driver_name not in node.csi_drivers:
        return Cause(
            "node-lacks-driver",
            f'Node "{node.name}" has no entry for driver "{facts.driver_name}" in its CSINode, so '
            "the driver is not registered on that node.",
            "Check the driver's node pod on that node, especially its node-driver-registrar.",
        )
    missing = [key for key in node.csi_drivers[facts.driver_name] if key not in node.labels]
    if missing:
        return Cause(
            "node-lacks-label",
            f'Node "{node.name}" does not have the topology label {missing[0]}, which driver '
            f'"{facts.driver_name}" announced for it.',
            "Restart the driver's node pod on that node, so that the kubelet sets the label again.",
        )
    return None


def _gone(facts: ClaimFacts, node: str) -> Cause:
    chooser = f"For pod {facts.pods[0]}, the scheduler" if facts.pods else "The scheduler"
    return Cause(
        "node-gone",
        f'{chooser} chose node "{node}", which no longer exists.',
        "csi-fleet returns the claim to the scheduler at the next attempt. If the scheduler does "
        "not choose another node, delete the pod.",
        move=ITSELF,
        templates=(RETRY, "kubectl describe pod {pod} -n {namespace}", "kubectl get nodes"),
    )


def _secret(facts: ClaimFacts) -> Cause | None:
    secret = facts.secret
    if secret is None or not secret.problem:
        return None
    return Cause(
        "secret-missing",
        f'The provisioner secret {secret.namespace}/{secret.name} of class "{facts.class_name}" '
        f"cannot be used: {secret.problem}.",
        _READ_ADVICE,
    )


def _queued(facts: ClaimFacts) -> Cause | None:
    if facts.state is None or facts.state.fails:
        return None
    return queueing.queued(facts.state)


def _failed(facts: ClaimFacts) -> Cause | None:
    """Return a cause with the last attempt's error and the time of the next one, or None."""
    state = facts.state
    if state is None or not (state.fails or state.abandoned_at or state.due):
        return None
    found = queueing.last_error(state, facts.last_error)
    again = queueing.next_try(state)
    if "slow_until" in queueing.memo_of(state):
        return Cause(
            "infeasible",
            "The driver reported that this request can never succeed"
            + (f": {found[0]}" if found else "."),
            "Change the class's parameters or the claim. The request is retried at long intervals. "
            f"{again}",
            state.due,
        )
    if found is None:
        if not state.due:
            return queueing.queued(state)
        waits = [note.detail for note in state.trail if note.event == "waits"]
        why = f": {waits[-1]}." if waits else "; no error has been recorded."
        return Cause(
            "back-off",
            f"The claim will be retried later{why} {again}",
            f"To retry now, run csi-fleet retry pvc {facts.namespace}/{facts.name}.",
            state.due,
        )
    message, at = found
    if cause := queueing.defect(state, message, again):
        return cause
    if message.startswith(_NOT_SAVED):
        return Cause(
            "save-refused",
            f"The volume was created, but the API server rejects its PersistentVolume: {message}",
            f"{WHEN_REJECTED}{again}",
            state.due,
        )
    secret, problem = queueing.secret_names(message)
    if secret:  # the caller cannot read Secrets, or the secret is back
        where = f"{secret['secret_namespace']}/{secret['secret']}"
        return Cause(
            "secret-missing",
            f'The provisioner secret {where} of class "{facts.class_name}" could not be '
            f"used in the last attempt: {problem}.",
            f"{_READ_ADVICE} {again}".rstrip(),
            state.due,
            names=secret,
        )
    code = remedies.answer_of(state, message).code
    if code == "ResourceExhausted":
        return Cause(
            "storage-full",
            f"The storage backend is full or its quota is used up: {message}",
            f"Free or add space, or request a smaller size. {again}",
            state.due,
        )
    if _NO_TOPOLOGY in message:
        return Cause(
            "no-topology",
            f'No node announces topology for driver "{facts.driver_name}": {message}',
            "Check that the driver's node pods are running: kubectl get csinodes -o yaml must show "
            f"the driver with its topologyKeys, and the nodes must have these labels. {again}",
            state.due,
        )
    age = duration(max(0.0, facts.now - at))
    if not code:
        return Cause(
            "attempt-failed",
            f"The last attempt failed {age} ago: {message}",
            "Correct what the message names: the class's parameters or secrets, the claim or its "
            f"source. {again} To retry now, run csi-fleet retry.",
            state.due,
        )
    return Cause(
        "driver-error",
        f"The driver returned an error {age} ago: {message}",
        f"Check the driver's log. {again} To retry now, run csi-fleet retry.",
        state.due,
    )


def _retry_queued(facts: ClaimFacts) -> Cause | None:
    return queueing.queued(facts.state) if facts.state is not None else None


def _unreadable(facts: ClaimFacts) -> Cause:
    """Return the cause if the reason may be the class, which the user must not read."""
    said = f" The newest warning about the claim: {facts.warning}" if facts.warning else ""
    return refusals.cause(facts.unreadable, said)


def _unseen(facts: ClaimFacts) -> Cause:
    created = stamp(((facts.claim or {}).get("metadata") or {}).get("creationTimestamp", ""))
    if facts.watchers == 0:
        return Cause(
            "no-watcher",
            "No csi-fleet watcher is running, so new claims are not noticed.",
            "Start the watcher, or find out why it stopped; nothing is lost in the meantime.",
        )
    if found := queueing.last_error(facts.state, facts.last_error):
        return Cause(
            "last-error",
            f"The claim is not queued now. The last error, at {moment(found[1])}: {found[0]}",
            f"To queue the claim again, run csi-fleet retry pvc {facts.namespace}/{facts.name}.",
        )
    if facts.unreadable:
        return _unreadable(facts)
    age = duration(max(0.0, facts.now - created)) if created else "a while"
    return Cause(
        "not-queued",
        f"The claim is not queued although a watcher is running; it is {age} old.",
        f"To queue the claim now, run csi-fleet retry pvc {facts.namespace}/{facts.name}. The next "
        "resync (--resync-period) also queues it.",
    )


_LOOKS: Final[tuple[Callable[[ClaimFacts], Cause | None], ...]] = (
    _absent,
    _deleted,
    _bound,
    _class,
    _selector,
    _unpopulated,
    _late,
    _unserved,
    _populated,
    _not_requested,
    _running,
    _held,
    _unsaved,
    _queued,
    _node,
    _class_parameters,
    _attributes_class,
    _secret,
    _source,
    _source_not_ready,
    _source_of_another,
    _failed,
    _retry_queued,
)
# These checks need neither the queue nor the drivers' registrations.
_OF_OBJECTS: Final = (
    _absent,
    _deleted,
    _bound,
    _class,
    _selector,
    _unpopulated,
    _late,
    _populated,
    _not_requested,
    _class_parameters,
    _attributes_class,
    _secret,
    _source,
    _source_not_ready,
    _source_of_another,
)
