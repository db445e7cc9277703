"""Topology terms: order, comparison, flattening and printing.

A term is one place where a volume can be, described by ANDed (key, value) pairs. The terms
of a list are ORed. A `Term` is always sorted by key, then by value, so equal places are equal
tuples. Python compares strings by code point; this is the byte order of UTF-8 that P-302 requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Term: TypeAlias = tuple[tuple[str, str], ...]


def make_term(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Term:
    """Return the pairs as a term, sorted by key, then by value; repeated keys are kept (P-302)."""
    return tuple(sorted(pairs.items() if isinstance(pairs, Mapping) else pairs))


def order(term: Term) -> tuple[int, Term]:
    """Return the sort key of a term: by length, then by pairs (P-302)."""
    return len(term), term


def sort_distinct(terms: Iterable[Term]) -> list[Term]:
    """Return the terms sorted and without exact duplicates; overlapping terms are kept (P-313)."""
    return sorted(set(terms), key=order)


def is_subset(part: Term, whole: Term) -> bool:
    """Return True if every pair of `part` occurs in `whole` (P-302).

    The result is True for an empty part. The two sorted terms are merged, and the result is False
    at the first equal key with a different value. This differs from a comparison of sets only for a
    term with a repeated key (P-320).
    """
    wanted = iter(part)
    pair = next(wanted, None)
    for key, value in whole:
        if pair is None:
            return True
        if key != pair[0]:
            continue
        if value != pair[1]:
            return False
        pair = next(wanted, None)
    return pair is None


def flatten(allowed_topologies: Iterable[Mapping[str, Any]]) -> list[Term]:
    """Return a StorageClass's `allowedTopologies` as terms, in the order of generation (P-320).

    Entries are ORed, the expressions of one entry are ANDed, and the values of one expression are
    ORed:

        [{zone: [1, 2], rack: [a]}, {zone: [3]}]  ->  rack a zone 1, rack a zone 2, zone 3

    An expression without values discards all terms of its entry (the API server refuses such an
    expression). An entry without expressions yields nothing.
    """
    terms: list[list[tuple[str, str]]] = []
    for entry in allowed_topologies:
        built: list[list[tuple[str, str]]] = []
        for expression in entry.get("matchLabelExpressions") or ():
            built = [
                [*old, (expression["key"], value)]
                for value in expression.get("values") or ()
                for old in built or [[]]
            ]
        terms += built
    return [make_term(term) for term in terms]


def render_term(term: Term) -> str:
    """Return a term as csi-provisioner prints it: `[{k v} {k2 v2}]` (P-311)."""
    return "[" + " ".join(f"{{{key} {value}}}" for key, value in term) + "]"


def render_terms(terms: Iterable[Term]) -> str:
    """Return a list of terms as csi-provisioner prints it: `[[{k v}] [{k2 v2}]]` (P-311)."""
    return "[" + " ".join(render_term(term) for term in terms) + "]"


def render_labels(labels: Mapping[str, str]) -> str:
    """Return labels as csi-provisioner prints them: `map[k:v k2:v2]`, sorted by key (P-311)."""
    return "map[" + " ".join(f"{key}:{labels[key]}" for key in sorted(labels)) + "]"


def render_keys(keys: Iterable[str]) -> str:
    """Return topology keys as csi-provisioner prints them: `[k1 k2]`, in order (P-311)."""
    return "[" + " ".join(keys) + "]"
