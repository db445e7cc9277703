"""Explains why a pod cannot use a bound claim: its volume is not attached, mounted or reachable.

Only waiting pods are considered. If no pod is waiting, or its events do not concern volumes, the
claim is as it should be.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from workers.controllers import catalogue
from workers.explain.commands import CREATE_KEY, CSI_NODE, ON_NODE, SHOW_KEY
from workers.explain.facts import Cause
from workers.explain.moves import ADMIN, USER, move_of
from workers.explain.quietly import quiet_list
from workers.explain.words import stamp
from workers.translate.fields import flag, is_deleting, object_list, text

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained
    from workers.kube.objects import JsonObject

_DESCRIBE_POD: Final = "kubectl describe pod {pod} -n {namespace}"
# The reasons of the events that the kubelet and kube-controller-manager write about a pod's
# volumes.
_NOT_ATTACHED: Final = frozenset({"FailedAttachVolume"})
_NOT_MOUNTED: Final = frozenset({"FailedMount", "FailedMapVolume", "FileSystemResizeFailed"})
_WORD: Final = re.compile(r"[\w.-]+")
_MULTI_ATTACH: Final = "Multi-Attach error"
# The kubelet's words if the driver is not registered, and if a secret of the volume cannot be read.
_UNREGISTERED: Final = "not found in the list of registered CSI drivers"
_NO_KEY: Final = re.compile(
    r"failed to find the secret (?P<secret>[\w.-]+) in the namespace (?P<secret_namespace>[\w-]+)"
)
# The scheduler's words if a bound volume keeps a pod from every node: whose move it is, the advice,
# and the first command.
_OF_VOLUMES: Final = (
    (
        "volume node affinity conflict",
        ADMIN,
        "The volume exists only in one part of the cluster: free or add a node there.",
        "kubectl get pv {volume} -o yaml",
    ),
    (
        "max volume count",
        ADMIN,
        "The nodes have as many volumes as the driver allows: move pods, or add a node.",
        "kubectl get csinodes -o yaml",
    ),
    (
        "ReadWriteOncePod",
        USER,
        "The claim can be used by one pod at a time: delete the other pod, or wait until it ends.",
        "kubectl get pods -n {namespace} -o wide",
    ),
)


def explain(tools: Tools, found: Explained, *, has_queue: bool = True) -> Explained:
    """Return a claim's explanation with the reason that a waiting pod cannot use its volume.

    Args:
        tools: the connections.
        found: the explanation of the claim.
        has_queue: False if Redis does not answer; an attachment's own error is then reported.

    Raises:
        Unreachable: the API server does not answer.
        QueueUnavailable: Redis does not answer.
    """
    claim = found.claim
    if claim is None or found.cause.code != "bound":
        return found
    namespace, name = text(claim, "metadata", "namespace"), text(claim, "metadata", "name")
    volume = text(claim, "spec", "volumeName")
    for pod in quiet_list(lambda: tools.kube.list_pods_using(namespace, name)):
        if text(pod, "status", "phase") not in {"", "Pending"} or is_deleting(pod):
            continue
        cause = _of_pod(tools, pod, name, volume, has_queue=has_queue)
        if cause is not None:
            named = cause.with_names(
                pod=text(pod, "metadata", "name"), node=text(pod, "spec", "nodeName")
            )
            return replace(found, cause=named)
    return found


def _of_pod(
    tools: Tools, pod: JsonObject, claim_name: str, volume: str, *, has_queue: bool
) -> Cause | None:
    if not text(pod, "spec", "nodeName"):
        return _unscheduled(pod, volume)
    unattached = _unattached(tools, pod, volume, has_queue=has_queue)
    return unattached or _unmounted(tools, pod, claim_name, volume)


def _unscheduled(pod: JsonObject, volume: str) -> Cause | None:
    """Return a cause if volumes prevent the scheduler from finding a node, else None."""
    why = next(
        (
            text(one, "message")
            for one in object_list(pod, "status", "conditions")
            if text(one, "type") == "PodScheduled" and text(one, "status") == "False"
        ),
        "",
    )
    for words, move, advice, command in _OF_VOLUMES:
        if words in why:
            return Cause(
                "not-scheduled",
                f"The claim is bound to volume {volume}, but the scheduler finds no node for pod "
                f"{text(pod, 'metadata', 'name')}: {why}",
                advice,
                move=move,
                templates=(command, _DESCRIBE_POD),
            )
    return None


def _unattached(tools: Tools, pod: JsonObject, volume: str, *, has_queue: bool) -> Cause | None:
    """Return a cause if the volume is not attached to the pod's node, else None."""
    node = text(pod, "spec", "nodeName")
    waiting = [
        one
        for one in quiet_list(tools.kube.list_attachments)
        if text(one, "spec", "source", "persistentVolumeName") == volume
        and text(one, "spec", "nodeName") == node
        and not flag(one, "status", "attached")
    ]
    if not waiting:
        return None
    name = text(waiting[0], "metadata", "name")
    held = Cause("attach-failed", text(waiting[0], "status", "attachError", "message"))
    explainer = catalogue.explainer("attacher") if has_queue else None
    if explainer is not None:
        held = explainer(tools, "va", "", name).cause
    return Cause(
        "not-attached",
        f"The claim is bound to volume {volume}, but the volume is not attached to node {node}, "
        f"where pod {text(pod, 'metadata', 'name')} waits for it. {held.text}".rstrip(),
        held.advice,
        held.until,
        held.is_problem,
        names={"attachment": name},
        move=move_of(held),
    )


