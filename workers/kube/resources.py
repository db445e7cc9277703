"""Typed calls that change API objects; calls that only read are in `reading`.

Each call is one request. The errors are those of workers.kube.errors; a missing object raises
NotFoundError with the message that client-go prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.kube import finalizers, paths
from workers.kube.client import MERGE_PATCH, STRATEGIC_PATCH
from workers.kube.errors import ConflictError, InvalidError, NotFoundError
from workers.kube.reading import KubeReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.client import KubeClient
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource


class KubeResources(KubeReader):
    """Reads and writes objects by name; one instance per process, thread-safe."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client)
        self.client = client

    # Any kind.

    def create(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """Create an object with a POST, in the namespace that the object's metadata names."""
        namespace = item["metadata"].get("namespace", "")
        return self.client.create(resource.path(namespace=namespace), dict(item))

    def update(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """Replace an object with a PUT, conditional on its resourceVersion."""
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
        """Delete an object; if `uid` is given, only if the object has that UID."""
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
        """Apply a merge patch to an object that was read before; return the patched object.

        Args:
            resource: the kind of the object.
            item: the object as it was read.
            change: the merge patch; None removes a member.
            status: whether to patch the status subresource.
            is_exact: whether to fail if the object has changed since it was read.

        Raises:
            ConflictError: the object with that name has a different UID, or `is_exact` is set and
                the object has changed.
        """
        metadata = item["metadata"]
        known: dict[str, str] = {}
        if metadata.get("uid"):
            known["uid"] = metadata["uid"]
        if is_exact:
            known["resourceVersion"] = metadata["resourceVersion"]
        body = {**change, "metadata": {**(change.get("metadata") or {}), **known}}
        return self._patch_this(_path_of(resource, item), body, MERGE_PATCH, status=status)

    def add_finalizer(
        self, resource: Resource, item: Mapping[str, Any], finalizer: str
    ) -> JsonObject:
        """Add a finalizer to a built-in object, even if the object has changed since it was read.

        Raises:
            ConflictError: the object with that name now has a different UID.
        """
        patch = finalizers.add_patch(finalizer, item["metadata"]["uid"])
        return self._patch_this(_path_of(resource, item), patch)

    def remove_finalizer(
        self, resource: Resource, item: Mapping[str, Any], finalizer: str
    ) -> JsonObject:
        """Remove a finalizer; otherwise like `add_finalizer`."""
        patch = finalizers.remove_patch(finalizer, item["metadata"]["uid"])
        return self._patch_this(_path_of(resource, item), patch)

    # Claims.

    def update_claim(self, claim: Mapping[str, Any]) -> JsonObject:
        """Replace a claim with a PUT, conditional on its resourceVersion."""
        return self.update(paths.CLAIMS, claim)

    # Volumes.

    def create_volume(self, volume: Mapping[str, Any]) -> JsonObject:
        """Create a PersistentVolume."""
        return self.create(paths.VOLUMES, volume)

    def delete_volume(self, name: str, *, uid: str | None = None) -> JsonObject:
        """Delete a PersistentVolume; return it if finalizers keep it."""
        return self.delete(paths.VOLUMES, name, uid=uid)

    def add_volume_finalizer(self, name: str, finalizer: str, *, uid: str) -> JsonObject:
        """Add a finalizer to a PersistentVolume and keep all others; idempotent (L-072).

        Raises:
            ConflictError: the volume with that name now has a different UID.
        """
        return self._patch_this(paths.VOLUMES.path(name), finalizers.add_patch(finalizer, uid))

    def remove_volume_finalizer(self, name: str, finalizer: str, *, uid: str) -> JsonObject:
        """Remove a finalizer from a PersistentVolume and keep all others; idempotent (L-072).

        Raises:
            ConflictError: the volume with that name now has a different UID.
        """
        return self._patch_this(paths.VOLUMES.path(name), finalizers.remove_patch(finalizer, uid))

    def _patch_this(
        self,
        path: str,
        patch: Mapping[str, Any],
        content_type: str = STRATEGIC_PATCH,
        *,
        status: bool = False,
    ) -> JsonObject:
        """Patch the object that has the UID in `patch`.

        Raises:
            ConflictError: the object with that name has a different UID; the server returns
                Invalid.
        """
        try:
            return self.client.patch(path + "/status" * status, patch, content_type)
        except InvalidError as error:
            if "metadata.uid" not in error.message:
                raise
            resource, _, name = path.rpartition("/")
            message = f'{resource.rpartition("/")[2]} "{name}" is another one by now'
            raise ConflictError(409, "Conflict", message) from error

    # Snapshots.

    def update_snapshot(self, snapshot: Mapping[str, Any]) -> JsonObject:
        """Replace a VolumeSnapshot with a PUT, conditional on its resourceVersion."""
        return self.update(paths.SNAPSHOTS, snapshot)

    # Objects in csi-fleet's own namespace.

    def apply_config_map(self, config_map: Mapping[str, Any]) -> JsonObject:
        """Create a ConfigMap, or merge data and labels into the existing one; idempotent."""
        metadata = config_map["metadata"]
        path = paths.CONFIG_MAPS.path(metadata["name"], namespace=metadata["namespace"])
        try:
            return self.client.patch(path, dict(config_map), MERGE_PATCH)
        except NotFoundError:
            return self.create(paths.CONFIG_MAPS, config_map)

    def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap; do nothing if it does not exist."""
        try:
            self.delete(paths.CONFIG_MAPS, name, namespace=namespace)
        except NotFoundError:
            return


def _path_of(resource: Resource, item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    return resource.path(metadata["name"], namespace=metadata.get("namespace", ""))
