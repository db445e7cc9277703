"""The commands to run next for each cause that `explain` reports, filled with names.

One table has an entry for every cause. An empty entry means that nobody has to act. Words in
capitals (`CLASS`, `SIZE`) are for the user to replace.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from workers.explain import nouns
from workers.translate.claims import claim_class_name
from workers.translate.fields import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.explain.facts import Cause
    from workers.explain.generic import Explained

NOBODY_ACTS: Final[tuple[str, ...]] = ()
# Every pod with a csi-fleet container has this label, so in sidecar mode the drivers' pods have it.
PODS: Final = "kubectl get pods -A -l csi-fleet.io/redis-client=true"
DESCRIBE: Final = "kubectl describe {object}"
RETRY: Final = "csi-fleet retry {retry}"
CLASS: Final = "kubectl get storageclass {class} -o yaml"
CLASSES: Final = "kubectl get {class_kind}"
STATUS: Final = "csi-fleet status"
DRIVER: Final = "csi-fleet status --driver={driver}"
ON_NODE: Final = "kubectl get pods -A --field-selector=spec.nodeName={node}"
CSI_NODE: Final = "kubectl get csinode {node} -o yaml"
PATCH_SIZE: Final = (
    'kubectl patch {object} -p \'{{"spec":{{"resources":{{"requests":{{"storage":"SIZE"}}}}}}}}\''
)
# Only for claims without a volume: the claim is deleted and created again.
RECREATE: Final = (
    "kubectl get {object} -o yaml > claim.yaml",
    "kubectl replace --force -f claim.yaml  # after you have corrected claim.yaml",
)
SHOW_KEY: Final = "kubectl get secret {secret} -n {secret_namespace}"
CREATE_KEY: Final = (
    "kubectl create secret generic {secret} -n {secret_namespace} --from-literal=KEY=VALUE"
    "  # with the keys that the driver needs"
)
_DELETED_WITH_CLAIM: Final = (
    'kubectl patch {object} -p \'{{"spec":{{"persistentVolumeReclaimPolicy":"Delete"}}}}\''
    "  # only if nobody needs the data"
)

COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    # The claim's owner acts.
    "no-class": ("kubectl get storageclass", *RECREATE),
    "static-class": ("kubectl get pv", CLASS, DESCRIBE),
    "selector": RECREATE,
    "waits-for-consumer": (
        "kubectl describe pod {pod} -n {namespace}",
        "kubectl get pods,deployments,statefulsets -n {namespace}",
        DESCRIBE,
    ),
    "used-by-pod": ("kubectl delete pod {pod} -n {namespace}", DESCRIBE),
    "volume-missing": ("kubectl get pvc -A | grep {volume}", "kubectl get pv", DESCRIBE),
    "volume-of-another": ("kubectl get pv {volume} -o yaml", DESCRIBE),
    "volume-mismatch": ("kubectl get pv {volume} -o yaml", *RECREATE),
    "not-created": ("kubectl describe {creator_kind} {creator} -n {namespace}",),
    "lost": ("kubectl get pv", *RECREATE),
    "infeasible": (CLASS, DESCRIBE, RETRY),
    "attempt-failed": (DESCRIBE, CLASS, RETRY),
    "class-of-another-driver": (
        "kubectl get volumeattributesclass",
        'kubectl patch {object} -p \'{{"spec":{{"volumeAttributesClassName":"CLASS"}}}}\'',
    ),
    "class-infeasible": (
        "kubectl get volumeattributesclass {attributes_class} -o yaml",
        'kubectl patch {object} -p \'{{"spec":{{"volumeAttributesClassName":"CLASS"}}}}\'',
    ),
    "size-infeasible": (
        DESCRIBE,
        PATCH_SIZE,
    ),
    "not-found": ("kubectl get {listing}",),
    "deleted-by-hand": ("kubectl delete {snapshot_kind} {snapshot} -n {namespace}", DESCRIBE),
    "content-missing": ("kubectl get {content_kind}", "kubectl delete {object}"),
    "quota": (
        "kubectl describe resourcequota {quota} -n {namespace}",
        "kubectl describe resourcequota -n {namespace}",
    ),
    "in-group": ("kubectl delete volumegroupsnapshot {group} -n {namespace}", DESCRIBE),
    "being-restored": ("csi-fleet pending -n {namespace}", DESCRIBE),
    "still-bound": (
        "kubectl get pvc {claim} -n {claim_namespace}",
        "kubectl delete pvc {claim} -n {claim_namespace}  # only if nobody needs the data",
    ),
    "claim-terminating": ("csi-fleet explain pvc {claim_namespace}/{claim}", DESCRIBE),
    "source-missing": ("kubectl get {source_kind} -n {source_namespace}", DESCRIBE, RETRY),
    "source-not-ready": ("csi-fleet explain {source}", DESCRIBE),
    "source-unsupported": ("kubectl get pv {volume} -o yaml", "kubectl delete {object}"),
    "source-terminating": ("csi-fleet explain {source}", *RECREATE),
    # The cluster's administrator acts.
    "class-missing": (CLASSES, DESCRIBE),
    "crd-missing": ("kubectl get crd {crd}",),
    "no-permission": ("kubectl auth can-i {verb} {resource}", DESCRIBE),
    "class-invalid": ("kubectl get {class_kind} {class} -o yaml", DESCRIBE),
    "unknown-provisioner": (CLASS, "kubectl get csidrivers"),
    "secret-missing": (SHOW_KEY, CREATE_KEY, CLASS, DESCRIBE),
    "secret": (SHOW_KEY, CREATE_KEY, DESCRIBE),
    "save-refused": ("csi-fleet explain pv {volume}", "csi-fleet doctor"),
    "no-populator": ("kubectl get volumepopulators", *RECREATE),
    "refused": ("csi-fleet doctor",),
    "foreign-finalizer": (
        DESCRIBE,
        "kubectl edit {object}  # remove a finalizer only if its controller is not installed",
    ),
    "node-gone": (ON_NODE, "kubectl get nodes", DESCRIBE),
    "rescheduled": ("kubectl get csistoragecapacities -A", DESCRIBE),
    "kept": (
        DESCRIBE,
        _DELETED_WITH_CLAIM,
    ),
    "deleted-failing": (RETRY, "csi-fleet failed"),
    "stranded": (
        SHOW_KEY,
        RETRY,
        "csi-fleet audit --forget={volume}  # only if the volume does not exist",
    ),
    "topology-dropped": (
        "kubectl get crd volumesnapshotcontents.snapshot.storage.k8s.io -o yaml",
        DESCRIBE,
    ),
    "namespace-terminating": ("kubectl get pods,pvc,volumesnapshots -n {name}",),
    # The driver's operator acts.
    "driver-error": (DESCRIBE, DRIVER, PODS),
    "not-mounted": (ON_NODE, CSI_NODE, "kubectl describe pod {pod} -n {namespace}"),
    "not-attached": (
        "csi-fleet explain va {attachment}",
        "kubectl describe pod {pod} -n {namespace}",
    ),
    "not-scheduled": (
        "kubectl describe pod {pod} -n {namespace}",
        "kubectl get pv {volume} -o yaml",
        "kubectl get csinodes -o yaml",
    ),
    "volume-unhealthy": (DESCRIBE, "kubectl describe pv {volume}", DRIVER),
    "driver-slow": (DRIVER, PODS),
    "driver-lost": (DRIVER, PODS),
    "storage-full": ("kubectl get csistoragecapacities -A", DESCRIBE, RETRY),
    "driver-not-registered": (PODS, STATUS, "kubectl get csidriver {driver}"),
    "node-lacks-driver": (CSI_NODE, ON_NODE),
    "node-lacks-label": ("kubectl get node {node} --show-labels", ON_NODE),
    "no-topology": ("kubectl get csinodes -o yaml", DESCRIBE),
    "driver-not-on-node": (CSI_NODE, ON_NODE),
    "attach-failed": (DESCRIBE, RETRY),
    "detach-failed": (DESCRIBE, RETRY),
    "change-failed": (DESCRIBE, RETRY),
    "delete-failed": (DESCRIBE, RETRY),
    "failed": (DESCRIBE, RETRY, "csi-fleet failed"),
    "node-failed": (ON_NODE, "kubectl get pods -n {namespace} -o wide", DESCRIBE),
    "last-error": (RETRY, DESCRIBE),
    # The operator of csi-fleet acts.
    "no-worker": (PODS, STATUS),
    "no-watcher": ("kubectl get pods -A -l app.kubernetes.io/name=watcher", STATUS),
    "not-served": ("csi-fleet explain driver {driver}", STATUS),
    "no-controller": (PODS, STATUS),
    "paused": ("csi-fleet resume --driver={driver}", STATUS),
    "class-paused": ("csi-fleet resume --class={class}", STATUS),
    "lease-elsewhere": ("kubectl get leases -A", DRIVER),
    "no-free-worker": (STATUS,),
    "no-limits": (DRIVER, STATUS),
    "internal-error": ("csi-fleet support-bundle > bundle.yaml",),
    "not-queued": (RETRY, STATUS),
    "limit-reached": (DRIVER, STATUS),
    "rate-limited": (DRIVER, STATUS),
    "change-unseen": (RETRY, STATUS),
    "redis-away": ("csi-fleet doctor",),
    # Another program should continue on its own; the command shows whether it has.
    "still-attached": ("csi-fleet explain va {attachment}", "kubectl get volumeattachments"),
    "waits-for-node": (ON_NODE, "kubectl get pods -n {namespace} -o wide", DESCRIBE),
    # csi-fleet or another controller continues automatically, or everything is as it should be.
    **dict.fromkeys(
        (
            *("queued", "running", "volume-busy", "back-off", "change-waits", "deleting"),
            *("being-created", "size-pinned", "class-pinned", "class-taken-back", "not-made"),
            *("not-copied", "no-content", "no-finalizer", "waits-for-content", "uploading"),
            *("binding", "not-requested", "waiting", "waits-for-populator", "not-bound"),
            *("bound", "in-use", "as-wanted", "ready", "nothing-to-do", "attached"),
            *("not-ours", "gone", "available"),
        ),
        NOBODY_ACTS,
    ),
}


def needs_nobody(cause: Cause) -> bool:
    """Return True if nobody has to act, so that there is no command to run."""
    return _templates(cause) == NOBODY_ACTS


def _templates(cause: Cause) -> tuple[str, ...]:
    if cause.templates is not None:
        return cause.templates
    return COMMANDS.get(cause.code, (DESCRIBE,))


def filled(cause: Cause, word: str, namespace: str, name: str, found: Explained) -> Cause:
    """Return the cause with its commands, for an object that a command named.

    Args:
        cause: the cause; the names that it carries take precedence.
        word: the object's noun, or `driver`, `class` or `namespace`.
        namespace: the object's namespace; "" if it has none.
        name: the object's name.
        found: the explanation; its objects and key contain further names.
    """
    if cause.commands:
        return cause
    templates = _templates(cause)
    names = {**names_of(word, namespace, name), **_found_names(found), **_present(cause.names)}
    made = fill(templates, names)
    if templates and not made:
        made = fill((DESCRIBE,), names)
    return replace(cause, commands=made)


def fill(templates: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the commands; those that need an unknown name are left out.

    Every name is quoted for the shell, because names from Redis or from a class may be hostile.
    """
    found = []
    quoted = _Names({key: _quoted(key, name) for key, name in names.items() if name})
    for template in templates:
        try:
            found.append(template.format_map(quoted))
        except _UnknownError:
            continue
    return tuple(dict.fromkeys(found))


