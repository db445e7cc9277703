"""Output: colours and tables on a terminal, plain lines when piped, JSON or YAML for programs.

Programs get a document: `apiVersion` (the schema's version), `kind`, and the command's fields.
Within a version, fields are added but never removed. Times are RFC 3339 in UTC, with `null` for no
time; durations are in seconds.
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
    """Return True if standard output is a terminal."""
    return sys.stdout.isatty()


def write(text: str = "") -> None:
    """Write one line to standard output."""
    sys.stdout.write(f"{plain(text)}\n")


def write_json(value: Any) -> None:
    """Write a JSON value to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def document(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Build the document for programs: a command's fields with the version and kind."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def write_document(output: str, kind: str, fields: Mapping[str, Any]) -> None:
    """Write a document to standard output, as YAML if `output` is yaml, else as JSON."""
    if output != "yaml":
        write_json(document(kind, fields))
        return
    import yaml  # noqa: PLC0415 - takes a tenth of a second, and few use it

    # Convert to JSON first, so that both formats have the same content.
    value = json.loads(json.dumps(document(kind, fields), default=str))
    yaml.safe_dump(value, sys.stdout, sort_keys=False, allow_unicode=False)


def write_explained(lines: Sequence[str], *, is_problem: bool) -> None:
    """Write an explanation; on a terminal, its first line is yellow for a problem, else green."""
    write_lines(lines[:1], style="bold yellow" if is_problem else "bold green")
    write_lines(lines[1:])


def write_lines(lines: Iterable[str], *, style: str = "") -> None:
    """Write several lines; `style` colours them on a terminal."""
    if style and is_terminal():
        from rich.console import Console  # noqa: PLC0415 - only needed on a terminal
        from rich.text import Text  # noqa: PLC0415

        console = Console(highlight=False)
        for line in lines:
            console.print(Text(plain(line), style=style), soft_wrap=True)
        return
    for line in lines:
        write(line)


def write_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table: boxed on a terminal, else in columns separated by spaces.

    grep and awk can process these columns.
    """
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
    """Write each row in one line; on a narrow terminal, the first cell is shortened in its middle.

    Args:
        head: the names of the columns.
        rows: the cells of the rows.
        numbers_from: the columns from this index on are numbers and are right-aligned.
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
    """Return a cell in the colour of the state that it shows, if any."""
    from rich.text import Text  # noqa: PLC0415

    style = _STYLES.get(cell.partition(":")[0].lower(), "")
    return Text(cell, style=style)


def clear() -> None:
    """Clear the screen."""
    sys.stdout.write("\x1b[2J\x1b[H")


def can_ask() -> bool:
    """Return True if there is a terminal on which the user can answer a question."""
    return sys.stdin.isatty() and is_terminal()


def ask(question: str) -> str:
    """Ask the user at the terminal; return "" if there is no terminal."""
    if not can_ask():
        return ""
    sys.stdout.write(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip()
