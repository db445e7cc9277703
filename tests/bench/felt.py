"""One table of the figures that users notice, for csi-fleet, another commit and the Go sidecars."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
# Section, figure, and title of the row.
FIGURES = (
    ("throughput", "bound_p50", "claim to Bound, p50 s"),
    ("throughput", "bound_p99", "claim to Bound, p99 s"),
    ("throughput", "bound_per_s", "Bound a second"),
    ("steady", "bound_p50", "claim to Bound, p50 s"),
    ("steady", "bound_p99", "claim to Bound, p99 s"),
    ("saturated", "bound_p50", "claim to Bound, p50 s"),
    ("saturated", "bound_p99", "claim to Bound, p99 s"),
    ("saturated", "bound_per_s", "Bound a second"),
    ("neighbours", "pv_p99", "claim to PV beside a flood, p99 s"),
    ("neighbours", "bound_p99", "claim to Bound beside a flood, p99 s"),
    ("attachments", "attached_per_s", "attached a second"),
    ("attachments", "detached_per_s", "detached a second"),
    ("snapshots", "per_s", "snapshots ready a second"),
    ("memory", "pss_mib", "memory at rest, MiB"),
    ("life", "CPU ms", "CPU of a volume's whole life, ms"),
    ("recovery", "in_flight_max_s", "longest wait of a claim after SIGKILL, s"),
    ("explain", "median_s", "`csi-fleet explain`, s"),
)
COLUMNS = {
    "csi-fleet": "csi-fleet",
    "csi-fleet, base": "base",
    "reference": "Go",
    "five Go sidecars": "Go",
}
HEAD = "figure | case | csi-fleet | base | Go | csi-fleet to base"
Row = tuple[str, str]


def rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each figure and case, with the median of repeated measurements."""
    for section, name, title in FIGURES:
        found: dict[str, dict[str, list[float]]] = {}
        for record in results.get(section) or []:
            column = COLUMNS.get(record["system"])
            if column:
                case = found.setdefault(case_of(record), {})
                case.setdefault(column, []).append(float(record[name]))
        for case, columns in sorted(found.items()):
            yield [title, case, *cells(columns)]


def case_of(record: Record) -> str:
    """Return the number of drivers, the mode and the killed process of a record."""
    parts = [str(record[one]) for one in ("mode", "killed") if one in record]
    drivers = [f"{record['drivers']:2} drivers"] if "drivers" in record else []
    return ", ".join([*drivers, *parts])


def cells(columns: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the figures of the three systems, and the ratio of csi-fleet to the other commit."""
    middle = {name: statistics.median(values) for name, values in columns.items()}
    shown = [f"{middle[one]:.4g}" if one in middle else "" for one in ("csi-fleet", "base", "Go")]
    ours, base = middle.get("csi-fleet"), middle.get("base")
    return [*shown, f"{ours / base:.2f}" if ours and base else ""]
