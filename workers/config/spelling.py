"""What did somebody mean who wrote a word that there is not?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def meant(word: str, known: Iterable[str]) -> str:
    """` did you mean --x?` for a word that is nearly one of the known ones, else nothing."""
    import difflib  # noqa: PLC0415 - only for who mistyped

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return f" did you mean {found[0]}?" if found else ""
