"""Write Markdown tables of the results between two marks of a page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import felt

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
Record = Mapping[str, Any]


def write_tables(document: Path, results: Mapping[str, Any]) -> None:
    """Replace the sections that this run measured, and keep the others between the marks."""
    write_parts(document, measured(results))


def write_felt(document: Path, results: Mapping[str, Any]) -> None:
    """Write one table of the figures that users notice, from a run that measured them."""
    write_parts(document, [f"Figures\n\n{where(results)}\n\n{felt_table(results)}"])


def felt_table(results: Mapping[str, Any]) -> str:
    return table(felt.HEAD, list(felt.rows(results)))


def write_parts(document: Path, parts: Sequence[str]) -> None:
    before, _, rest = document.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    sections = {title(one): one for one in f"\n{old}".split("\n### ")[1:]}
    sections |= {title(one): one for one in parts}
    text = "".join(f"### {one.strip()}\n\n" for one in sections.values())
    document.write_text(f"{before}{BEGIN}\n\n{text}{END}{after}")


def title(section: str) -> str:
    return section.partition("\n")[0]


def measured(results: Mapping[str, Any]) -> list[str]:
    """Return the text of each section with figures: its title, date and machine, and table."""
    parts = []
    # Separate sections, so that a run of one of them keeps the figures of the other.
    for name, heading in (("throughput", "Bursts"), ("topology", "Bursts that wait for pods")):
        if runs := results.get(name):
            parts += [(heading, rates(runs)), (f"{heading}: cost", costs(runs))]
    if runs := results.get("steady"):
        parts.append(("Steady rate, and the reference's default flags", rates(runs)))
    if runs := results.get("saturated"):
        figures = f"{rates(runs)}\n\n{costs(runs)}"
        parts.append(("While others keep all cores busy, drivers as processes", figures))
    for name, heading in (
        ("recovery", "SIGKILL under 20 claims/s (driver 200 ms, two workers)"),
        ("attachments", "Attachments in a burst, then deleted"),
        ("attachments-killed", "SIGKILL during a publish, a second worker or replica at hand"),
        ("scaling", "Worker processes, driver 200 ms, 4 threads each"),
        ("resizing", "Expansions in a burst, with pods in the cluster"),
        ("snapshots", "Snapshots in a burst, then deleted"),
        ("life", "The whole life of volumes, all controllers, each driver a process of its own"),
        ("cluster", "Watcher before a full cluster (MiB)"),
    ):
        if found := results.get(name):
            parts.append((heading, plain(found) if name != "scaling" else scaling(found)))
    if found := results.get("queue"):
        lines = "\n".join(one["line"] for one in found)
        parts.append(("Queue alone", f"```\n{lines}\n```"))
    return [f"{heading}\n\n{where(results)}\n\n{figures}" for heading, figures in parts]


def where(results: Mapping[str, Any]) -> str:
    """Return the date, the machine and the versions."""
    machine: Mapping[str, str] = results.get("machine", {})
    return "; ".join(f"{name}: {value}" for name, value in machine.items()) + "."


def rates(runs: Sequence[Record]) -> str:
    """Return a table with the median of the rounds and the range of the rates."""
    head = (
        "drivers | binding | system | claims | PV/s | Bound/s | PV p50 / p99 s | "
        "Bound p50 / p99 s | deletes/s"
    )
    return table(
        head,
        [
            [
                *key_cells(key),
                spread(group, "pv_per_s"),
                spread(group, "bound_per_s"),
                f"{median(group, 'pv_p50'):.2f} / {median(group, 'pv_p99'):.2f}",
                f"{median(group, 'bound_p50'):.2f} / {median(group, 'bound_p99'):.2f}",
                spread(group, "deleted_per_s"),
            ]
            for key, group in grouped(runs)
        ],
    )


def costs(runs: Sequence[Record]) -> str:
    """Return a table of CPU per claim by group, memory, watches and requests."""
    head = (
        "drivers | binding | system | claims | CPU ms/claim | of which | CPU ms/delete | "
        "API server ms/claim | PSS MiB | of which | watches | own requests per claim"
    )
    return table(
        head,
        [
            [
                *key_cells(key),
                spread(group, "cpu_ms_total"),
                by_group(group, "cpu_ms"),
                f"{statistics.median(sum(one['cpu_ms_delete'].values()) for one in group):.1f}",
                f"{median(group, 'api_cpu_ms'):.1f}",
                f"{median(group, 'pss_total'):.0f}",
                by_group(group, "pss"),
                f"{median(group, 'watches'):.0f}",
                requests(group[-1]["requests"]),
            ]
            for key, group in grouped(runs)
        ],
    )


def scaling(runs: Sequence[Record]) -> str:
    """Return a table of rates relative to the first row."""
    first = runs[0]["pv_per_s"]
    rows = [
        [
            str(one["workers"]),
            str(one["pv_per_s"]),
            f"{one['pv_per_s'] / first:.2f}",
            str(one["cpu_ms_total"])[:5],
        ]
        for one in runs
    ]
    return table("workers | PV/s | against one | CPU ms/claim", rows)


def plain(runs: Sequence[Record]) -> str:
    """Return a table with one row per record."""
    return table(" | ".join(runs[0]), [[str(value) for value in one.values()] for one in runs])


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    count = head.count("|") + 1
    lines = [f"| {head} |", "|" + "---|" * count]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def grouped(runs: Sequence[Record]) -> list[tuple[tuple[Any, ...], list[Record]]]:
    """Group the rounds of the same case, sorted by mode and drivers."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for one in runs:
        key = (one["mode"], one["drivers"], one["system"], one["claims"])
        found.setdefault(key, []).append(one)
    return sorted(found.items(), key=lambda item: item[0][:3])


def key_cells(key: tuple[Any, ...]) -> list[str]:
    mode, drivers, system, claims = key
    return [str(drivers), mode, system, str(claims)]


def median(group: Sequence[Record], name: str) -> float:
    return statistics.median(float(one[name]) for one in group)


def spread(group: Sequence[Record], name: str) -> str:
    """Return the median, with the range if there were several rounds."""
    values = sorted(float(one[name]) for one in group)
    middle = f"{statistics.median(values):.1f}"
    return middle if len(values) < 2 else f"{middle} ({values[0]:.1f}-{values[-1]:.1f})"


def by_group(group: Sequence[Record], name: str) -> str:
    pick: Callable[[str], float] = lambda part: statistics.median(  # noqa: E731
        one[name].get(part, 0.0) for one in group
    )
    return ", ".join(f"{part} {pick(part):.1f}" for part in group[0][name])


def requests(counts: Mapping[str, float]) -> str:
    """Return the counts without the load's own POST and the cluster's binding (PUT)."""
    short = {"GET persistentvolumeclaims": "GET claim", "POST persistentvolumes": "POST PV"}
    short |= {"POST events": "POST event", "PATCH events": "PATCH event"}
    return ", ".join(f"{text} {counts[name]:.1f}" for name, text in short.items() if name in counts)
