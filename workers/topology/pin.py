"""What must a repeated CreateVolume remember of the first one (P-330)?

A driver that did not answer may have created the volume already. A repeat with other requirements
would make a second one, or fail for ever, so keys, labels and terms of the first request are pinned
in the claim's in-progress record, as plain JSON, until the outcome is final (D-013). The pin holds
copies only: nothing a request does to its own lists can reach it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workers.topology.terms import Term, make_term

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Pin:
    """Inputs of a claim's topology requirement, frozen.

    Attributes:
        node: selected node the pin was made for, empty for immediate binding.
        keys: the driver's topology keys, order kept; empty if they were not needed.
        labels: the selected node's values of those keys, complete or empty (not the whole label
            map, D-013).
        terms: aggregated terms, distinct and sorted; empty if they were not needed.
        is_sent: CreateVolume was sent with them. Before that a pin holds for its own node only,
            after that it outlives any change of the selected node (D-003).
    """

    node: str = ""
    keys: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
    is_sent: bool = False

    def sent(self) -> Pin:
        """Return the pin as it must be stored right before CreateVolume is sent."""
        return replace(self, is_sent=True)

    def holds_for(self, selected_node: str) -> bool:
        """Tell whether the pin may be used for this selected node (D-003)."""
        return self.is_sent or self.node == selected_node

    def to_json(self) -> dict[str, Any]:
        """Return the pin as plain JSON; a term is one row of values under the shared keys.

        Aggregated terms all have the same keys (P-321), so thousands of them stay small.
        """
        return {
            "node": self.node,
            "keys": list(self.keys),
            "labels": dict(self.labels),
            "terms": [[value for _, value in term] for term in self.terms],
            "sent": self.is_sent,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Pin:
        """Return the pin that `to_json` wrote."""
        keys = tuple(record["keys"])
        columns = sorted(set(keys))
        return cls(
            node=record["node"],
            keys=keys,
            labels=dict(record["labels"]),
            terms=tuple(make_term(zip(columns, row, strict=True)) for row in record["terms"]),
            is_sent=record["sent"],
        )