def names_of(word: str, namespace: str, name: str) -> dict[str, str]:
    """Return the names for an object's commands that come from the object itself."""
    noun = nouns.nouns().get(word)
    shown = f"{namespace}/{name}" if namespace else name
    place = f" -n {shlex.quote(namespace)}" if namespace else ""
    kind = _KUBECTL.get(word) or (noun.resource.kind.lower() if noun else word)
    names = {
        "word": word,
        "kind": kind,
        "name": name,
        "namespace": name if word == "namespace" else namespace,
        "object": f"{kind} {shlex.quote(name)}{place}",
        "listing": f"{kind} -A" if namespace else kind,
        "class_kind": _CLASS_KINDS.get(word, "storageclass"),
    }
    if noun is not None:
        names["retry"] = f"{word} {shlex.quote(shown)}"
    own = {"pvc": "claim", "pv": "volume", "content": "content", "group-content": "content"}
    own |= {"va": "attachment", "driver": "driver", "class": "class"}
    if word in own:
        names[own[word]] = name
    if word == "pvc":
        names["claim_namespace"] = namespace
    return names


def _found_names(found: Explained) -> dict[str, str]:
    """Return the names in the explanation's objects and key."""
    names: dict[str, str] = {}
    if found.state is not None:
        names["driver"] = found.state.key.driver_name
        names["volume"] = str((found.state.intent or {}).get("volume") or "")
    if found.claim is not None:
        names["class"] = claim_class_name(found.claim)
        names["volume"] = text(found.claim, "spec", "volumeName") or names.get("volume", "")
    if (volume := found.volume) is not None:
        names["volume"] = text(volume, "metadata", "name")
        names["driver"] = names.get("driver") or text(volume, "spec", "csi", "driver")
        names["class"] = names.get("class") or claim_class_name(volume)
        names["claim"] = text(volume, "spec", "claimRef", "name")
        names["claim_namespace"] = text(volume, "spec", "claimRef", "namespace")
    return _present(names)


def _present(names: Mapping[str, str]) -> dict[str, str]:
    return {key: name for key, name in names.items() if name}


class _UnknownError(Exception):
    """A template needs a name that is unknown."""


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> Any:
        raise _UnknownError(key)


# Names that are already quoted, because they consist of several words.
_PHRASES: Final = frozenset({"object", "retry", "source", "listing"})
_KUBECTL: Final = {
    "pvc": "pvc",
    "pv": "pv",
    "driver": "csidriver",
    "class": "storageclass",
    "namespace": "namespace",
}
_CLASS_KINDS: Final = {
    **dict.fromkeys(("snapshot", "content", "binding"), "volumesnapshotclass"),
    **dict.fromkeys(
        ("group-snapshot", "group-content", "group-binding"), "volumegroupsnapshotclass"
    ),
}


def _quoted(key: str, name: str) -> str:
    return name if key in _PHRASES else shlex.quote(name)
