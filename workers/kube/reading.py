"""Reads objects from the API server, and never changes them.

A reconcile gets only this class, as `context.kube`; its writes go through `context.effects.kube`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from workers.kube import paths
from workers.kube.errors import NotFoundError, error_from_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from workers.kube.client import RawStream
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

_PAGE_SIZE: Final = 500
# A recent event may reach the API server's cache up to a second late.
PAST_SECONDS: Final = 1
_PAST_READ_SECONDS: Final = 10.0


class Getter(Protocol):
    """The methods of a KubeClient that read."""

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> JsonObject:
        """Read one object or one page of a list; see `KubeClient`."""

    def watch_raw(
        self,
        path: str,
        query: Mapping[str, Any],
        *,
        read_timeout_seconds: float,
    ) -> RawStream:
        """Open a watch; see `KubeClient`."""


class _Search:
    """One caller's search in a list that several callers share."""

    def __init__(self, matches: Callable[[JsonObject], bool]) -> None:
        self._matches = matches
        self.found: Future[JsonObject | None] = Future()

    def ends_with(self, item: JsonObject) -> bool:
        """Return True if the caller is looking for this object, or if its function failed."""
        try:
            if not self._matches(item):
                return False
            self.found.set_result(item)
        except BaseException as error:  # noqa: BLE001 - it reaches the caller
            self.found.set_exception(error)
        return True


