"""Output for people: colours and tables on a terminal, plain lines in a pipe, JSON on request."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from workers.cli.kubectl import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

_STYLES: Final = {
    "ok": "green",
    "warn": "yellow",
    "paused": "yellow",
    "lease elsewhere": "yellow",
    "not served": "bold red",
    "breaker": "bold red",
    "fail": "bold red",
}


def is_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty()


def write(text: str = "") -> None:
    """One line to standard output."""
    sys.stdout.write(f"{plain(text)}\n")


def write_json(value: Any) -> None:
    """A JSON document to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def write_lines(lines: Iterable[str], *, style: str = "") -> None:
    """Several lines; `style` colours them where a person looks."""
    if style and is_terminal():
        from rich.console import Console  # noqa: PLC0415 - only where a person looks
        from rich.text import Text  # noqa: PLC0415

        console = Console(highlight=False)
        for line in lines:
            console.print(Text(plain(line), style=style), soft_wrap=True)
        return
    for line in lines:
        write(line)


def write_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: boxed on a terminal, columns apart by blanks otherwise (for grep and awk)."""
    texts = [[plain(str(cell)).replace("\n", " ") for cell in row] for row in rows]
    if is_terminal():
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        table = Table(title=title, title_justify="left", show_edge=False)
        for name in head:
            table.add_column(name, overflow="fold")
        for row in texts:
            table.add_row(*(_coloured(cell) for cell in row))
        Console(highlight=False).print(table)
        return
    write(f"# {title}")
    widths = [max(len(row[i]) for row in [list(head), *texts]) for i in range(len(head))]
    for row in [list(head), *texts]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        write(line.rstrip())


def _coloured(cell: str) -> Text:
    """A cell; one that tells a state has the state's colour."""
    from rich.text import Text  # noqa: PLC0415

    style = _STYLES.get(cell.partition(":")[0].lower(), "")
    return Text(cell, style=style)


def clear() -> None:
    """An empty screen."""
    sys.stdout.write("\x1b[2J\x1b[H")


def can_ask() -> bool:
    """Whether a person can answer."""
    return sys.stdin.isatty() and is_terminal()


def ask(question: str) -> str:
    """The answer of the person at the terminal, "" when there is none."""
    if not can_ask():
        return ""
    sys.stdout.write(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip()
