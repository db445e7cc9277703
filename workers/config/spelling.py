"""Suggests a known word for a misspelled word."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def meant(word: str, known: Iterable[str]) -> str:
    """Return ` did you mean WORD?` if the word is similar to a known word, else ""."""
    import difflib  # noqa: PLC0415 - needed only after a mistake

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return f" did you mean {found[0]}?" if found else ""
