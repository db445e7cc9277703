"""Text from other users cannot send control sequences to the terminal (SEC-9)."""

from __future__ import annotations

import pytest

from workers.cli import terminal

HOSTILE = [
    pytest.param("\x1b[2J\x1b[31mred", r"\x1b[2J\x1b[31mred", id="clears and colours"),
    pytest.param("\x9b2J", r"\x9b2J", id="one byte of the same"),
    pytest.param("ok\rFAIL", r"ok\rFAIL", id="writes over the line"),
    pytest.param("a\u202eb", r"a\u202eb", id="turns the direction"),
    pytest.param("größe\t5 GiB", "größe\t5 GiB", id="plain words stay"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_control_characters_are_spelled_out(text, shown, capsys):
    terminal.write(text)
    terminal.write_lines([text])
    terminal.write_table("t", ("A",), [[text]])
    assert capsys.readouterr().out.count(shown) == 3
