"""Translates zones and regions between CSI volumes and in-tree volumes (P-607, P-608, P-611).

A CSI volume has its zone in the node affinity, under the driver's own key. An in-tree volume has
its zone under the Kubernetes zone label, both in the affinity and as a label of the volume; several
zones are joined with `__`. The functions here edit a volume that the caller has already copied.

The terms of an affinity are ORed, and the expressions of one term are ANDed; only
`matchExpressions` count.
Source: csi-translation-lib, plugins/in_tree_volume.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.constants import LABEL_REGION, LABEL_REGION_BETA, LABEL_ZONE, LABEL_ZONE_BETA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Volume = dict[str, Any]

# Joins the zones of a regional volume into one label (cloud-provider, LabelMultiZoneDelimiter).
ZONE_DELIMITER: Final = "__"

_GA: Final = (LABEL_ZONE, LABEL_REGION)
_BETA: Final = (LABEL_ZONE_BETA, LABEL_REGION_BETA)


def zone_and_region_label(volume: Volume) -> tuple[str, str]:
    """Return the zone and region labels to use: GA unless the volume has beta labels (P-607).

    The first zone label found wins, in this order: GA in the affinity, beta in the affinity, GA
    label, beta label. The region label returned is the matching one (GA or beta).
    """
    for labels in (_GA, _BETA):
        if any(expression.get("key") == labels[0] for expression in _expressions(volume)):
            return labels
    own = _labels(volume)
    return _BETA if LABEL_ZONE_BETA in own and LABEL_ZONE not in own else _GA


def to_labels(
    volume: Volume, zone_key: str, region_of: Callable[[Iterable[str]], str] | None = None
) -> None:
    """Rename the driver's zone key to the zone label, add regions, and label the volume (P-607).

    For example, for GCE the term {topology.gke.io/zone In [us-central1-a]} becomes {zone label In
    [us-central1-a], region label In [us-central1]}, and the volume gets both labels.

    Args:
        volume: the volume, which is edited in place; a volume without affinity stays unchanged.
        zone_key: the driver's topology key for zones.
        region_of: returns the region of one term's zones; if None, no region is added.

    Raises:
        workers.migration.regions.RegionError: the zones do not belong to exactly one region.
    """
    zone_label, region_label = zone_and_region_label(volume)
    _rename(volume, zone_key, zone_label)
    if region_of is not None:
        _add_regions(volume, zone_label, region_label, region_of)
    zones = _values(volume, zone_label)
    if zones:
        _set_label(volume, zone_label, ZONE_DELIMITER.join(zones))


def to_zone_and_region_labels(volume: Volume, zone_key: str, region_key: str) -> None:
    """Rename both of the driver's keys; set missing labels to the smallest values (P-608)."""
    labels = zone_and_region_label(volume)
    for key, label in zip((zone_key, region_key), labels, strict=True):
        _rename(volume, key, label)
        values = _values(volume, label)
        if values:
            _set_label(volume, label, values[0])


def to_zone_key(volume: Volume, zone_key: str) -> None:
    """Move the zones from the affinity or the label to the driver's zone key (P-611).

    The affinity wins over the label. A beta region label in the affinity becomes the GA label,
    because newer nodes do not have the beta label.
    """
    zone_label, region_label = zone_and_region_label(volume)
    if _values(volume, zone_label):
        _rename(volume, zone_label, zone_key)
    else:
        _require(volume, zone_key, _labels(volume).get(zone_label, "").split(ZONE_DELIMITER))
    if region_label == LABEL_REGION_BETA:
        _rename(volume, LABEL_REGION_BETA, LABEL_REGION)


def to_zone_and_region_keys(volume: Volume, zone_key: str, region_key: str) -> None:
    """Move zone and region to the driver's keys; a label is a single value, never split (P-610)."""
    labels = zone_and_region_label(volume)
    for label, key in zip(labels, (zone_key, region_key), strict=True):
        if _values(volume, label):
            _rename(volume, label, key)
        else:
            _require(volume, key, [_labels(volume).get(label, "")])


def _terms(volume: Volume) -> list[dict[str, Any]]:
    affinity = volume["spec"].get("nodeAffinity") or {}
    terms: list[dict[str, Any]] = (affinity.get("required") or {}).get("nodeSelectorTerms") or []
    return terms


def _expressions(volume: Volume) -> list[dict[str, Any]]:
    return [
        expression for term in _terms(volume) for expression in term.get("matchExpressions") or []
    ]


def _values(volume: Volume, key: str) -> list[str]:
    """Return all values that a key has in any term, sorted and without duplicates."""
    found = (e.get("values") or [] for e in _expressions(volume) if e.get("key") == key)
    return sorted({value for values in found for value in values})


def _rename(volume: Volume, old: str, new: str) -> None:
    for expression in _expressions(volume):
        if expression.get("key") == old:
            expression["key"] = new


def _require(volume: Volume, key: str, values: Iterable[str]) -> None:
    """Add `key In values` to every term, or to a new term if there is none; skip empty values."""
    wanted = sorted({value.strip() for value in values} - {""})
    if not wanted:
        return
    if not _terms(volume):
        volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{}]}}
    for term in _terms(volume):
        _append(term, key, list(wanted))


def _append(term: dict[str, Any], key: str, values: list[str]) -> None:
    expression = {"key": key, "operator": "In", "values": values}
    term["matchExpressions"] = [*(term.get("matchExpressions") or []), expression]


def _add_regions(
    volume: Volume, zone_label: str, region_label: str, region_of: Callable[[Iterable[str]], str]
) -> None:
    for term in _terms(volume):
        expressions = term.get("matchExpressions") or []
        if any(expression.get("key") == region_label for expression in expressions):
            continue
        zones = [
            value
            for expression in expressions
            if expression.get("key") == zone_label
            for value in expression.get("values") or []
        ]
        _append(term, region_label, [region_of(zones)])
    regions = _values(volume, region_label)
    if len(regions) == 1:
        _set_label(volume, region_label, regions[0])


def _labels(volume: Volume) -> dict[str, str]:
    return volume.get("metadata", {}).get("labels") or {}


def _set_label(volume: Volume, label: str, value: str) -> None:
    """Set a label on the volume unless the volume already has it."""
    metadata = volume.setdefault("metadata", {})
    metadata["labels"] = {label: value, **(metadata.get("labels") or {})}
