"""How does a field of frozen settings get its value? From its flag, whose row has the default.

A settings class names the row once (`setting("timeout", FLAGS)`); the field's default, what the
command line gives and what a driver of the drivers file has of its own follow from that.
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
    """A field that holds the flag's value, by default the flag's default."""
    rows = flags.values() if isinstance(flags, Mapping) else flags
    (flag,) = (one for one in rows if one.name == name)
    return taken(name, default=flag.default_value())


def taken(name: str, *, default: Any) -> Any:
    """The same for a flag whose row stands in a package above (a test compares the defaults)."""
    return field(default=default, metadata={_FLAG: name})


def read(kind: type[_Settings], values: Mapping[str, Any], **others: Any) -> _Settings:
    """Build settings: each field from its flag's value, but for those that `others` gives."""
    return kind(**(_of_flags(kind, values) | others))


def with_flags(settings: _Settings, values: Mapping[str, Any]) -> _Settings:
    """The same settings with other values of the flags that are named."""
    return replace(settings, **_of_flags(type(settings), values, is_partial=True))


def _of_flags(
    kind: type[_Settings], values: Mapping[str, Any], *, is_partial: bool = False
) -> dict[str, Any]:
    named = {one.name: one.metadata[_FLAG] for one in fields(kind) if _FLAG in one.metadata}
    return {name: values[flag] for name, flag in named.items() if not is_partial or flag in values}
