"""The worst value of every field of every answer is refused by name, or is harmless."""

from __future__ import annotations

import re
import time

import pytest

from csi_client import answers
from csi_client import messages as csi
from csi_client.errors import UnusableAnswerError
from tests.support import hostile_answers

CALLS = hostile_answers.answers()
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Fields that store or name an object: an id or a size.
ID = re.compile(r"\.(?:volume|snapshot|group_snapshot)_id$")
SIZE = re.compile(r"(?:_bytes|available_capacity)$")
# Fields that are only compared with the request or only counted.
UNREAD = re.compile(r"content_source|entries\.volume\.capacity_bytes")
# Calls that csi-fleet does not make.
UNCALLED = (
    *("/csi.v1.Node/NodeExpandVolume", "/csi.v1.SnapshotMetadata/"),
    "/csi.v1.Node/NodeGetVolumeHealth",
)
MOST_TEXT = 6000


def request_of(rpc):
    """Return the call's request, with ids that no answer contains by chance."""
    service, _, method = rpc.removeprefix("/csi.v1.").partition("/")
    file = csi.CreateVolumeResponse.DESCRIPTOR.file
    kind = file.services_by_name[service].methods_by_name[method].input_type
    return getattr(csi, kind.name)()


def believed(message, path=""):
    """Yield names and values of all fields that a caller would see."""
    for field, value in message.ListFields():
        name = f"{path}.{field.name}"
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            yield name, value
        elif field.is_repeated:
            for one in value:
                yield from believed(one, name)
        else:
            yield from believed(value, name)


def test_every_call_of_csi_is_covered():
    assert len(CALLS) > 25
    assert "/csi.v1.Controller/CreateVolume" in CALLS
    assert "/csi.v1.GroupController/CreateVolumeGroupSnapshot" in CALLS


@pytest.mark.parametrize("rpc", CALLS)
def test_each_field_at_its_worst(rpc):
    """There is a known error, or an answer whose ids and sizes Kubernetes can store."""
    request = request_of(rpc)
    wrong = []
    for name, answer in hostile_answers.worst(hostile_answers.filled(CALLS[rpc])):
        began = time.process_time()
        error = refusal(request, answer, rpc)
        if time.process_time() - began > 1:
            wrong.append(f"{name}: takes long")
        if len(error) > MOST_TEXT or CONTROL.search(error):
            wrong.append(f"{name}: {error[:200]!r}")
        if not error and not rpc.startswith(UNCALLED):
            wrong += [f"{name}: {field} is believed" for field in unusable(answer)]
    assert wrong == []


def refusal(request, answer, rpc):
    """Return the text of the error, or "" for an accepted answer."""
    try:
        answers.check(request, answer, rpc=rpc, driver="hostile.example")
    except UnusableAnswerError as error:
        return str(error)
    return ""


def unusable(answer):
    """Yield stored fields whose value no Kubernetes object could have."""
    for field, value in believed(answer):
        is_bad_id = ID.search(field) and not (
            0 < len(value) <= answers.MOST_ID_BYTES and not CONTROL.search(value)
        )
        if (is_bad_id or (SIZE.search(field) and value < 0)) and not UNREAD.search(field):
            yield field
