"""What is a topology term, and how do terms compare, flatten and print?

A term is an AND of (key, value) pairs: one place a volume can live in. A list of terms is an OR.
Invariant: a `Term` is sorted by key, then value, so equal places are equal tuples. Python compares
text by code point, which is the byte order of UTF-8 that the rules ask for (P-302).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Term: TypeAlias = tuple[tuple[str, str], ...]


def make_term(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Term:
    """Return the pairs as a term, sorted by key then value; repeated keys are kept (P-302)."""
    return tuple(sorted(pairs.items() if isinstance(pairs, Mapping) else pairs))


def order(term: Term) -> tuple[int, Term]:
    """Return the sort key of a term: shorter first, then pair by pair (P-302)."""
    return len(term), term


def sort_distinct(terms: Iterable[Term]) -> list[Term]:
    """Return the terms sorted and without exact duplicates; overlapping ones stay (P-313)."""
    return sorted(set(terms), key=order)


def is_subset(part: Term, whole: Term) -> bool:
    """Tell whether every pair of `part` occurs in `whole`; an empty part always does (P-302).

    A merge walk over two sorted terms: the first equal key with another value ends it with False.
    Only a term with a repeated key (P-320) can notice the difference to sets.
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
    """Return a storage class's `allowedTopologies` as terms, in order of generation (P-320).

    Entries are ORed, the expressions of one entry ANDed, the values of one expression ORed:

        [{zone: [1, 2], rack: [a]}, {zone: [3]}]  ->  rack a zone 1, rack a zone 2, zone 3

    An expression without values discards what its entry built before (unreachable behind the API's
    validation). An entry without expressions yields nothing.
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
    """Return a term as the reference prints it: `[{k v} {k2 v2}]` (P-311)."""
    return "[" + " ".join(f"{{{key} {value}}}" for key, value in term) + "]"


def render_terms(terms: Iterable[Term]) -> str:
    """Return a list of terms as the reference prints it: `[[{k v}] [{k2 v2}]]` (P-311)."""
    return "[" + " ".join(render_term(term) for term in terms) + "]"


def render_labels(labels: Mapping[str, str]) -> str:
    """Return labels as the reference prints them: `map[k:v k2:v2]`, sorted by key (P-311)."""
    return "map[" + " ".join(f"{key}:{labels[key]}" for key in sorted(labels)) + "]"


def render_keys(keys: Iterable[str]) -> str:
    """Return topology keys as the reference prints them: `[k1 k2]`, order kept (P-311)."""
    return "[" + " ".join(keys) + "]"
