"""Builders of classes and volumes for migration tests; every field that a case does not name is
empty."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def in_tree_class(provisioner: str, /, topologies: list[Json] | None = None, **fields: Any) -> Json:
    """Return a class of an in-tree plugin; `topologies` is its allowedTopologies."""
    storage_class: Json = {"metadata": {"name": "fast"}, "provisioner": provisioner, **fields}
    if topologies is not None:
        storage_class["allowedTopologies"] = topologies
    return storage_class


def topology(key: str, *values: str) -> Json:
    """Return one allowedTopologies entry with one expression."""
    return {"matchLabelExpressions": [{"key": key, "values": list(values)}]}


def expression(key: str, *values: str) -> Json:
    """Return one node selector expression."""
    return {"key": key, "operator": "In", "values": list(values)}


def affinity(*terms: list[Json]) -> Json:
    """Return a volume's nodeAffinity; each term is a list of expressions."""
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}


def volume(
    source_field: str,
    source: Json,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    node_affinity: Json | None = None,
    **spec: Any,
) -> Json:
    """Return a volume `pv-1` with one source."""
    metadata: Json = {"name": "pv-1"}
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    built: Json = {"metadata": metadata, "spec": {source_field: source, **spec}}
    if node_affinity is not None:
        built["spec"]["nodeAffinity"] = node_affinity
    return built


def csi_volume(driver: str, handle: str, /, *, csi: Json | None = None, **fields: Any) -> Json:
    """Return a CSI volume; `csi` adds to its csi block."""
    return volume("csi", {"driver": driver, "volumeHandle": handle, **(csi or {})}, **fields)