class KubeReader:
    """Reads objects by name; one instance per process, thread-safe.

    Each read is live: it sends no resourceVersion, so the API server reads from etcd.
    """

    def __init__(self, client: Getter) -> None:
        self._getter = client
        self._lock = threading.Lock()
        self._next_lists: dict[Resource, list[_Search]] = {}
        self._turns: defaultdict[Resource, threading.Lock] = defaultdict(threading.Lock)

    # Any kind.

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        """Read one object.

        Args:
            resource: the kind of the object.
            name: the name of the object.
            namespace: the namespace of the object; "" for a cluster-scoped kind.
        """
        return self._getter.get(resource.path(name, namespace=namespace))

    def is_gone(self, resource: Resource, name: str, uid: str, *, namespace: str = "") -> bool:
        """Return True if the object with this UID no longer exists."""
        try:
            found = self.get(resource, name, namespace=namespace)
        except NotFoundError as error:
            return error.is_about(name)
        return bool(found["metadata"]["uid"] != uid)

    def past(
        self, resource: Resource, name: str, *, namespace: str = "", since: int
    ) -> Iterator[tuple[str, JsonObject]]:
        """Yield the type and the object of each past watch event about one object.

        The events begin after the resourceVersion `since`. The API server keeps the events of the
        last minute or more. It ends the response after `PAST_SECONDS`; a caller may stop earlier.

        Raises:
            GoneError: the API server no longer has events that old.
        """
        query = {
            "watch": "1",
            "resourceVersion": str(since),
            "fieldSelector": f"metadata.name={name}",
            "timeoutSeconds": PAST_SECONDS,
        }
        path = resource.path(namespace=namespace)
        stream = self._getter.watch_raw(path, query, read_timeout_seconds=_PAST_READ_SECONDS)
        try:
            for line in stream.lines():
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    raise error_from_status(event["object"])
                yield event["type"], event["object"]
        finally:
            stream.close()

    def list(
        self, resource: Resource, *, namespace: str = "", **query: str
    ) -> Iterator[JsonObject]:
        """Yield all objects page by page; keyword arguments are query parameters.

        The items of a LIST response have no kind and apiVersion, so these are added to each object.
        """
        parameters: dict[str, Any] = {"limit": _PAGE_SIZE, **query}
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        while True:
            page = self._getter.get(resource.path(namespace=namespace), parameters)
            for item in page.get("items") or ():
                yield {**identity, **item}
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            parameters["continue"] = token

    def find_together(
        self, resource: Resource, matches: Callable[[JsonObject], bool]
    ) -> JsonObject | None:
        """Return an object of the kind for which `matches` is true; None if there is none.

        The search uses a list that begins after this call. Callers that come while a list is
        running share the next one. A driver with unusable responses needs such a list for each
        claim; 77 claims with a list each made other drivers' claims five times slower
        (`tests/bench/hostile_driver.py`). Only one page of the list is in memory at a time, so
        `matches` is called in the thread of the caller that reads the list.
        """
        search = _Search(matches)
        with self._lock:
            searches = self._next_lists.get(resource)
            is_first = searches is None
            if searches is None:
                searches = self._next_lists[resource] = []
            searches.append(search)
            turn = self._turns[resource]
        if is_first:
            with turn:
                with self._lock:
                    del self._next_lists[resource]
                self._search(resource, searches)
        return search.found.result()

    def _search(self, resource: Resource, searches: Sequence[_Search]) -> None:
        try:
            for item in self.list(resource):
                searches = [one for one in searches if not one.ends_with(item)]
                if not searches:
                    return
        except BaseException as error:  # noqa: BLE001 - it reaches every caller
            for one in searches:
                one.found.set_exception(error)
        else:
            for one in searches:
                one.found.set_result(None)

    # Claims.

    def get_claim(self, namespace: str, name: str) -> JsonObject:
        """Read a PersistentVolumeClaim."""
        return self.get(paths.CLAIMS, name, namespace=namespace)

    def list_claims(self, namespace: str = "") -> Iterator[JsonObject]:
        """Yield the claims of the namespace; if `namespace` is "", those of all namespaces."""
        return self.list(paths.CLAIMS, namespace=namespace)

    # Volumes.

    def get_volume(self, name: str) -> JsonObject:
        """Read a PersistentVolume live."""
        return self.get(paths.VOLUMES, name)

    # Objects that a CSI request is built from.

    def get_class(self, name: str) -> JsonObject:
        """Read a StorageClass live."""
        return self.get(paths.STORAGE_CLASSES, name)

    def get_secret(self, namespace: str, name: str) -> JsonObject:
        """Read a Secret; the values in `data` remain base64-encoded. Never log the result."""
        return self.get(paths.SECRETS, name, namespace=namespace)

    def get_attributes_class(self, name: str, *, version: str = "v1") -> JsonObject:
        """Read a VolumeAttributesClass in the served version."""
        return self.get(paths.ATTRIBUTES_CLASSES.at(version), name)

    def get_snapshot(self, namespace: str, name: str) -> JsonObject:
        """Read a VolumeSnapshot live."""
        return self.get(paths.SNAPSHOTS, name, namespace=namespace)

    def list_snapshots(self, namespace: str = "") -> Iterator[JsonObject]:
        """Yield the VolumeSnapshots of `namespace`; if it is "", those of all namespaces."""
        return self.list(paths.SNAPSHOTS, namespace=namespace)

    def get_snapshot_content(self, name: str) -> JsonObject:
        """Read a VolumeSnapshotContent live."""
        return self.get(paths.SNAPSHOT_CONTENTS, name)

    def list_reference_grants(self, namespace: str) -> Iterator[JsonObject]:
        """Yield the ReferenceGrants of one namespace."""
        return self.list(paths.REFERENCE_GRANTS, namespace=namespace)

    def list_attachments(self) -> Iterator[JsonObject]:
        """Yield all VolumeAttachments; prefer the shared cache, which indexes them by volume."""
        return self.list(paths.ATTACHMENTS)

    def get_node(self, name: str) -> JsonObject:
        """Read a Node live."""
        return self.get(paths.NODES, name)

    def get_csi_node(self, name: str) -> JsonObject:
        """Read a CSINode live."""
        return self.get(paths.CSI_NODES, name)

    # Objects that explain why another object is waiting.

    def list_pods_using(self, namespace: str, claim_name: str) -> Iterator[JsonObject]:
        """Yield the pods that mount a claim, including claims of generic ephemeral volumes."""
        return (
            pod
            for pod in self.list(paths.PODS, namespace=namespace)
            if claim_name in mounted_claims(pod)
        )

    def list_warnings(self, namespace: str, uid: str) -> Iterator[JsonObject]:
        """Yield the Warning events about one object."""
        selector = f"involvedObject.uid={uid},type=Warning"
        return self.list(paths.EVENTS, namespace=namespace, fieldSelector=selector)

    # Objects in csi-fleet's own namespace.

    def list_config_maps(self, namespace: str, label_selector: str) -> Iterator[JsonObject]:
        """Yield the ConfigMaps that a label selector matches."""
        return self.list(paths.CONFIG_MAPS, namespace=namespace, labelSelector=label_selector)

    def has_config_map(self, namespace: str, name: str) -> bool:
        """Return True if a ConfigMap exists; the watcher can LIST but not GET ConfigMaps."""
        selector = f"metadata.name={name}"
        found = self.list(paths.CONFIG_MAPS, namespace=namespace, fieldSelector=selector)
        return next(found, None) is not None

    # Discovery.

    def served_versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of a group that the API server serves; () if it has no such group.

        A version may not have all kinds of the group.
        """
        try:
            answer = self._getter.get(f"/apis/{group}")
        except NotFoundError:
            return ()
        return tuple(entry["version"] for entry in answer.get("versions") or ())

    def served_kinds(self, group: str, version: str) -> dict[str, JsonObject]:
        """Return each kind's APIResource in a group version; {} if the version is not served."""
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            answer = self._getter.get(root)
        except NotFoundError:
            return {}
        resources = answer.get("resources") or ()
        return {item["kind"]: item for item in resources if "/" not in item["name"]}

    def is_served(self, resource: Resource) -> bool:
        """Return True if the API serves this kind in this version; core kinds always are."""
        return not resource.group or resource.kind in self.served_kinds(
            resource.group, resource.version
        )

    def get_by_kind(self, api_version: str, kind: str, namespace: str, name: str) -> JsonObject:
        """Read an object by apiVersion and kind, such as an owner, by discovering its API path.

        Raises:
            NotFoundError: there is no such object, or the kind is not served.
        """
        group, _, version = api_version.rpartition("/")
        found = self.served_kinds(group, version).get(kind)
        if found is None:
            message = f'no matches for kind "{kind}" in version "{api_version}"'
            raise NotFoundError(404, "NotFound", message)
        namespaced = bool(found.get("namespaced"))
        resource = paths.Resource(group, version, found["name"], kind, namespaced)
        return self.get(resource, name, namespace=namespace if namespaced else "")


def mounted_claims(pod: Mapping[str, Any]) -> set[str]:
    """Return the names of the claims that a pod mounts."""
    found = set()
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if volume.get("ephemeral"):
            found.add(f"{pod['metadata']['name']}-{volume['name']}")
        found.add((volume.get("persistentVolumeClaim") or {}).get("claimName") or "")
    return found - {""}
