"""Finds the owner whose deletion garbage-collects the capacity objects (CAP-060)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from workers.errors import ApiError, ConfigError

Fetch: TypeAlias = Callable[[str, str, str, str], Mapping[str, Any]]
"""A function that takes an apiVersion, a kind, a namespace and a name; it returns the object or
raises an ApiError.
"""

_FATAL = 255


def owner_reference(
    level: int, *, namespace: str, pod_name: str, fetch: Fetch
) -> dict[str, Any] | None:
    """Return a reference to the owner `level` levels above this pod; None for a negative level.

    Level 0 is the pod, 1 its controller, 2 the controller's controller (a Deployment). The owner at
    `level` is not fetched, because the object below that level names the owner in an owner
    reference.

    Args:
        level: the value of `--capacity-ownerref-level`.
        namespace: the environment variable NAMESPACE; all owners are in this namespace.
        pod_name: the environment variable POD_NAME.
        fetch: a function that reads one object live.

    Raises:
        ConfigError: an object below the owner is missing or has no controller; the exit code is
            255.
    """
    if level < 0:
        return None
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod_name}
    found = _fetched(fetch, owner, namespace)
    owner["uid"] = found["metadata"]["uid"]
    for below in range(level):
        if below > 0:
            found = _fetched(fetch, owner, namespace)
        owner = _controller(found, owner)
    return {**owner, "controller": True}


def _fetched(fetch: Fetch, owner: Mapping[str, str], namespace: str) -> Mapping[str, Any]:
    try:
        return fetch(owner["apiVersion"], owner["kind"], namespace, owner["name"])
    except ApiError as error:
        what = f"{owner['kind']} {namespace}/{owner['name']}"
        message = f"look up owner(s) of pod failed: get {what}: {error}"
        raise ConfigError(message, exit_code=_FATAL) from error


def _controller(found: Mapping[str, Any], owner: Mapping[str, str]) -> dict[str, str]:
    for reference in found["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return {name: reference[name] for name in ("apiVersion", "kind", "name", "uid")}
    message = (
        f"look up owner(s) of pod failed: {owner['kind']} {owner['name']} has no controlling "
        "owner, choose a lower --capacity-ownerref-level"
    )
    raise ConfigError(message, exit_code=_FATAL)
