"""Reads fields of decoded Kubernetes objects without trusting their types.

Objects are JSON as the API server sent it. Null counts as absent, as in Go. If a field has the
wrong type, the functions raise an error that names the field and ends the attempt, never a
TypeError or KeyError. Nothing here changes an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from workers.errors import AttemptError, State

Json = Mapping[str, Any]

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (str, "a string"),
    (int, "a number"),
    (float, "a number"),
    (Mapping, "an object"),
    (Sequence, "a list"),
)


class FieldError(AttemptError):
    """A field of an object has a type that the API does not allow; no call was made."""

    def __init__(self, message: str) -> None:
        super().__init__(message, State.NO_CHANGE)


def describe(obj: object) -> str:
    """Return what is known of an object's name, for messages: `PersistentVolumeClaim shop/data`."""
    if not isinstance(obj, Mapping):
        return "object"
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    parts = [part for part in (metadata.get("namespace"), metadata.get("name")) if part]
    kind = obj.get("kind") or "object"
    return f"{kind} {'/'.join(str(part) for part in parts)}".rstrip()


def _reject(obj: object, path: Sequence[str], value: object, expected: str) -> NoReturn:
    found = next((text for kind, text in _KINDS if isinstance(value, kind)), "unreadable")
    where = ".".join(path) or "itself"
    raise FieldError(f"{describe(obj)}: field {where} is {found}, expected {expected}")


def value_at(obj: Json, *path: str) -> Any:
    """Return the value at `path`, or None if it or one of its parents is absent or null.

    Raises:
        FieldError: a parent is not an object.
    """
    value: Any = obj
    for depth, step in enumerate(path):
        if value is None:
            return None
        # The quick test comes first, because isinstance with the abstract class takes ten times as
        # long.
        if type(value) is not dict and not isinstance(value, Mapping):
            _reject(obj, path[:depth], value, "an object")
        value = value.get(step)
    return value


def optional_text(obj: Json, *path: str) -> str | None:
    """Return the string at `path`, or None if it is absent or null."""
    value = value_at(obj, *path)
    if value is not None and not isinstance(value, str):
        _reject(obj, path, value, "a string")
    return value


def text(obj: Json, *path: str) -> str:
    """Return the string at `path`; "" if it is absent or null."""
    return optional_text(obj, *path) or ""


def flag(obj: Json, *path: str) -> bool:
    """Return the boolean at `path`; False if it is absent or null."""
    value = value_at(obj, *path)
    if value is not None and not isinstance(value, bool):
        _reject(obj, path, value, "a boolean")
    return bool(value)


def optional_mapping(obj: Json, *path: str) -> Json | None:
    """Return the object at `path`, or None if it is absent or null; `{}` is returned as `{}`."""
    value = value_at(obj, *path)
    if value is not None and type(value) is not dict and not isinstance(value, Mapping):
        _reject(obj, path, value, "an object")
    return value


def text_map(obj: Json, *path: str) -> dict[str, str]:
    """Return a copy of the string map at `path`, sorted by key (P-908); empty if it is absent."""
    found = optional_mapping(obj, *path) or {}
    for key, value in found.items():
        if value is not None and not isinstance(value, str):
            _reject(obj, (*path, str(key)), value, "a string")
    return {key: found[key] or "" for key in sorted(found)}


def _items(obj: Json, path: Sequence[str]) -> Sequence[Any]:
    value = value_at(obj, *path)
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        _reject(obj, path, value, "a list")
    return value


def text_list(obj: Json, *path: str) -> list[str]:
    """Return a copy of the list of strings at `path`; empty if it is absent."""
    found = _items(obj, path)
    for item in found:
        if not isinstance(item, str):
            _reject(obj, (*path, "[]"), item, "a string")
    return list(found)


def object_list(obj: Json, *path: str) -> list[Json]:
    """Return a copy of the list of objects at `path`; empty if it is absent."""
    found = _items(obj, path)
    for item in found:
        if not isinstance(item, Mapping):
            _reject(obj, (*path, "[]"), item, "an object")
    return list(found)


def selector_at(obj: Json, *path: str) -> list[Json]:
    """Return a copy of the topology selector at `path`, whose entries have the right types."""
    found = object_list(obj, *path)
    for entry in found:
        for expression in object_list(entry, "matchLabelExpressions"):
            if optional_text(expression, "key") is None:
                _reject(expression, ("key",), None, "a string")
            text_list(expression, "values")
    return found


def annotations_of(obj: Json) -> dict[str, str]:
    """Return the annotations of an object."""
    return text_map(obj, "metadata", "annotations")


def has_finalizer(obj: Json, finalizer: str) -> bool:
    """Return True if the object has the finalizer `finalizer`."""
    return finalizer in text_list(obj, "metadata", "finalizers")


def version_of(obj: Json) -> str:
    """Return the resourceVersion, or "" for a response without one (a Status)."""
    return text(obj, "metadata", "resourceVersion")


def is_deleting(obj: Json) -> bool:
    """Return True if the object has a deletionTimestamp."""
    return bool(text(obj, "metadata", "deletionTimestamp"))
