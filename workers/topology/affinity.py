"""Translates a volume's topology to the PV's node affinity, and evaluates it (P-340, P-341)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from csi_client.messages import Topology

_INT64 = range(-(2**63), 2**63)
_DECIMAL = re.compile(r"[+-]?[0-9]{1,63}")


def node_affinity(accessible_topology: Iterable[Topology]) -> dict[str, Any] | None:
    """Return a volume's `spec.nodeAffinity` for the topologies in CreateVolume's response (P-340).

    There is one selector term per topology, in the order of the response. Each term has one `In`
    expression per segment, sorted by key (P-908). Topologies without segments are skipped. If none
    is left, the result is None, because the API server rejects an affinity without terms (D-014).
    """
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [topology.segments[key]]}
                for key in sorted(topology.segments)
            ]
        }
        for topology in accessible_topology
        if topology.segments
    ]
    return {"required": {"nodeSelectorTerms": terms}} if terms else None


def is_accessible(volume: Mapping[str, Any], node_segments: Mapping[str, str]) -> bool:
    """Return True if the node with these segments can reach a volume (P-341, P-506).

    Args:
        volume: the PersistentVolume.
        node_segments: the node's accessible topology, as NodeGetInfo returned it; if it is
            empty, every volume is accessible.
    """
    if not node_segments:
        return True
    affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
    required = affinity.get("required")
    if required is None:
        return True
    return matches(required.get("nodeSelectorTerms") or (), node_segments)


def selector_problem(volume: Mapping[str, Any]) -> str:
    """Return why a volume's affinity is invalid, in Go's words; "" if it is valid (P-341, P-506).

    The API server accepts only one kind of invalid affinity: a comparison with a value that is not
    a 64-bit integer. The problem matters only if no term matches.
    """
    affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("required") or {}).get("nodeSelectorTerms") or ()
    problems = {
        f"nodeSelectorTerms[{term_index}].matchExpressions[{index}].values[0]: Invalid value: "
        f"\"{value}\": for 'Gt', 'Lt' operators, the value must be an integer": None
        for term_index, term in enumerate(terms)
        for index, expression in enumerate(term.get("matchExpressions") or ())
        if expression.get("operator") in {"Gt", "Lt"}
        for value in (expression.get("values") or ())[:1]
        if _integer(value) is None
    }
    text = ", ".join(problems)
    return f"[{text}]" if len(problems) > 1 else text


def matches(
    selector_terms: Iterable[Mapping[str, Any]], labels: Mapping[str, str], name: str = ""
) -> bool:
    """Return True if a node with these labels and this name matches a selector term.

    Terms are ORed, and the requirements of one term are ANDed. An empty term matches nothing. A
    term with a requirement that the API refuses (unknown operator, wrong number of values) matches
    nothing either. If `name` is empty, well-formed `matchFields` always match (P-341).

    Source: k8s.io/component-helpers, scheduling/corev1/nodeaffinity.
    """
    return any(_term_matches(term, labels, name) for term in selector_terms)


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(expression_matches(expression, labels) for expression in expressions) and all(
        _field_matches(requirement, name) for requirement in fields
    )


def _field_matches(requirement: Mapping[str, Any], name: str) -> bool:
    """Return True if a field requirement matches; `metadata.name` is the only field of nodes."""
    values: Sequence[str] = requirement.get("values") or ()
    operator = requirement.get("operator")
    if len(values) != 1 or operator not in {"In", "NotIn"}:
        return False
    return not name or (values[0] == name) is (operator == "In")


def _is_in(label: str | None, values: Sequence[str]) -> bool:
    return label is not None and label in values


def _is_not_in(label: str | None, values: Sequence[str]) -> bool:
    return bool(values) and label not in values


def _exists(label: str | None, values: Sequence[str]) -> bool:
    return not values and label is not None


def _does_not_exist(label: str | None, values: Sequence[str]) -> bool:
    return not values and label is None


def _is_greater(label: str | None, values: Sequence[str]) -> bool:
    pair = _numbers(label, values)
    return pair is not None and pair[0] > pair[1]


def _is_less(label: str | None, values: Sequence[str]) -> bool:
    pair = _numbers(label, values)
    return pair is not None and pair[0] < pair[1]


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": _is_in,
    "NotIn": _is_not_in,
    "Exists": _exists,
    "DoesNotExist": _does_not_exist,
    "Gt": _is_greater,
    "Lt": _is_less,
}


def expression_matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if labels match one of the `matchExpressions` of a node or label selector."""
    operator = _OPERATORS.get(expression.get("operator", ""))
    if operator is None:
        return False
    return operator(labels.get(expression.get("key", "")), expression.get("values") or ())


def _numbers(label: str | None, values: Sequence[str]) -> tuple[int, int] | None:
    """Return the label and the single value as 64-bit integers, or None if that fails."""
    if label is None or len(values) != 1:
        return None
    left, right = _integer(label), _integer(values[0])
    return None if left is None or right is None else (left, right)


def _integer(text: str) -> int | None:
    """Return the string as a signed 64-bit integer; None if it is not such a number."""
    if not _DECIMAL.fullmatch(text):
        return None
    number = int(text)
    return number if number in _INT64 else None
