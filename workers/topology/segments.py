"""Which segments does a driver's capacity split into, and which one does a volume sit in?

A segment is a `Term`: the pairs that name one pool of storage. The central set is
`ClusterTopology.segments` (CAP-020); this module has the node-local one, the way back from a
volume's affinity, and the text form used in queue keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from workers.topology.terms import Term, make_term

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Readable in Flower; '|', ',', '=', '%' and anything unusual is percent-encoded.
_SAFE = "/:"


def node_segment(segments: Mapping[str, str]) -> Term:
    """Return the one segment of node deployment mode, sorted (CAP-024); empty if there is none."""
    return make_term(segments)


def segment_of(selector_term: Mapping[str, Any]) -> Term:
    """Return the segment a volume's node selector term names (CAP-043).

    Raises:
        ValueError: the term has `matchFields`, or an expression that is not `In` one value.
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
    """Return the segments a volume's affinity names, None if the volume has no affinity (CAP-030).

    Terms that name no segment are left out (CAP-043); the set may be empty.
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
    """Return a segment as text, `key=value,key2=value2`; empty for the empty segment."""
    return ",".join(f"{quote(key, _SAFE)}={quote(value, _SAFE)}" for key, value in segment)


def parse_segment(text: str) -> Term:
    """Return the segment that `segment_text` wrote.

    Raises:
        ValueError: the text has another form.
    """
    pairs: list[tuple[str, str]] = []
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"segment text without '=': {part!r}")
        pairs.append((unquote(key), unquote(value)))
    return make_term(pairs)
