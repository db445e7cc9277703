"""Changes every field of every answer of a driver to extreme values, from CSI's own definition.

`worst(answer)` changes a good answer at one place at a time: each field of each message in it. So a
field that a later CSI version adds is covered without a change here.
"""

from __future__ import annotations

import copy
import itertools
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from csi_client import messages as csi

FOREIGN = "/etc/kubernetes"
MANY = 20_000
HUGE = "x" * 1_000_000
WORDS = {
    "empty": "",
    "huge": HUGE,
    "control": "\x00\x1b[2J\r\n\x7f",
    "path": "../../../etc/passwd",
    "absolute": FOREIGN,
    "bar": "claims|other.example.org|a/b|u",
    "right-to-left": "\u202e\u2066x",
    "blank": "   ",
    "template": "${pvc.namespace}/{{.}}/%s%n",
}
NUMBERS = {
    FieldDescriptor.TYPE_INT64: (2**63 - 1, -(2**63), -1, 0),
    FieldDescriptor.TYPE_INT32: (2**31 - 1, -(2**31), -1, 0),
    FieldDescriptor.TYPE_ENUM: (0, 99, -(2**31)),
    FieldDescriptor.TYPE_BOOL: (False, True),
}
DEPTH = 4
# The example driver reads all rules at each call, so they have to be small.
_SMALL: dict[str, Any] = {"many": 300, "huge": "x" * 5000}
# The calls that the drivers' workers make while claims are created and deleted.
_CALLS = (
    *("ControllerGetCapabilities", "GetPluginCapabilities", "GetPluginInfo", "Probe"),
    *("GetCapacity", "ListVolumes"),
)


def answers() -> dict[str, type[Message]]:
    """Return the answer message of each call of every CSI service, by its full method."""
    file: Any = csi.CreateVolumeResponse.DESCRIPTOR.file
    return {
        f"/csi.v1.{name}/{method.name}": getattr(csi, method.output_type.name)
        for name, service in file.services_by_name.items()
        for method in service.methods
        if hasattr(csi, method.output_type.name)
    }


def filled(kind: Any, depth: int = DEPTH) -> Any:
    """Return a message with a value in every field, so that every field can be changed."""
    message: Any = kind()
    for field in message.DESCRIPTOR.fields:
        _fill(message, field, depth)
    return message


def worst(message: Message, *, many: int = MANY, **words: str) -> Iterator[tuple[str, Message]]:
    """Yield names and copies of the message, each with one field at an extreme value.

    Args:
        message: a good answer.
        many: the number of entries in fields that are made very long.
        words: further texts to try, by name, such as the id of another driver's volume.
    """
    for path in _places(message, ()):
        for name, change in _changes(_at(message, path[:-1]), path[-1], WORDS | words, many):
            changed = copy.deepcopy(message)
            change(_at(changed, path[:-1]))
            yield f"{'.'.join(map(str, path))} {name}", changed


def rules(foreign: str) -> tuple[int, list[dict[str, Any]]]:
    """Return rules of the example driver for extreme answers, one field each.

    Args:
        foreign: the id of another driver's volume, which answers name too.

    Returns:
        The number of CreateVolume's answers, and the rules. A class with the parameter `case`, a
        number below that, gets one of them; each answer of the other calls comes once.
    """
    good = csi.CreateVolumeResponse(
        volume=csi.Volume(
            volume_id="v",
            capacity_bytes=2**30,
            volume_context={"key": "value"},
            accessible_topology=[csi.Topology(segments={"zone": "z1"})],
            content_source=csi.VolumeContentSource(
                volume=csi.VolumeContentSource.VolumeSource(volume_id="v")
            ),
        )
    )
    made = [_encoded(one) for _, one in worst(good, foreign=foreign, **_SMALL)]
    found: list[dict[str, Any]] = [
        {"method": "CreateVolume", "match": f"case={number}", "skip_work": True,
         "answer_base64": one}
        for number, one in enumerate(made)
    ]  # fmt: skip
    found += itertools.chain.from_iterable(once_each(foreign, *_CALLS).values())
    return len(made), found


def once_each(foreign: str, *methods: str) -> dict[str, list[dict[str, Any]]]:
    """Return rules of the example driver by method: each extreme answer comes once.

    The work is done before the answer. After the last extreme answer, the answers are good.
    """
    kinds = {name.rpartition("/")[2]: kind for name, kind in answers().items()}
    return {
        method: [
            {"method": method, "times": 1, "answer_base64": _encoded(one)}
            for _, one in worst(filled(kinds[method]), foreign=foreign, **_SMALL)
        ]
        for method in methods
    }


def _encoded(message: Message) -> str:
    return b64encode(message.SerializeToString()).decode()


def _fill(message: Any, field: Any, depth: int) -> None:
    if _is_map(field):
        getattr(message, field.name)["key"] = "value"
    elif field.message_type is not None:
        if depth:
            inner = filled(type(_new(message, field)), depth - 1)
            if field.is_repeated:
                getattr(message, field.name).append(inner)
            else:
                getattr(message, field.name).CopyFrom(inner)
    else:
        one = {FieldDescriptor.TYPE_STRING: "x", FieldDescriptor.TYPE_BYTES: b"x"}.get(
            field.type, 1
        )
        if field.is_repeated:
            getattr(message, field.name).append(one)
        else:
            setattr(message, field.name, one)


def _new(message: Any, field: Any) -> Any:
    scratch = type(message)()
    if field.is_repeated:
        return getattr(scratch, field.name).add()
    return getattr(scratch, field.name)


def _is_map(field: Any) -> Any:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _places(message: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for field in message.DESCRIPTOR.fields:
        yield (*path, field.name)
        if field.message_type is None or _is_map(field):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            for number, inner in enumerate(value):
                yield from _places(inner, (*path, field.name, number))
        elif message.HasField(field.name):
            yield from _places(value, (*path, field.name))


def _at(message: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        message = message[step] if isinstance(step, int) else getattr(message, step)
    return message


def _changes(holder: Any, name: str, words: dict[str, str], many: int) -> Iterator[tuple[str, Any]]:
    field = holder.DESCRIPTOR.fields_by_name[name]
    yield "missing", lambda one: one.ClearField(name)
    if _is_map(field):
        for word, text in words.items():
            yield f"key {word}", lambda one, text=text: getattr(one, name).update({text: "v"})
            yield f"value {word}", lambda one, text=text: getattr(one, name).update({"k": text})
        keys = {f"key-{number}": "v" for number in range(many)}
        yield "endless", lambda one: getattr(one, name).update(keys)
    elif field.is_repeated:
        yield "endless", lambda one: getattr(one, name).extend(list(getattr(one, name)) * many)
        if field.type == FieldDescriptor.TYPE_STRING:
            for word, text in words.items():
                yield word, lambda one, text=text: getattr(one, name).append(text)
    elif field.type == FieldDescriptor.TYPE_STRING:
        for word, text in words.items():
            yield word, lambda one, text=text: setattr(one, name, text)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        for raw in (b"", b"\xff" * 1_000_000):
            yield f"{len(raw)} bytes", lambda one, raw=raw: setattr(one, name, raw)
    elif field.message_type is None:
        for value in NUMBERS.get(field.type, (0,)):
            yield str(value), lambda one, value=value: setattr(one, name, value)
