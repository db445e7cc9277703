"""Segments of a driver's capacity, and the segment of a volume.

A segment is a `Term` that identifies one pool of storage. `ClusterTopology.segments` finds the
segments in central mode (CAP-020). This module provides the segment in node deployment, the
segments of a volume's affinity, and the string form for keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from workers.topology.terms import Term, make_term

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# These characters are not percent-encoded, so that keys are readable in Flower. '|', ',', '=', '%'
# and unusual characters are encoded.
_SAFE = "/:"


def node_segment(segments: Mapping[str, str]) -> Term:
    """Return the node's only segment in node deployment, sorted (CAP-024).

    The segment is empty if the node reports no topology.
    """
    return make_term(segments)


def segment_of(selector_term: Mapping[str, Any]) -> Term:
    """Return the segment that a volume's node selector term describes (CAP-043).

    Raises:
        ValueError: the term has `matchFields`, or an expression other than `In` with one value.
    """
    if selector_term.get("matchFields"):
        raise ValueError("matchFields do not name a segment")
    pairs: list[tuple[str, str]] = []
    for expression in selector_term.get("matchExpressions") or ():
        values: Sequence[str] = expression.get("values") or ()
        if expression.get("operator") != "In" or len(values) != 1:
            raise ValueError(f"{expression.get('key')!r} is not matched by In with one value")
        pairs.append((expression["key"], values[0]))
    return make_term(pairs)


def volume_segments(volume: Mapping[str, Any]) -> frozenset[Term] | None:
    """Return the segments of a volume's affinity; None if the volume has no affinity (CAP-030).

    Terms that do not describe a segment are left out (CAP-043), so the set can be empty.
    """
    affinity = (volume.get("spec") or {}).get("nodeAffinity")
    if affinity is None:
        return None
    found: set[Term] = set()
    for term in (affinity.get("required") or {}).get("nodeSelectorTerms") or ():
        try:
            found.add(segment_of(term))
        except ValueError:
            continue
    return frozenset(found)


def segment_text(segment: Term) -> str:
    """Return a segment as a string, `key=value,key2=value2`; empty for the empty segment."""
    return ",".join(f"{quote(key, _SAFE)}={quote(value, _SAFE)}" for key, value in segment)


def parse_segment(text: str) -> Term:
    """Parse a string that `segment_text` returned.

    Raises:
        ValueError: the string has a different form.
    """
    pairs: list[tuple[str, str]] = []
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"segment text without '=': {part!r}")
        pairs.append((unquote(key), unquote(value)))
    return make_term(pairs)
