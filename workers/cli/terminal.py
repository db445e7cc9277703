"""Output: colours and tables on a terminal, plain lines in a pipe, JSON or YAML for programs.

What programs read is a document: `apiVersion` (the schema's version), `kind`, and the command's
fields. Within a version fields are added, never taken away. Times are RFC 3339 in UTC, `null` for
none; durations end in `_seconds` or stand in seconds.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from workers.cli.kubectl import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.text import Text

API_VERSION: Final = "csi-fleet.io/v1"
NARROW: Final = 80
_STYLES: Final = {
    "ok": "green",
    "warn": "yellow",
    "paused": "yellow",
    "lease elsewhere": "yellow",
    "not served": "bold red",
    "disconnected": "bold red",
    "fail": "bold red",
    "failing": "yellow",
}


def is_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty()


def write(text: str = "") -> None:
    """One line to standard output."""
    sys.stdout.write(f"{plain(text)}\n")


def write_json(value: Any) -> None:
    """A JSON value to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def document(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a program reads: the fields of a command with their schema's version."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def write_document(output: str, kind: str, fields: Mapping[str, Any]) -> None:
    """A document to standard output, as `-o yaml` or `-o json` asks for it."""
    if output != "yaml":
        write_json(document(kind, fields))
        return
    import yaml  # noqa: PLC0415 - a tenth of a second, and few ask for it

    # As JSON has it, so that both say the same.
    value = json.loads(json.dumps(document(kind, fields), default=str))
    yaml.safe_dump(value, sys.stdout, sort_keys=False, allow_unicode=False)


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


def write_rows(head: Sequence[str], rows: Sequence[Sequence[object]], *, numbers_from: int) -> None:
    """One line a row, also on a narrow terminal: the first cell gives way, in its middle.

    Args:
        head: names of the columns.
        rows: their cells.
        numbers_from: columns from here on are numbers, at the right of their column.
    """
    texts = [[plain(str(cell)).replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    if is_terminal():
        room = os.get_terminal_size(sys.stdout.fileno()).columns or NARROW
        widths[0] = max(10, min(widths[0], room - sum(widths[1:]) - 2 * (len(widths) - 1)))
    for index, row in enumerate(texts):
        cells = [_shortened(row[0], widths[0]), *row[1:]]
        line = "  ".join(
            cell.rjust(width) if at >= numbers_from else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        style = _STYLES.get(row[1].partition(":")[0].lower(), "") if index else "bold"
        write_lines([line], style=style)


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}~{text[len(text) - (width - 1 - head) :]}"


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
