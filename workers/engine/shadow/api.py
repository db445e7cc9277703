"""An API client that reads from the API server and never writes to it.

A write is applied to the reconcile's own view, and its response is built from this view, so that
the reconcile runs to its end. Later reads in the same reconcile see the write. Writes to compared
resources are also recorded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.engine.shadow.recording import Views
from workers.kube.client import JSON, KubeClient
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from workers.kube.patching import patched

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.engine.shadow.recording import View
    from workers.kube.objects import JsonObject

COMPARED: Final = frozenset(
    {
        "persistentvolumes",
        "persistentvolumeclaims",
        "volumeattachments",
        "volumesnapshots",
        "volumesnapshotcontents",
        "volumegroupsnapshots",
        "volumegroupsnapshotcontents",
    }
)
"""Resources that sidecars write for others to read. Writes to csi-fleet's own records, events and
Leases are dropped without being compared.
"""


# API groups whose POST requests change nothing: they only ask who the user is, or what the user may
# do.
_REVIEWS: Final = ("/apis/authentication.k8s.io/", "/apis/authorization.k8s.io/")


class ShadowApi(KubeClient):
    """A KubeClient whose writes never leave the process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.views = Views()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Send a read, or serve it from this reconcile's own writes; never send a write."""
        if path.startswith(_REVIEWS):
            return super().request(method, path, query=query, body=body)
        if method != "GET":
            return msgspec.json.encode(self._pretend(method, path, body, content_type))
        view = self.views.current()
        if view is not None and path in view.objects:
            found = view.objects[path]
            if found is None:
                raise NotFoundError(404, "NotFound", f'"{_name(path)}" not found')
            return msgspec.json.encode(found)
        return super().request(
            method, path, query=query, accept=accept, timeout_seconds=timeout_seconds
        )

    def _pretend(self, method: str, path: str, body: Any, content_type: str) -> Any:
        view = self.views.current()
        if view is None or _plural(path, is_collection=method == "POST") not in COMPARED:
            return body if isinstance(body, dict) else {}
        if method == "POST":
            return self._create(view, path, body)
        is_status, path = path.endswith("/status"), path.removesuffix("/status")
        before = self._now(path)
        if method == "DELETE":
            return self._delete(view, path, before, body or {})
        if method == "PATCH":
            after = patched(before, body, content_type)
        else:
            after = {**before, **body}
            after["metadata"] = {**body["metadata"], "uid": before["metadata"].get("uid")}
        _check_version(before, after)
        if is_status:
            # A claim's status subresource also accepts changes to the metadata.
            whose = after if "/persistentvolumeclaims/" in path else before
            after = {**before, "metadata": whose["metadata"], "status": after.get("status")}
        elif "status" in before:
            after = {**after, "status": before["status"]}
        is_freed = after["metadata"].get("deletionTimestamp") and not after["metadata"].get(
            "finalizers"
        )
        view.objects[path] = None if is_freed else after
        self.views.wrote(view, path, before)
        return after

    def _create(self, view: View, path: str, body: JsonObject) -> JsonObject:
        metadata = body["metadata"]
        name = metadata.get("name") or f"{metadata.get('generateName', '')}shadow"
        place = f"{path}/{name}"
        try:
            self._now(place)
        except NotFoundError:
            pass
        else:
            raise AlreadyExistsError(409, "AlreadyExists", f'"{name}" already exists')
        fresh = json.loads(json.dumps(body))
        fresh["metadata"] |= {"name": name, "uid": f"shadow-{name}", "resourceVersion": "0"}
        view.objects[place] = fresh
        self.views.wrote(view, place, None)
        return dict(fresh)

    def _delete(
        self, view: View, path: str, before: JsonObject, options: Mapping[str, Any]
    ) -> JsonObject:
        known, wanted = before["metadata"], options.get("preconditions") or {}
        if any(known.get(name) != value for name, value in wanted.items()):
            raise ConflictError(409, "Conflict", "the precondition does not hold")
        after = None
        if known.get("finalizers"):
            marked = known.get("deletionTimestamp") or "1970-01-01T00:00:00Z"
            after = {**before, "metadata": {**known, "deletionTimestamp": marked}}
        view.objects[path] = after
        self.views.wrote(view, path, before)
        return after or before

    def _now(self, path: str) -> JsonObject:
        """Return the object as this reconcile sees it.

        Raises:
            NotFoundError: the object does not exist.
        """
        return self.get(path)


def _check_version(before: JsonObject, after: JsonObject) -> None:
    known, wanted = (one["metadata"].get("resourceVersion") for one in (before, after))
    if wanted not in {None, known}:
        raise ConflictError(409, "Conflict", "the object has been modified")


def _plural(path: str, *, is_collection: bool) -> str:
    parts = path.removesuffix("/status").rsplit("/", 2)
    return parts[-1] if is_collection else parts[-2]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
