"""Connects the fields of frozen settings to flags. The flags' rows contain the defaults.

A settings class names the row once (`setting("timeout", FLAGS)`). The row gives the field its
default, its value on the command line, and a driver's own value in the drivers file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import DataclassInstance

    from workers.config.flags import Flag

    _Settings = TypeVar("_Settings", bound=DataclassInstance)

_FLAG: Final = "flag"


def setting(name: str, flags: Mapping[str, Flag] | Iterable[Flag]) -> Any:
    """Return a dataclass field for the flag's value, with the flag's default."""
    rows = flags.values() if isinstance(flags, Mapping) else flags
    (flag,) = (one for one in rows if one.name == name)
    return taken(name, default=flag.default_value())


def taken(name: str, *, default: Any) -> Any:
    """Like `setting`, for a flag of a higher package; a test compares the two defaults."""
    return field(default=default, metadata={_FLAG: name})


def read(kind: type[_Settings], values: Mapping[str, Any], **others: Any) -> _Settings:
    """Build settings, taking each field from `others`, or else from the value of its flag."""
    return kind(**(_of_flags(kind, values) | others))


def with_flags(settings: _Settings, values: Mapping[str, Any]) -> _Settings:
    """Return the settings with new values for the given flags."""
    return replace(settings, **_of_flags(type(settings), values, is_partial=True))


def _of_flags(
    kind: type[_Settings], values: Mapping[str, Any], *, is_partial: bool = False
) -> dict[str, Any]:
    named = {one.name: one.metadata[_FLAG] for one in fields(kind) if _FLAG in one.metadata}
    return {name: values[flag] for name, flag in named.items() if not is_partial or flag in values}
