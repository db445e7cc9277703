"""Writes those parts of a compiled CSI definition that matter on the wire as lines of plain text.

The committed tables `tests/unit/csi_client/csi_v1_12_fields.txt` and `csi_v1_13_fields.txt` were
written with `main` from the published definitions (container-storage-interface/spec, tags v1.12.0
and v1.13.0):
`protoc -I. --descriptor_set_out=csi.bin csi.proto`, then
`python -m tests.support.csi_field_table csi.bin > csi_v1_12_fields.txt`.
The same lines made from our own descriptor must equal both together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import Message

SECRET, ALPHA = 1059, 1060
KINDS = {number: name for name, number in FieldDescriptorProto.Type.items()}


def table(file: FileDescriptorProto) -> list[str]:
    """Return one sorted line for each field, enum value, method and custom option of `file`.

    `field <message>.<field> <number> <type> [repeated] [oneof=<name>] [secret] [alpha]`, and
    likewise for the rest. Order and comments of the source file leave no trace.
    """
    lines = [f"package {file.package}"]
    for message in file.message_type:
        lines += _message_lines(message, message.name)
    for enum in file.enum_type:
        lines += _enum_lines(enum, enum.name)
    for option in file.extension:
        lines.append(f"option {option.extendee}.{option.name} {option.number} {_kind(option)}")
    for service in file.service:
        lines.append(_join("service", service.name, _marks(service.options)))
        lines += [
            _join(
                *("method", f"{service.name}.{method.name}", method.input_type),
                *("stream" * method.server_streaming, method.output_type, _marks(method.options)),
            )
            for method in service.method
        ]
    return sorted(lines)


def _message_lines(message: DescriptorProto, path: str) -> Iterator[str]:
    if message.options.map_entry:
        key, value = message.field
        yield f"map {path} {_kind(key)} {_kind(value)}"
        return
    yield _join("message", path, _marks(message.options))
    for reserved in message.reserved_range:
        yield f"reserved {path} {reserved.start} {reserved.end}"
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        yield _join(
            *("field", f"{path}.{field.name}", str(field.number), _kind(field)),
            "repeated" * (field.label == FieldDescriptorProto.LABEL_REPEATED),
            f"oneof={oneof}" * bool(oneof),
            _marks(field.options),
        )
    for nested in message.nested_type:
        yield from _message_lines(nested, f"{path}.{nested.name}")
    for enum in message.enum_type:
        yield from _enum_lines(enum, f"{path}.{enum.name}")


def _enum_lines(enum: EnumDescriptorProto, path: str) -> Iterator[str]:
    for value in enum.value:
        yield _join("enum", f"{path}.{value.name}", str(value.number), _marks(value.options))


def _kind(field: FieldDescriptorProto) -> str:
    return field.type_name or KINDS[field.type].removeprefix("TYPE_").lower()


def _marks(options: Message) -> str:
    """Name the custom options that are set, from the raw bytes, so that no registry affects the
    result."""
    numbers = set(_varint_fields(options.SerializeToString()))
    return " ".join(name for name, n in (("secret", SECRET), ("alpha", ALPHA)) if n in numbers)


def _varint_fields(data: bytes) -> Iterator[int]:
    """Yield the numbers of the fields of `data` that hold the varint 1 (a bool set to true)."""
    values = iter(_varints(data))
    for tag in values:
        if tag & 7 != 0:
            raise ValueError("only bool options are expected in CSI's definition")
        if next(values) == 1:
            yield tag >> 3


def _varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield value
            value = shift = 0


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def main(paths: Iterable[str]) -> None:
    """Print the table of a descriptor set with one file."""
    (path,) = paths
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes())
    print("\n".join(table(files.file[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
