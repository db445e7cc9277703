"""Applies a patch to an object as the API server would.

Supports JSON patch (RFC 6902), merge patch (RFC 7386), and the part of strategic merge patch that
csi-fleet sends: lists of plain values (finalizers) with `$deleteFromPrimitiveList/`, and lists of
objects that are merged by `type` or `uid`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from workers.kube.client import JSON_PATCH, STRATEGIC_PATCH
from workers.kube.errors import ConflictError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workers.kube.objects import JsonObject

_DELETE: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_MERGE_KEYS: Final = ("type", "uid")


def patched(item: JsonObject, patch: Any, content_type: str) -> JsonObject:
    """Return a patched copy of the object.

    Raises:
        InvalidError: the patch does not fit the object.
        ConflictError: the uid in the patch is not the object's uid.
    """
    if content_type == JSON_PATCH:
        return _json_patched(item, patch)
    is_strategic = content_type == STRATEGIC_PATCH
    result: JsonObject = _merged(item, patch, is_strategic=is_strategic)
    known = (item.get("metadata") or {}).get("uid")
    if known and (result.get("metadata") or {}).get("uid") != known:
        raise ConflictError(409, "Conflict", "Precondition failed: UID in precondition")
    return result


def _merged(target: Any, patch: Any, *, is_strategic: bool) -> Any:
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if is_strategic and name.startswith((_DELETE, _ORDER)):
            continue
        if value is None:
            result.pop(name, None)
        elif is_strategic and isinstance(value, list):
            result[name] = _merged_list(result.get(name) or [], value)
        else:
            result[name] = _merged(result.get(name), value, is_strategic=is_strategic)
    for name, value in patch.items() if is_strategic else ():
        if name.startswith(_DELETE):
            place = name.removeprefix(_DELETE)
            result[place] = [one for one in result.get(place) or [] if one not in value]
    return result


def _merged_list(known: list[Any], wanted: list[Any]) -> list[Any]:
    if not all(isinstance(one, dict) for one in wanted):
        return known + [one for one in wanted if one not in known]
    key = next((name for name in _MERGE_KEYS if all(name in one for one in wanted)), "")
    if not key:
        return deepcopy(wanted)
    result = {one.get(key): one for one in known}
    for one in wanted:
        result[one[key]] = _merged(result.get(one[key]), one, is_strategic=True)
    return list(result.values())


def _json_patched(item: JsonObject, operations: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Apply a JSON patch; raise InvalidError after any failure, because the server returns 422."""
    result = deepcopy(item)
    for operation in operations:
        steps = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        try:
            _apply(result, steps, operation)
        except (KeyError, IndexError, ValueError, TypeError):
            message = "the server rejected our request due to an error in our request"
            raise InvalidError(422, "Invalid", message) from None
    return result


def _apply(result: JsonObject, steps: list[str], operation: Mapping[str, Any]) -> None:
    target: Any = result
    for step in steps[:-1]:
        target = target[int(step)] if isinstance(target, list) else target[step]
    last, verb, value = steps[-1], operation["op"], deepcopy(operation.get("value"))
    if isinstance(target, list):
        _apply_to_list(target, last, verb, value)
    elif verb == "test":
        # As in the server's patch library, a missing field equals null.
        if target.get(last) != value:
            raise ValueError(last)
    elif verb == "remove":
        del target[last]
    else:
        if verb == "replace" and last not in target:
            raise KeyError(last)
        target[last] = value


def _apply_to_list(target: list[Any], last: str, verb: str, value: Any) -> None:
    if verb == "test":
        if target[int(last)] != value:
            raise ValueError(last)
    elif verb == "remove":
        del target[int(last)]
    elif verb == "replace":
        target[int(last)] = value
    else:
        target.insert(len(target) if last == "-" else int(last), value)
