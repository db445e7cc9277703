"""Topology selectors of snapshots (KEP-5943), such as a snapshot content's `nodeAffinity`.

A selector is a list of Kubernetes' TopologySelectorTerm: its entries are ORed, the expressions of
an entry are ANDed, and the values of an expression are ORed. If two expressions name the same key,
only values listed in both count. `terms.flatten`, which follows csi-provisioner for
StorageClasses, differs in this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from workers.topology.terms import Term, make_term

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from csi_client import messages as csi

MOST_PLACES: Final = 4096
"""A selector that stands for more places is refused, because it would need too much memory."""

_MOST_PAIRS: Final = 64 * MOST_PLACES
"""Comparing more pairs of places would keep the process busy for seconds."""

Selector: TypeAlias = "list[Mapping[str, Any]]"


class TooManyPlacesError(Exception):
    """A selector stands for more than `MOST_PLACES` places."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_PLACES} combinations of values")


def places(selector: Iterable[Mapping[str, Any]]) -> list[Term]:
    """Return the places that a selector allows, in the order of generation (SNS-121).

        [{zone: [1, 2], rack: [a]}, {zone: [3]}]  ->  rack a zone 1, rack a zone 2, zone 3

    An entry yields nothing if it has no expressions, if an expression has no values, or if its
    expressions contradict each other.

    Raises:
        TooManyPlacesError: there are more than `MOST_PLACES`.
    """
    found: dict[Term, None] = {}
    for entry in selector:
        expressions = entry.get("matchLabelExpressions") or ()
        built: list[dict[str, str]] = [{}] if expressions else []
        for expression in expressions:
            key, values = expression["key"], expression.get("values") or ()
            if len(built) * len(values) > MOST_PLACES:
                raise TooManyPlacesError
            built = [
                {**place, key: value}
                for place in built
                for value in values
                if place.get(key, value) == value
            ]
        found |= dict.fromkeys(make_term(place) for place in built)
        if len(found) > MOST_PLACES:
            raise TooManyPlacesError
    return list(found)


def common_places(one: Sequence[Term], other: Sequence[Term]) -> list[Term]:
    """Return the places that both lists allow: each pair that does not contradict itself (P-343).

    Places with different keys are merged, because a node must satisfy both. The caller does not
    know which zones a region has, so the driver refuses impossible combinations.

    Raises:
        TooManyPlacesError: there are more than `MOST_PLACES`, or too many pairs to compare.
    """
    if len(one) * len(other) > _MOST_PAIRS:
        raise TooManyPlacesError
    found: dict[Term, None] = {}
    others = [dict(place) for place in other]
    for first in map(dict, one):
        for second in others:
            if all(second.get(key, value) == value for key, value in first.items()):
                found[make_term(first | second)] = None
        if len(found) > MOST_PLACES:
            raise TooManyPlacesError
    return list(found)


def selector_of(terms: Iterable[Term]) -> Selector:
    """Return places as a selector: one entry per place, one value per key."""
    return [
        {"matchLabelExpressions": [{"key": key, "values": [value]} for key, value in term]}
        for term in terms
    ]


def selector_of_answer(topologies: Iterable[csi.Topology]) -> Selector:
    """Return the topologies that a driver returned as a selector, without duplicates (SNS-123).

    A topology without segments is left out, as in a PersistentVolume's affinity (P-340).
    """
    return selector_of(dict.fromkeys(make_term(one.segments) for one in topologies if one.segments))
