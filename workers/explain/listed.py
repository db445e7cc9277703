"""Reads each object from the API server only once, so that thousands can be explained.

Once a kind has been listed, its objects are looked up in that list. Objects of other kinds (a Node,
a Secret) are read on first use and cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import NotFoundError, Unreachable
from workers.kube.reading import KubeReader, mounted_claims

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.kube.resources import KubeResources


class Listed(KubeReader):
    """A caching reader. It never refreshes its cache, so it is used for a single command.

    Args:
        kube: the client that reads from the API server.
        namespace: the only namespace to list; "" for all.
    """

    def __init__(self, kube: KubeResources, namespace: str = "") -> None:
        super().__init__(kube.client)
        self._kube = kube
        self._namespace = namespace
        self._lists: dict[Resource, dict[tuple[str, str], JsonObject]] = {}
        self._kept: dict[str, JsonObject | ApiError] = {}
        self._pods: dict[tuple[str, str], list[JsonObject]] | None = None
        self._warnings: dict[str, list[JsonObject]] | None = None
        self.missed: dict[str, str] = {}

    def all(self, resource: Resource) -> Collection[JsonObject]:
        """List a kind once; return nothing if that is impossible (see `missed`).

        Listing is impossible if the kind is not served or the user is not allowed to list it.
        """
        if (known := self._lists.get(resource)) is not None:
            return known.values()
        namespace = self._namespace if resource.namespaced else ""
        try:
            items = list(self._kube.list(resource, namespace=namespace))
        except Unreachable:
            raise
        except ApiError as error:
            if not isinstance(error, NotFoundError):
                self.missed[resource.plural] = str(error)
            return ()
        found = self._lists[resource] = _by_name(items)
        return found.values()

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        """Return one object, from the cached list of its kind if there is one."""
        known = self._lists.get(resource)
        is_covered = not resource.namespaced or self._namespace in {"", namespace}
        if known is not None and is_covered:
            if (item := known.get((namespace, name))) is None:
                raise NotFoundError(404, "NotFound", f'{resource.plural} "{name}" not found')
            return item
        path = resource.path(name, namespace=namespace)
        if path not in self._kept:
            try:
                self._kept[path] = self._kube.get(resource, name, namespace=namespace)
            except ApiError as error:
                self._kept[path] = error
        found = self._kept[path]
        if isinstance(found, ApiError):
            raise found
        return found

    def list(
        self, resource: Resource, *, namespace: str = "", **query: str
    ) -> Iterator[JsonObject]:
        """Yield objects; a whole kind is listed once and then cached."""
        path = resource.path()
        if query or namespace or (resource.namespaced and resource not in self._lists):
            return self._kube.list(resource, namespace=namespace, **query)
        if resource not in self._lists and path not in self._kept:
            try:
                self._lists[resource] = _by_name(self._kube.list(resource))
            except ApiError as error:
                self._kept[path] = error
        if isinstance(failed := self._kept.get(path), ApiError):
            raise failed
        return iter(self._lists[resource].values())

    def list_pods_using(self, namespace: str, claim_name: str) -> Iterator[JsonObject]:
        """Yield the pods that mount a claim."""
        if self._pods is None:
            self._pods = {}
            for pod in self._kube.list(paths.PODS, namespace=self._namespace):
                for name in mounted_claims(pod):
                    place = pod["metadata"]["namespace"], name
                    self._pods.setdefault(place, []).append(pod)
        return iter(self._pods.get((namespace, claim_name), ()))

    def list_warnings(self, namespace: str, uid: str) -> Iterator[JsonObject]:
        """Yield the Warning events about one object."""
        del namespace
        if self._warnings is None:
            self._warnings = {}
            found = self._kube.list(
                paths.EVENTS, namespace=self._namespace, fieldSelector="type=Warning"
            )
            for event in found:
                about = (event.get("involvedObject") or {}).get("uid") or ""
                self._warnings.setdefault(about, []).append(event)
        return iter(self._warnings.get(uid, ()))


def _by_name(items: Iterable[JsonObject]) -> dict[tuple[str, str], JsonObject]:
    """Return the objects of one kind by namespace ("" for none) and name."""
    return {(one["metadata"].get("namespace") or "", one["metadata"]["name"]): one for one in items}
