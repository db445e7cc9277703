"""An API server in memory, under the real `KubeResources`: what one reconcile may ask of it.

It keeps what controllers rely on: uid and resourceVersion, finalizers and deletion, the status
subresource, JSON and merge patches with their preconditions. Errors are planned by verb and path:

    api.fail("patch", "volumeattachments/va", ForbiddenError(...))      the next such request
    api.before("patch", "volumeattachments/va", lambda: ...)            something happens first
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from workers.kube.client import JSON_PATCH, STRATEGIC_PATCH
from workers.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
)
from workers.kube.paths import Resource
from workers.kube.resources import KubeResources

JsonObject = dict[str, Any]
DELETED_AT = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Request:
    """One request: verb, path without the API's root (`volumeattachments/va/status`), body."""

    verb: str
    path: str
    body: Any = None


class MemoryApi:
    """Stores objects by path; `requests` lists all requests, `writes` those that change
    something."""

    def __init__(self) -> None:
        self.objects: dict[str, JsonObject] = {}
        self.requests: list[Request] = []
        self.kube = KubeResources(self)  # type: ignore[arg-type]  # a KubeClient by its methods
        self.deleted: list[tuple[str, JsonObject]] = []
        self._planned: list[tuple[str, str, Exception | Callable[[], None]]] = []
        self._version = 100

    # For tests.

    def add(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """Add or replace an object, as another client would; return a copy."""
        metadata = item["metadata"]
        path = resource.path(metadata["name"], namespace=metadata.get("namespace", ""))
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **deepcopy(dict(item))}
        body["metadata"].setdefault("uid", f"uid-{self._version}")
        return self._store(path, body)

    def of(self, resource: Resource, name: str, namespace: str = "") -> JsonObject | None:
        """Return the object as it is now."""
        return deepcopy(self.objects.get(resource.path(name, namespace=namespace)))

    def change(self, resource: Resource, name: str, patch: Any, namespace: str = "") -> JsonObject:
        """Merge a change into an object, as another client would."""
        path = resource.path(name, namespace=namespace)
        return self._store(path, _merged(self.objects[path], patch))

    def mark_deleted(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Delete an object as a client would: at once if it has no finalizers."""
        self._delete(resource.path(name, namespace=namespace))

    def drop(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Remove an object completely, even if it has finalizers."""
        self._end(resource.path(name, namespace=namespace))

    def fail(self, verb: str, path: str, *errors: Exception) -> None:
        """Let the next requests whose path contains `path` fail, one error each."""
        self._planned += [(verb, path, error) for error in errors]

    def before(self, verb: str, path: str, happens: Callable[[], None]) -> None:
        """Run a function just before the next such request."""
        self._planned.append((verb, path, happens))

    @property
    def writes(self) -> list[Request]:
        """Return the requests that change something."""
        return [request for request in self.requests if request.verb not in {"get", "watch"}]

    # The methods that KubeResources calls on its client.

    def get(
        self, path: str, query: Mapping[str, Any] | None = None, *, final: Collection[int] = ()
    ) -> JsonObject:
        """Return one object, or a list in one page."""
        self._reach("get", path)
        if path in self.objects:
            return deepcopy(self.objects[path])
        if _is_collection(path):
            return {"items": [deepcopy(one) for one in self._inside(path, dict(query or {}))]}
        raise self._missing(path)

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """POST."""
        self._reach("create", f"{path}/{body['metadata']['name']}", body)
        place = f"{path}/{body['metadata']['name']}"
        if place in self.objects:
            raise AlreadyExistsError(409, "AlreadyExists", f"{_words(place)} already exists")
        fresh = _without_status(deepcopy(body)) if _has_status_subresource(path) else deepcopy(body)
        fresh["metadata"]["uid"] = f"uid-{self._version}"
        return self._store(place, fresh)

    def update(self, path: str, body: JsonObject) -> JsonObject:
        """PUT."""
        self._reach("update", path, body)
        return self._write(path, deepcopy(body))

    def patch(self, path: str, patch: Any, content_type: str) -> JsonObject:
        """Apply a JSON patch, a merge patch, or a strategic patch that differs from it only for
        finalizers."""
        self._reach("patch", path, patch)
        current = self._at(path)
        if content_type == JSON_PATCH:
            return self._write(path, _json_patched(current, patch), is_patch=True)
        if content_type == STRATEGIC_PATCH:
            patch = _finalizers_merged(current, patch)
        return self._write(path, _merged(current, patch), is_patch=True)

    def delete(
        self, path: str, *, uid: str | None = None, resource_version: str | None = None
    ) -> JsonObject:
        """DELETE with preconditions."""
        self._reach("delete", path)
        metadata = self._at(path)["metadata"]
        if uid not in {None, metadata["uid"]} or (
            resource_version not in {None, metadata["resourceVersion"]}
        ):
            raise ConflictError(409, "Conflict", "the precondition does not hold")
        return self._delete(path)

    def watch_raw(
        self, path: str, query: Mapping[str, Any], *, read_timeout_seconds: float
    ) -> SimpleNamespace:
        """Return the remembered deletions of one object; tests forget them by emptying
        `deleted`."""
        del read_timeout_seconds
        self._reach("watch", path)
        name = query["fieldSelector"].removeprefix("metadata.name=")
        events = [
            msgspec.json.encode({"type": "DELETED", "object": item})
            for place, item in self.deleted
            if (place, item["metadata"]["name"]) == (path, name)
            and int(item["metadata"]["resourceVersion"]) > int(query["resourceVersion"])
        ]
        return SimpleNamespace(lines=lambda: iter(events), close=lambda: None)

    # Internal functions.

    def _reach(self, verb: str, path: str, body: Any = None) -> None:
        self.requests.append(Request(verb, _short(path), deepcopy(body)))
        for planned in list(self._planned):
            if planned[0] == verb and planned[1] in path:
                self._planned.remove(planned)
                if isinstance(planned[2], Exception):
                    raise planned[2]
                planned[2]()

    def _at(self, path: str) -> JsonObject:
        found = self.objects.get(path.removesuffix("/status"))
        if found is None:
            raise self._missing(path.removesuffix("/status"))
        return deepcopy(found)

    def _write(self, path: str, body: JsonObject, *, is_patch: bool = False) -> JsonObject:
        current = self._at(path)
        known, wanted = current["metadata"], body["metadata"]
        if wanted.get("uid", known["uid"]) != known["uid"]:
            raise ConflictError(409, "Conflict", "Precondition failed: UID in precondition")
        version = wanted.get("resourceVersion")
        if version not in {None, known["resourceVersion"]}:
            raise ConflictError(409, "Conflict", "the object has been modified")
        if path.endswith("/status"):
            # A claim's status subresource also accepts changes to the metadata.
            metadata = body["metadata"] if "/persistentvolumeclaims/" in path else known
            body = {**current, "metadata": {**metadata}, "status": body.get("status")}
        elif _has_status_subresource(path):
            kept = {name: value for name, value in current.items() if name == "status"}
            body = _without_status(body) | kept
        if body == current and is_patch:
            return current
        place = path.removesuffix("/status")
        stored = self._store(place, body)
        metadata = stored["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            del self.objects[place]
        return stored

    def _delete(self, path: str) -> JsonObject:
        found = self._at(path)
        if not found["metadata"].get("finalizers"):
            return self._end(path)
        found["metadata"].setdefault("deletionTimestamp", DELETED_AT)
        return self._store(path, found)

    def _end(self, path: str) -> JsonObject:
        self._version += 1
        found = self.objects.pop(path)
        last = deepcopy(found)
        last["metadata"]["resourceVersion"] = str(self._version)
        self.deleted.append((path.rpartition("/")[0], last))
        return found

    def _store(self, path: str, body: JsonObject) -> JsonObject:
        self._version += 1
        stored = deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = stored
        return deepcopy(stored)

    def _inside(self, path: str, query: Mapping[str, Any]) -> list[JsonObject]:
        root, _, inner = path.partition("/namespaces/")
        namespace, plural = inner.partition("/")[0], path.rpartition("/")[2]
        root = root.removesuffix(f"/{plural}")
        wanted = [one for one in str(query.get("labelSelector", "")).split(",") if one]
        # Only this field is ever selected here; a selector for any other field matches every
        # object.
        field, _, name = str(query.get("fieldSelector", "")).partition("=")
        name = name if field == "metadata.name" else ""
        return [
            item
            for place, item in self.objects.items()
            if place.startswith(root + "/")
            and place.split("/")[-2] == plural
            and namespace in {"", item["metadata"].get("namespace", "")}
            and name in {"", item["metadata"]["name"]}
            and _has_labels(item["metadata"].get("labels") or {}, wanted)
        ]

    @staticmethod
    def _missing(path: str) -> NotFoundError:
        return NotFoundError(404, "NotFound", f"{_words(path)} not found")


def _has_labels(labels: Mapping[str, str], wanted: list[str]) -> bool:
    """Return True if the labels match a selector with `name=value` and `name` terms."""
    return all(one in {*labels, *(f"{name}={labels[name]}" for name in labels)} for one in wanted)


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    return len(parts) in ({1, 3} if parts[0] == "namespaces" else {1})


def _short(path: str) -> str:
    parts = path.strip("/").split("/")
    return "/".join(parts[3:] if parts[0] == "apis" else parts[2:])


def _words(path: str) -> str:
    """Return an object's name in the API server's form, `volumeattachments.storage.k8s.io "va"`."""
    parts = path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" else ""
    rest = parts[3:] if group else parts[2:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return f'{".".join(filter(None, (rest[0], group)))} "{rest[1]}"'


def _has_status_subresource(path: str) -> bool:
    return not any(f"/{plural}" in path for plural in ("secrets", "configmaps", "csinodes"))


def _without_status(body: JsonObject) -> JsonObject:
    """Drop the changes to the status from a write that does not use the status subresource."""
    return {name: value for name, value in body.items() if name != "status"}


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def _finalizers_merged(item: JsonObject, patch: JsonObject) -> JsonObject:
    """Convert a strategic merge patch of finalizers to an equivalent merge patch."""
    known = item["metadata"].get("finalizers") or []
    metadata = dict(patch.get("metadata") or {})
    gone = metadata.pop("$deleteFromPrimitiveList/finalizers", [])
    new = [one for one in metadata.pop("finalizers", []) if one not in known]
    if gone or new:
        metadata["finalizers"] = [one for one in [*known, *new] if one not in gone]
    return {**patch, "metadata": metadata}


def _json_patched(item: JsonObject, operations: list[JsonObject]) -> JsonObject:
    """RFC 6902: add, remove, replace, test; any failure is the API server's 422."""
    result = deepcopy(item)
    for operation in operations:
        steps = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        try:
            _apply(result, steps, operation)
        except (KeyError, IndexError, ValueError, TypeError, AssertionError):
            message = "the server rejected our request due to an error in our request"
            raise InvalidError(422, "Invalid", message) from None
    return result


def _apply(result: JsonObject, steps: list[str], operation: JsonObject) -> None:
    target: Any = result
    for step in steps[:-1]:
        target = target[int(step)] if isinstance(target, list) else target[step]
    last, verb = steps[-1], operation["op"]
    if verb == "test":
        if isinstance(target, list):
            assert target[int(last)] == operation["value"]
        else:
            # As in the API server's library, testing a missing field for null succeeds.
            assert target.get(last) == operation["value"]
    elif isinstance(target, list):
        if verb == "remove":
            del target[int(last)]
        elif verb == "replace":
            target[int(last)] = operation["value"]
        else:
            target.insert(len(target) if last == "-" else int(last), operation["value"])
    elif verb == "remove":
        del target[last]
    else:
        if verb == "replace":
            assert last in target
        target[last] = deepcopy(operation["value"])
