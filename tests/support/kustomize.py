"""Renders the kustomizations below k8s/, with the few kustomize features that they use.

The suites therefore need no kubectl; if kubectl is available, a test compares both results. An
unknown field is an error and is never skipped.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

JsonObject = dict[str, Any]

_KNOWN = {
    "apiVersion", "kind", "namespace", "labels", "resources", "components", "generatorOptions",
    "configMapGenerator", "images", "replicas", "patches",
}  # fmt: skip
CLUSTER_KINDS = {
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    "Namespace", "ClusterRole", "ClusterRoleBinding", "StorageClass", "PriorityClass",
    "CustomResourceDefinition",
}  # fmt: skip
WORKLOADS = {"Deployment", "DaemonSet", "StatefulSet"}


def render(directory: Path) -> list[JsonObject]:
    """Return all objects of one kustomization.

    Raises:
        ValueError: a field or patch operation that is not implemented here.
    """
    return accumulate(directory.resolve(), [])


def accumulate(directory: Path, inherited: list[JsonObject]) -> list[JsonObject]:
    """Return the objects of one kustomization; a component is applied to `inherited`."""
    given = yaml.safe_load((directory / "kustomization.yaml").read_text())
    if unknown := set(given) - _KNOWN:
        raise ValueError(f"{directory}: not implemented: {sorted(unknown)}")
    objects = list(inherited)
    for name in given.get("resources", []):
        path = directory / name
        objects += render(path) if path.is_dir() else _documents(path)
    for generator in given.get("configMapGenerator", []):
        objects.append(_config_map(directory, generator, given.get("generatorOptions", {})))
    for name in given.get("components", []):
        objects = accumulate((directory / name).resolve(), objects)
    for patch in given.get("patches", []):
        _patch(objects, patch)
    for item in objects:
        _transform(item, given)
    return objects


def _documents(path: Path) -> list[JsonObject]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def _config_map(
    directory: Path, generator: Mapping[str, Any], options: Mapping[str, Any]
) -> JsonObject:
    if not options.get("disableNameSuffixHash"):
        raise ValueError(f"{directory}: names with a hash are not implemented")
    metadata = {"name": generator["name"]}
    if "namespace" in generator:
        metadata["namespace"] = generator["namespace"]
    data = {Path(name).name: (directory / name).read_text() for name in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _transform(item: JsonObject, given: Mapping[str, Any]) -> None:
    metadata = item["metadata"]
    if "namespace" in given and item["kind"] not in CLUSTER_KINDS:
        metadata["namespace"] = given["namespace"]
    for labels in given.get("labels", []):
        metadata.setdefault("labels", {}).update(labels["pairs"])
    for replicas in given.get("replicas", []):
        if item["kind"] == "Deployment" and metadata["name"] == replicas["name"]:
            item["spec"]["replicas"] = replicas["count"]
    for image in given.get("images", []):
        for container in containers(item):
            name, _, _ = container["image"].partition(":")
            if name == image["name"]:
                held = f"@{image['digest']}" if "digest" in image else f":{image['newTag']}"
                container["image"] = image.get("newName", name) + held


def pod_spec(item: Mapping[str, Any]) -> JsonObject | None:
    """Return the pod specification of a workload."""
    template = item.get("spec", {}).get("template") if item["kind"] in WORKLOADS else None
    return template["spec"] if template else None


def containers(item: Mapping[str, Any]) -> list[JsonObject]:
    """Return all containers of a workload; none for any other object."""
    spec = pod_spec(item) or {}
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def _patch(objects: list[JsonObject], patch: Mapping[str, Any]) -> None:
    """Apply JSON patches to what `target` names (a regular expression), or delete one object."""
    content = yaml.safe_load(patch["patch"])
    target = patch.get("target") or {"kind": content["kind"], **content["metadata"]}
    chosen = [
        one
        for one in objects
        if one["kind"] == target["kind"]
        and re.fullmatch(target["name"], one["metadata"]["name"])
        and target.get("namespace") in {None, one["metadata"].get("namespace")}
    ]
    if not chosen:
        raise ValueError(f"patch without target: {target}")
    if "target" not in patch:
        if content.keys() != {"apiVersion", "kind", "metadata", "$patch"}:
            raise ValueError(f"not implemented: merging {sorted(content)}")
        objects[:] = [one for one in objects if one not in chosen]
        return
    for item in chosen:
        for operation in content:
            _apply(item, copy.deepcopy(operation))


def _apply(item: JsonObject, operation: Mapping[str, Any]) -> None:
    """Apply one JSON patch operation (RFC 6902); only the operations in use are supported."""
    *parents, last = [
        re.sub("~1", "/", part).replace("~0", "~") for part in operation["path"].split("/")[1:]
    ]
    place: Any = item
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    match operation["op"], place:
        case "add", list() if last == "-":
            place.append(operation["value"])
        case "add" | "replace", dict():
            place[last] = operation["value"]
        case "remove", dict():
            del place[last]
        case other:
            raise ValueError(f"not implemented: {other}")
