"""Output of the demo: a live table on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class Row:
    """The table row of one claim. `seconds` is the time from creation to Bound, None until then."""

    claim: str
    driver: str
    phase: str
    volume: str
    last_event: str
    seconds: float | None


class Screen:
    """Shows rows that change; use as a context manager around the live part."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, highlight=False)
        self._live: Live | None = None
        self._shown: dict[str, Row] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print one line of text, above the table if there is one."""
        self.console.print(line, markup=False, soft_wrap=True)

    def show(self, rows: Sequence[Row]) -> None:
        """Redraw the table; when piped, print the rows that changed since the last call."""
        if self._live:
            self._live.update(_table(rows), refresh=True)
            return
        now = {row.claim: row for row in rows}
        for claim, row in now.items():
            before = self._shown.get(claim)
            if before is None or (before.phase, before.volume) != (row.phase, row.volume):
                self.say(_line(row))
        for claim in self._shown.keys() - now.keys():
            self.say(f"  {claim:12} gone")
        self._shown = now


def _line(row: Row) -> str:
    took = "" if row.seconds is None else f"after {row.seconds:.1f} s"
    return f"  {row.claim:12} {row.driver:32} {row.phase:12} {row.volume} {took}".rstrip()


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="csi-fleet: claims of two drivers, one provisioner", expand=False)
    for heading in ("claim", "driver", "phase", "volume", "Bound after", "last event"):
        table.add_column(heading, no_wrap=heading != "last event")
    for row in rows:
        color = {"Bound": "green", "Terminating": "red"}.get(row.phase, "yellow")
        took = "" if row.seconds is None else f"{row.seconds:.1f} s"
        phase = f"[{color}]{row.phase}[/{color}]"
        table.add_row(row.claim, row.driver, phase, row.volume, took, row.last_event)
    return table
