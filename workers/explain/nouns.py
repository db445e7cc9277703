"""The kinds of objects that commands accept, and their names; derived from the controllers' keys.

`explain` and `retry` accept kubectl's short name (`pvc`, `va`), the kind or its plural. Several
controllers may each have their own kind of key for the same object: one provisions a claim, and
another one resizes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from workers.controllers import catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.paths import Resource
    from workers.spec import Kind, Spec


@dataclass(frozen=True, slots=True)
class Noun:
    """One kind of object that commands accept.

    Attributes:
        word: the kind's name in the output of `explain`.
        resource: the kind's resource in the API.
        kinds: the kinds of key for such an object, with their controllers.
    """

    word: str
    resource: Resource
    kinds: tuple[tuple[Spec, Kind], ...]

    @property
    def example(self) -> str:
        """How such an object is written on the command line."""
        return f"{self.word} {'NAMESPACE/NAME' if self.resource.namespaced else 'NAME'}"


@cache
def nouns() -> Mapping[str, Noun]:
    """Return every noun by its word, in the order of the controllers."""
    found: dict[str, list[tuple[Spec, Kind]]] = {}
    for spec in catalogue.SPECS:
        for kind in spec.kinds:
            if kind.noun and kind.subject is not None:
                found.setdefault(kind.noun, []).append((spec, kind))
    return {
        word: Noun(word, kinds[0][1].subject, tuple(kinds))
        for word, kinds in found.items()
        if kinds[0][1].subject is not None
    }


def find(word: str) -> Noun | None:
    """Return the noun for a word that a user typed, or None if it is unknown."""
    known = nouns()
    if word in known:
        return known[word]
    low = word.lower()
    for noun in known.values():
        short = noun.resource.kind.lower().removeprefix("persistent").removeprefix("volume")
        if low in {noun.resource.kind.lower(), noun.resource.plural, *_SHORT.get(noun.word, ())}:
            return noun
        if short and low == short and short not in known:
            return noun
    return None


_SHORT = {"pvc": ("claim",), "pv": ("volume",), "va": ("attachment",)}
"""Short words that commands accept in addition to kubectl's names."""
