"""The password of a Redis is the one in its file at the moment of the login."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.queue.following import current_password


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(b"new\n", "new", id="the line"),
        pytest.param(b"new\nold\n", "new", id="the first of several"),
        pytest.param(b"", "", id="being written"),
        pytest.param(b"\xff\xfe", "", id="no text"),
        pytest.param(None, "", id="being replaced"),
    ],
)
def test_a_password_file(tmp_path: Path, written: bytes | None, read: str) -> None:
    """Never an error: until the file can be read the password of before is used."""
    file = tmp_path / "password"
    if written is not None:
        file.write_bytes(written)
    assert current_password(str(file)) == read


def test_without_a_password_file_nothing_is_read() -> None:
    assert current_password("") == ""