def _unmounted(tools: Tools, pod: JsonObject, claim_name: str, volume: str) -> Cause | None:
    """Return the newest failure that the events report about the volume; None if there is none."""
    namespace, uid = text(pod, "metadata", "namespace"), text(pod, "metadata", "uid")
    # The kubelet uses the PersistentVolume's name, or the volume's name in the pod.
    known = {volume} | {
        text(one, "name")
        for one in object_list(pod, "spec", "volumes")
        if text(one, "persistentVolumeClaim", "claimName") == claim_name
    }
    events = [
        one
        for one in quiet_list(lambda: tools.kube.list_warnings(namespace, uid))
        if text(one, "reason") in _NOT_ATTACHED | _NOT_MOUNTED
        and known.intersection(_WORD.findall(text(one, "message")))
    ]
    if not events:
        return None
    event = max(events, key=lambda one: stamp(text(one, "lastTimestamp")))
    message, name = text(event, "message"), text(pod, "metadata", "name")
    node = text(pod, "spec", "nodeName")
    if message.startswith(_MULTI_ATTACH):
        names = _elsewhere(tools, volume, node)
        return Cause(
            "not-attached",
            f"The claim is bound to volume {volume}, but pod {name} on node {node} waits for it, "
            f"because another node still has it: {message}",
            "Delete the pod on the other node, or wait until it ends. If that node is gone, delete "
            "its VolumeAttachment only after you have made sure that nothing writes to the volume.",
            move=USER,
            names=names,
            templates=(
                "kubectl get pods -A --field-selector=spec.nodeName={other}",
                "csi-fleet explain va {attachment}",
                _DESCRIBE_POD,
            )
            if names
            else ("kubectl get volumeattachments", _DESCRIBE_POD),
        )
    action = "attach" if text(event, "reason") in _NOT_ATTACHED else "mount"
    found = Cause(
        "not-mounted",
        f"The claim is bound to volume {volume}, but node {node} could not {action} the volume for "
        f"pod {name}: {message}",
        f"Check the driver's pod on node {node} and its log. kubelet repeats the attempt.",
    )
    if _UNREGISTERED in message:
        advice = f"Start the driver's pod on node {node}, above all its node-driver-registrar."
        return replace(found, advice=advice, templates=(CSI_NODE, ON_NODE, _DESCRIBE_POD))
    if missing := _NO_KEY.search(message):
        return replace(
            found,
            advice="Create the secret, or allow kubelet to read it. kubelet repeats the attempt.",
            move=ADMIN,
            names=missing.groupdict(),
            templates=(SHOW_KEY, CREATE_KEY, _DESCRIBE_POD),
        )
    return found


def _elsewhere(tools: Tools, volume: str, node: str) -> dict[str, str]:
    """Return the name and node of the volume's attachment to another node; {} if unknown."""
    return next(
        (
            {"attachment": text(one, "metadata", "name"), "other": text(one, "spec", "nodeName")}
            for one in quiet_list(tools.kube.list_attachments)
            if text(one, "spec", "source", "persistentVolumeName") == volume
            and text(one, "spec", "nodeName") != node
        ),
        {},
    )
