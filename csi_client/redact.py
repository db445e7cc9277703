"""Formats a message for the log as JSON, with every csi_secret field hidden (P-012).

The csi_secret options are read from the descriptor, so new messages and nested fields of any depth
are covered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor

from csi_client.messages import csi_secret

if TYPE_CHECKING:
    from google.protobuf.message import Message

STRIPPED: Final = "***stripped***"


def redact(message: Message) -> str:
    """Return `message` as one line of JSON with csi.proto's names; secrets become `STRIPPED`.

    Absent fields are left out. Source: csi-lib-utils, protosanitizer StripSecrets.
    """
    return json.dumps(_view(message), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def secret_values(message: Message) -> Iterator[str]:
    """Yield the values of all csi_secret fields in `message`, at any depth."""
    for field, value in message.ListFields():
        if _is_secret(field):
            yield from value.values() if isinstance(value, Mapping) else [str(value)]
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in _parts(field, value):
                yield from secret_values(part)


def _view(message: Message) -> dict[str, Any]:
    return {
        field.name: STRIPPED if _is_secret(field) else _field_view(field, value)
        for field, value in message.ListFields()
    }


def _field_view(field: FieldDescriptor, value: Any) -> Any:
    if _is_map(field):
        return {key: _scalar_view(_map_value(field), item) for key, item in value.items()}
    if field.is_repeated:
        return [_scalar_view(field, item) for item in value]
    return _scalar_view(field, value)


def _scalar_view(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _view(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return f"<{len(value)} bytes>"
    return value


def _parts(field: FieldDescriptor, value: Any) -> list[Message]:
    if _is_map(field):
        is_message = _map_value(field).type == FieldDescriptor.TYPE_MESSAGE
        return list(value.values()) if is_message else []
    return list(value) if field.is_repeated else [value]


def _is_secret(field: FieldDescriptor) -> bool:
    return bool(field.GetOptions().Extensions[csi_secret])


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _map_value(field: FieldDescriptor) -> FieldDescriptor:
    assert field.message_type is not None
    return field.message_type.fields_by_name["value"]
