"""Creates a snapshot and a snapshot content for each member that a group's content lists (SNG-002).

The driver has already taken the members' snapshots; only their objects are created and linked. Each
step leaves existing objects alone, so that an interrupted reconcile can be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers import constants as k
from workers.controllers.snapshot_controller import groupinput as inputs
from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.groupnames import owner_reference
from workers.errors import AttemptError
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError
from workers.kube.merging import difference
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import Json, object_list, optional_text, text, text_map, value_at
from workers.translate.snapshot_secrets import SecretUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.controllers.snapshot_controller.work import ObjectPass
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.translate.secrets import SecretRef


def create_members(work: ObjectPass, content: JsonObject, group_class: Json | None) -> None:
    """Creates and links the members once the group snapshot content's status lists them.

    Raises:
        Refusal: the group's secret cannot be resolved; upstream reports no error (SND-038).
    """
    entries = object_list(content, "status", "volumeSnapshotInfoList")
    if not entries or optional_text(content, "status", "volumeGroupSnapshotHandle") is None:
        return
    try:
        secret = snapshot_secrets.resolve(
            SecretUse.GROUP,
            text_map(group_class or {}, "parameters"),
            objects.name_of(content),
            name=objects.name_of(work.item),
            namespace=objects.namespace_of(work.item),
        )
    except AttemptError as error:
        raise Refusal("GroupSnapshotContentCreationFailed", error.message) from error
    volumes = _volumes_by_handle(work, content, {text(one, "volumeHandle") for one in entries})
    for entry in entries:
        volume = volumes.get(text(entry, "volumeHandle"))
        _create_member(work, content, entry, volume, secret)


def _volumes_by_handle(
    work: ObjectPass, content: Json, handles: set[str]
) -> Mapping[str, JsonObject]:
    """Return the group's volumes by handle.

    Searches all PVs if some handles do not belong to the claims that the selector matches.
    """
    driver = text(content, "spec", "driver")
    try:
        volumes = inputs.volumes_of(work)
    except AttemptError:
        volumes = []
    found = _of_driver(volumes, driver)
    if not handles <= found.keys():
        found = _of_driver(work.context.kube.list(paths.VOLUMES), driver)
    return found


def _of_driver(volumes: Iterable[JsonObject], driver: str) -> dict[str, JsonObject]:
    return {
        text(one, "spec", "csi", "volumeHandle"): one
        for one in volumes
        if value_at(one, "spec", "csi") is not None and text(one, "spec", "csi", "driver") == driver
    }


def _create_member(
    work: ObjectPass,
    group_content: Json,
    entry: Json,
    volume: JsonObject | None,
    secret: SecretRef | None,
) -> None:
    digest = objects.member_digest(objects.uid_of(work.item), text(entry, "volumeHandle"))
    content = _ensure(
        work, paths.SNAPSHOT_CONTENTS, _content(group_content, entry, volume, secret, digest)
    )
    snapshot = _ensure(work, paths.SNAPSHOTS, _snapshot(work, volume, digest))
    uid, name = objects.uid_of(snapshot), objects.name_of(content)
    content = work.write_to(
        paths.SNAPSHOT_CONTENTS,
        content,
        "link-member",
        lambda item: (
            None if objects.ref_uid(item) == uid else {"spec": {"volumeSnapshotRef": {"uid": uid}}}
        ),
    )
    work.write_to(
        paths.SNAPSHOTS,
        snapshot,
        "bind-member",
        lambda item: (
            None
            if objects.bound_content(item)
            else {"status": {"boundVolumeSnapshotContentName": name}}
        ),
        status=True,
    )
    wanted = {
        "snapshotHandle": text(entry, "snapshotHandle"),
        "volumeGroupSnapshotHandle": text(group_content, "status", "volumeGroupSnapshotHandle"),
        "creationTime": value_at(entry, "creationTime"),
        "restoreSize": value_at(entry, "restoreSize"),
        "readyToUse": value_at(entry, "readyToUse"),
    }
    known = {name: value for name, value in wanted.items() if value is not None}

    def fill(item: JsonObject) -> JsonObject | None:
        old = item.get("status") or {}
        change = difference(old, {**old, **known})
        return {"status": change} if change else None

    work.write_to(paths.SNAPSHOT_CONTENTS, content, "fill-member", fill, status=True)


def _ensure(work: ObjectPass, resource: Resource, body: JsonObject) -> JsonObject:
    """Return the object with the body's name; creates it if it does not exist."""
    metadata = body["metadata"]
    found = work.find(resource, metadata["name"], metadata.get("namespace", ""))
    if found is not None:
        return found
    work.reach("create-member")
    try:
        return work.context.effects.kube.create(resource, body)
    except AlreadyExistsError:
        return work.context.kube.get(
            resource, metadata["name"], namespace=metadata.get("namespace", "")
        )


def _content(
    group_content: Json,
    entry: Json,
    volume: JsonObject | None,
    secret: SecretRef | None,
    digest: str,
) -> JsonObject:
    annotations = {
        k.ANN_GROUP_HANDLE: text(group_content, "status", "volumeGroupSnapshotHandle"),
    }
    if secret is not None:
        annotations[k.ANN_SNAPSHOT_SECRET_NAME] = secret.name
        annotations[k.ANN_SNAPSHOT_SECRET_NAMESPACE] = secret.namespace
    spec: JsonObject = {
        "volumeSnapshotRef": {
            "kind": "VolumeSnapshot",
            "name": f"snapshot-{digest}",
            "namespace": text(group_content, "spec", "volumeGroupSnapshotRef", "namespace"),
        },
        "deletionPolicy": text(group_content, "spec", "deletionPolicy"),
        "driver": text(group_content, "spec", "driver"),
        "source": {"volumeHandle": text(entry, "volumeHandle")},
    }
    spec["sourceVolumeMode"] = (
        optional_text(volume, "spec", "volumeMode") if volume is not None else None
    )
    return {
        "apiVersion": paths.SNAPSHOT_CONTENTS.api_version,
        "kind": paths.SNAPSHOT_CONTENTS.kind,
        "metadata": {
            "name": objects.member_content_name(digest),
            "annotations": annotations,
            "finalizers": [k.FINALIZER_CONTENT],
        },
        "spec": spec,
    }


def _snapshot(work: ObjectPass, volume: JsonObject | None, digest: str) -> JsonObject:
    claim = text(volume, "spec", "claimRef", "name") if volume is not None else ""
    return {
        "apiVersion": paths.SNAPSHOTS.api_version,
        "kind": paths.SNAPSHOTS.kind,
        "metadata": {
            "name": f"snapshot-{digest}",
            "namespace": work.namespace,
            "ownerReferences": [owner_reference(work.item)],
            "finalizers": [k.FINALIZER_SNAPSHOT_IN_GROUP],
        },
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    }
