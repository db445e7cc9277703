"""Parses YAML into values with line numbers, so that error messages can name the line.

Scalars are kept as written: `true`, `1` and `"1"` are all strings. The code that reads a field
parses the string in the same way as the command line does.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection


def load(content: str, file: str) -> Entry:
    """Return the root of the document.

    Raises:
        ConfigError: the content is not YAML, is empty, or has more than one document.
    """
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{file}: {line}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not YAML: {str(error).splitlines()[0]}") from None
    if node is None:
        raise ConfigError(f"{file}: the file is empty; add a list `drivers:`")
    return Entry(node, file, "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of the file, with its line and methods to read it."""

    node: yaml.Node
    file: str
    path: str

    def error(self, problem: str) -> ConfigError:
        """Return an error about this value, for the caller to raise."""
        place = f"{self.path}: " if self.path else ""
        return ConfigError(f"{self.file}: line {self.node.start_mark.line + 1}: {place}{problem}")

    def text(self) -> str:
        """Return the scalar as written; raises ConfigError if the value is absent."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error("must be a single value, not a list or map")
        if self.node.tag == "tag:yaml.org,2002:null":
            raise self.error("has no value")
        return str(self.node.value)

    def sequence(self) -> list[Entry]:
        """Return the entries of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("must be a list")
        return [
            Entry(node, self.file, f"{self.path}[{index}]")
            for index, node in enumerate(self.node.value)
        ]

    def mapping(
        self, known: Collection[str] | None, *, required: Collection[str] = ()
    ) -> dict[str, Entry]:
        """Return the fields of a map; if `known` is None, any name is allowed.

        Raises:
            ConfigError: a field is unknown, duplicated or missing.
        """
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("must be a map of fields")
        found: dict[str, Entry] = {}
        for key, node in self.node.value:
            name = Entry(key, self.file, self.path).text()
            entry = Entry(node, self.file, f"{self.path}.{name}" if self.path else name)
            if name in found:
                raise entry.error("occurs twice")
            if known is not None and name not in known:
                raise Entry(key, self.file, self.path).error(_unknown(name, known))
            found[name] = entry
        for name in required:
            if name not in found:
                raise self.error(f"field {name!r} is missing")
        return found


def _unknown(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"unknown field {name!r}; did you mean {close[0]!r}?"
    return f"unknown field {name!r}; the known fields are {', '.join(sorted(known))}"
