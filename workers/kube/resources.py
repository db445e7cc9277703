"""Typed calls for the kinds the provisioner reads and writes.

Each call is one request. Errors are those of workers.kube.errors; a missing object raises
NotFoundError with the text client-go prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.kube import finalizers, paths
from workers.kube.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from workers.kube.errors import ConflictError, InvalidError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workers.kube.client import KubeClient
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

_PAGE_SIZE: Final = 500


class KubeResources:
    """The API server's objects by name; one per process, safe for threads."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client

    # Any kind.

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        """Read one object live."""
        return self.client.get(resource.path(name, namespace=namespace))

    def list(
        self, resource: Resource, *, namespace: str = "", **query: str
    ) -> Iterator[JsonObject]:
        """Yield all objects page by page; keywords are query parameters, e.g. labelSelector.

        Items of a list carry no kind and apiVersion; they are filled in here.
        """
        parameters: dict[str, Any] = {"limit": _PAGE_SIZE, **query}
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        while True:
            page = self.client.get(resource.path(namespace=namespace), parameters)
            for item in page.get("items") or ():
                yield {**identity, **item}
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            parameters["continue"] = token

    def create(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """POST an object; its metadata names the namespace."""
        namespace = item["metadata"].get("namespace", "")
        return self.client.create(resource.path(namespace=namespace), dict(item))

    def update(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """PUT an object; its resourceVersion is the precondition."""
        return self.client.update(_path_of(resource, item), dict(item))

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> JsonObject:
        """Delete an object, only this one if `uid` is given."""
        path = resource.path(name, namespace=namespace)
        return self.client.delete(path, uid=uid, resource_version=resource_version)

    def merge(
        self,
        resource: Resource,
        item: Mapping[str, Any],
        change: Mapping[str, Any],
        *,
        status: bool = False,
        is_exact: bool = False,
    ) -> JsonObject:
        """Apply a merge patch to an object that was read; returns it as it is now.

        Args:
            resource: its kind.
            item: the object as read.
            change: what to merge in; None removes a member.
            status: patch the status subresource.
            is_exact: only if nobody wrote it since it was read.

        Raises:
            ConflictError: with `is_exact`, or when the object is another one of that name by now.
        """
        metadata = item["metadata"]
        known: dict[str, str] = {}
        if metadata.get("uid"):
            known["uid"] = metadata["uid"]
        if is_exact:
            known["resourceVersion"] = metadata["resourceVersion"]
        body = {**change, "metadata": {**(change.get("metadata") or {}), **known}}
        path = _path_of(resource, item) + ("/status" if status else "")
        return self.client.patch(path, body, MERGE_PATCH)

    # Claims.

    def get_claim(self, namespace: str, name: str) -> JsonObject:
        """Read a PersistentVolumeClaim live."""
        return self.get(paths.CLAIMS, name, namespace=namespace)

    def update_claim(self, claim: Mapping[str, Any]) -> JsonObject:
        """PUT a claim with its resourceVersion as precondition."""
        return self.update(paths.CLAIMS, claim)

    def list_claims(self, namespace: str = "") -> Iterator[JsonObject]:
        """Yield the claims of one namespace, or of all."""
        return self.list(paths.CLAIMS, namespace=namespace)

    # Volumes.

    def get_volume(self, name: str) -> JsonObject:
        """Read a PersistentVolume live."""
        return self.get(paths.VOLUMES, name)

    def create_volume(self, volume: Mapping[str, Any]) -> JsonObject:
        """Save a new PersistentVolume."""
        return self.create(paths.VOLUMES, volume)

    def delete_volume(self, name: str, *, uid: str | None = None) -> JsonObject:
        """Delete a PersistentVolume; returns it as it is now if finalizers hold it."""
        return self.delete(paths.VOLUMES, name, uid=uid)

    def patch_volume(
        self, name: str, patch: Any, content_type: str = STRATEGIC_PATCH
    ) -> JsonObject:
        """Patch a PersistentVolume; returns it as it is now."""
        return self.client.patch(paths.VOLUMES.path(name), patch, content_type)

    def add_volume_finalizer(self, name: str, finalizer: str, *, uid: str) -> JsonObject:
        """Add a finalizer, leaving others untouched; safe to call twice (L-072).

        Raises:
            ConflictError: the volume of that name is another one by now.
        """
        return self._patch_this(name, finalizers.add_patch(finalizer, uid))

    def remove_volume_finalizer(self, name: str, finalizer: str, *, uid: str) -> JsonObject:
        """Remove a finalizer, leaving others untouched; safe to call twice (L-072).

        Raises:
            ConflictError: the volume of that name is another one by now.
        """
        return self._patch_this(name, finalizers.remove_patch(finalizer, uid))

    def _patch_this(self, name: str, patch: Mapping[str, Any]) -> JsonObject:
        """Patch a volume by its UID; the server calls another one's Invalid: it is immutable."""
        try:
            return self.patch_volume(name, patch)
        except InvalidError as error:
            if "metadata.uid" not in error.message:
                raise
            message = f'persistentvolumes "{name}" is another one by now'
            raise ConflictError(409, "Conflict", message) from error

    # What a request is made of.

    def get_class(self, name: str) -> JsonObject:
        """Read a StorageClass live."""
        return self.get(paths.STORAGE_CLASSES, name)

    def get_secret(self, namespace: str, name: str) -> JsonObject:
        """Read a Secret; the values stay base64 in `data`. Never log the result."""
        return self.get(paths.SECRETS, name, namespace=namespace)

    def get_attributes_class(self, name: str, *, version: str = "v1") -> JsonObject:
        """Read a VolumeAttributesClass in the served version."""
        return self.get(paths.ATTRIBUTES_CLASSES.at(version), name)

    def get_snapshot(self, namespace: str, name: str) -> JsonObject:
        """Read a VolumeSnapshot live."""
        return self.get(paths.SNAPSHOTS, name, namespace=namespace)

    def update_snapshot(self, snapshot: Mapping[str, Any]) -> JsonObject:
        """PUT a VolumeSnapshot with its resourceVersion as precondition."""
        return self.update(paths.SNAPSHOTS, snapshot)

    def list_snapshots(self, namespace: str = "") -> Iterator[JsonObject]:
        """Yield VolumeSnapshots."""
        return self.list(paths.SNAPSHOTS, namespace=namespace)

    def get_snapshot_content(self, name: str) -> JsonObject:
        """Read a VolumeSnapshotContent live."""
        return self.get(paths.SNAPSHOT_CONTENTS, name)

    def list_reference_grants(self, namespace: str) -> Iterator[JsonObject]:
        """Yield the ReferenceGrants of one namespace."""
        return self.list(paths.REFERENCE_GRANTS, namespace=namespace)

    def list_attachments(self) -> Iterator[JsonObject]:
        """Yield all VolumeAttachments; the catalog has them by volume, prefer that."""
        return self.list(paths.ATTACHMENTS)

    def get_node(self, name: str) -> JsonObject:
        """Read a Node live."""
        return self.get(paths.NODES, name)

    def get_csi_node(self, name: str) -> JsonObject:
        """Read a CSINode live."""
        return self.get(paths.CSI_NODES, name)

    # The system's own namespace.

    def list_config_maps(self, namespace: str, label_selector: str) -> Iterator[JsonObject]:
        """Yield ConfigMaps by label."""
        return self.list(paths.CONFIG_MAPS, namespace=namespace, labelSelector=label_selector)

    def apply_config_map(self, config_map: Mapping[str, Any]) -> JsonObject:
        """Create a ConfigMap or replace its data and labels; safe to call twice."""
        metadata = config_map["metadata"]
        path = paths.CONFIG_MAPS.path(metadata["name"], namespace=metadata["namespace"])
        try:
            return self.client.patch(path, dict(config_map), MERGE_PATCH)
        except NotFoundError:
            return self.create(paths.CONFIG_MAPS, config_map)

    def has_config_map(self, namespace: str, name: str) -> bool:
        """Tell whether a ConfigMap exists now."""
        try:
            self.get(paths.CONFIG_MAPS, name, namespace=namespace)
        except NotFoundError:
            return False
        return True

    def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap; an absent one is fine."""
        try:
            self.delete(paths.CONFIG_MAPS, name, namespace=namespace)
        except NotFoundError:
            return

    # Capacities and leases (version: v1, or v1beta1 where v1 is not served, CAP-002).

    def patch_json(self, resource: Resource, name: str, namespace: str, patch: Any) -> JsonObject:
        """Apply a JSON patch (a list of operations, `test` as precondition)."""
        path = resource.path(name, namespace=namespace)
        return self.client.patch(path, patch, JSON_PATCH)

    # Discovery.

    def served_kinds(self, group: str, version: str) -> dict[str, JsonObject]:
        """Return kind -> APIResource of one group version; empty if it is not served."""
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            answer = self.client.get(root)
        except NotFoundError:
            return {}
        resources = answer.get("resources") or ()
        return {item["kind"]: item for item in resources if "/" not in item["name"]}

    def is_served(self, resource: Resource) -> bool:
        """Tell whether the API serves this kind in this version."""
        return resource.kind in self.served_kinds(resource.group, resource.version)

    def get_by_kind(self, api_version: str, kind: str, namespace: str, name: str) -> JsonObject:
        """Read any object by apiVersion and kind (owner look-up); discovers its path.

        Raises:
            NotFoundError: no such object, or the kind is not served.
        """
        group, _, version = api_version.rpartition("/")
        found = self.served_kinds(group, version).get(kind)
        if found is None:
            message = f'no matches for kind "{kind}" in version "{api_version}"'
            raise NotFoundError(404, "NotFound", message)
        namespaced = bool(found.get("namespaced"))
        resource = paths.Resource(group, version, found["name"], kind, namespaced)
        return self.get(resource, name, namespace=namespace if namespaced else "")


def _path_of(resource: Resource, item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    return resource.path(metadata["name"], namespace=metadata.get("namespace", ""))
