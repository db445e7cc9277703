"""Explains which source or class a snapshot or group snapshot without a content is waiting for.

The checks are those of `creating` and `groupinput`, in the same order, on live objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.constants import ANN_DEFAULT_GROUP_CLASS, ANN_DEFAULT_SNAPSHOT_CLASS
from workers.controllers.snapshot_controller import groupinput
from workers.explain.commands import DESCRIBE
from workers.explain.facts import Cause
from workers.explain.quietly import quiet_list, quietly
from workers.explain.words import nearest
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.migration.plugins import in_tree_source
from workers.translate import snapshot_objects as objects
from workers.translate.fields import is_deleting, optional_text, text

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.kube.resources import KubeResources
    from workers.translate.fields import Json

_KINDS: Final[dict[str, tuple[str, Resource, str]]] = {
    "snapshot": ("volumeSnapshotClassName", paths.SNAPSHOT_CLASSES, ANN_DEFAULT_SNAPSHOT_CLASS),
    "group-snapshot": (
        "volumeGroupSnapshotClassName",
        paths.GROUP_SNAPSHOT_CLASSES,
        ANN_DEFAULT_GROUP_CLASS,
    ),
}


def cause(kube: KubeResources, word: str, snapshot: Json) -> Cause | None:
    """Return the first problem with the source or the class; None if there is none.

    If the caller is not allowed to read the source or the class, the cause is unknown.

    Args:
        kube: the client.
        word: `snapshot` or `group-snapshot`.
        snapshot: a live object whose content does not exist.

    Raises:
        Unreachable: the API server does not answer.
    """
    return quietly(lambda: _cause(kube, word, snapshot), None)


def _cause(kube: KubeResources, word: str, snapshot: Json) -> Cause | None:
    if (named := _named_content(word, snapshot)) is not None:
        kind = "VolumeSnapshotContent" if word == "snapshot" else "VolumeGroupSnapshotContent"
        return Cause(
            "source-missing",
            f"The snapshot is to be bound to {kind} {named}, which does not exist.",
            "Create that content, or create the snapshot again with a different source.",
            templates=(f"kubectl get {kind.lower()}", DESCRIBE),
        )
    claim = None
    if word == "snapshot":
        name = objects.source_claim(snapshot) or ""
        claim = find(kube, paths.CLAIMS, name, objects.namespace_of(snapshot))
        if found := _of_claim(snapshot, name, claim):
            return found
    elif found := _of_selector(kube, snapshot):
        return found
    driver = ""
    if claim is not None:
        volume = find(kube, paths.VOLUMES, text(claim, "spec", "volumeName"))
        if volume is not None and (found := _of_volume(snapshot, claim, volume)):
            return found
        driver = text(volume or {}, "spec", "csi", "driver")
    return _of_class(kube, word, snapshot, driver)


def _named_content(word: str, snapshot: Json) -> str | None:
    if word == "snapshot":
        return objects.source_content(snapshot)
    return groupinput.named_content(snapshot) or None


def _of_claim(snapshot: Json, name: str, claim: Json | None) -> Cause | None:
    namespace = objects.namespace_of(snapshot)
    names = {"source": f"pvc {namespace}/{name}"}
    if claim is None:
        return Cause(
            "source-missing",
            f"The snapshot is to be taken of claim {namespace}/{name}, which does not exist.",
            "Create the claim, or create the snapshot again with a different claim.",
            names={"source_kind": "pvc", "source_namespace": namespace},
        )
    if text(claim, "status", "phase") != "Bound":
        phase = text(claim, "status", "phase") or "Pending"
        return Cause(
            "source-not-ready",
            f"The snapshot is to be taken of claim {namespace}/{name}, which has no volume yet "
            f"(its phase is {phase}).",
            "The snapshot is taken automatically once the claim is Bound.",
            names=names,
        )
    if is_deleting(claim):
        return Cause(
            "source-terminating",
            f"The snapshot is to be taken of claim {namespace}/{name}, which is being deleted.",
            "Delete the snapshot; no snapshot is taken of a claim that is being deleted.",
            names=names,
            templates=("kubectl delete {object}", "csi-fleet explain {source}"),
        )
    return None


def _of_volume(snapshot: Json, claim: Json, volume: JsonObject) -> Cause | None:
    """Return a cause if the volume does not belong to a CSI driver, else None."""
    if volume["spec"].get("csi") is not None or in_tree_source(volume) is not None:
        return None
    name, namespace = objects.name_of(volume), objects.namespace_of(snapshot)
    return Cause(
        "source-unsupported",
        f"The snapshot is to be taken of claim {namespace}/{objects.name_of(claim)}, whose volume "
        f"{name} does not belong to a CSI driver, so no snapshot of it can be taken.",
        "Delete the snapshot, and copy the data in another way.",
        names={"volume": name},
    )


def _of_selector(kube: KubeResources, snapshot: Json) -> Cause | None:
    namespace = objects.namespace_of(snapshot)
    selector = groupinput.selector_text(groupinput.selector_of(snapshot) or {})
    if any(kube.list(paths.CLAIMS, namespace=namespace, labelSelector=selector)):
        return None
    return Cause(
        "source-missing",
        f"No claim in namespace {namespace} has the labels that the group snapshot selects: "
        f"{selector}.",
        "Label the claims, or create the group snapshot again with a different selector.",
        templates=("kubectl get pvc -n {namespace} --show-labels", DESCRIBE),
    )


def _of_class(kube: KubeResources, word: str, snapshot: Json, driver: str) -> Cause | None:
    field, resource, annotation = _KINDS[word]
    named = optional_text(snapshot, "spec", field)
    if named is None:
        return _of_default(kube, resource, annotation, driver)
    found = find(kube, resource, named)
    if found is None:
        known = map(objects.name_of, quiet_list(lambda: kube.list(resource)))
        return Cause(
            "class-missing",
            f'{resource.kind} "{named}" does not exist.{nearest(named, known)}',
            "Create the class, or create the snapshot again with a class that exists.",
        )
    if driver and text(found, "driver") != driver:
        return Cause(
            "class-of-another-driver",
            f'{resource.kind} "{named}" is for driver {text(found, "driver")}, but the volume '
            f"belongs to driver {driver}.",
            "Create the snapshot again with a class that is for the volume's driver.",
            templates=(f"kubectl get {resource.kind.lower()}", DESCRIBE),
        )
    return None


def _of_default(
    kube: KubeResources, resource: Resource, annotation: str, driver: str
) -> Cause | None:
    classes = objects.default_classes(kube.list(resource), annotation, driver)
    defaults = [objects.name_of(one) for one in classes]
    for_driver = f" for driver {driver}" if driver else ""
    templates = (f"kubectl get {resource.kind.lower()} -o yaml", DESCRIBE)
    if not defaults:
        return Cause(
            "no-class",
            f"The snapshot names no {resource.kind}, and the cluster has no default "
            f"class{for_driver}.",
            f"Create the snapshot again with a class, or mark one class as the default "
            f"({annotation}=true).",
            templates=templates,
        )
    if len(defaults) > 1 and driver:
        return Cause(
            "class-invalid",
            f"The snapshot names no {resource.kind}, and the cluster has several default "
            f"classes{for_driver}: {', '.join(sorted(defaults))}.",
            "Remove the default annotation from all but one class.",
            templates=templates,
        )
    return None


def find(
    kube: KubeResources, resource: Resource, name: str, namespace: str = ""
) -> JsonObject | None:
    """Return an object; None if it does not exist, or if `name` is ""."""
    try:
        return kube.get(resource, name, namespace=namespace) if name else None
    except NotFoundError:
        return None
