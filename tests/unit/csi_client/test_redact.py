"""No secret field of any CSI message reaches a log (P-012)."""

from __future__ import annotations

import json

import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st

from csi_client import messages as csi
from csi_client.redact import STRIPPED, redact, secret_values

SECRET_MESSAGES = [
    name
    for name, descriptor in csi.DESCRIPTOR.message_types_by_name.items()
    if any(field.GetOptions().Extensions[csi.csi_secret] for field in descriptor.fields)
]


def test_the_standard_has_22_messages_with_secrets() -> None:
    assert len(SECRET_MESSAGES) == 22


@pytest.mark.parametrize("name", SECRET_MESSAGES)
def test_p012_secret_field_is_stripped(name: str) -> None:
    message = message_factory.GetMessageClass(csi.DESCRIPTOR.message_types_by_name[name])(
        secrets={"password": "hunter2"}
    )
    assert json.loads(redact(message)) == {"secrets": STRIPPED}


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), min_size=1))
def test_no_secret_survives(secrets: dict[str, str]) -> None:
    shown = redact(csi.DeleteVolumeRequest(volume_id="", secrets=secrets))
    assert shown == '{"secrets":"***stripped***"}'


def test_everything_else_is_shown() -> None:
    request = csi.CreateVolumeRequest(
        name="pvc-1",
        capacity_range=csi.CapacityRange(required_bytes=10737418240),
        volume_capabilities=[
            csi.VolumeCapability(
                mount=csi.VolumeCapability.MountVolume(fs_type="xfs", mount_flags=["ro"]),
                access_mode=csi.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER"),
            )
        ],
        parameters={"type": "ssd"},
        accessibility_requirements=csi.TopologyRequirement(
            requisite=[csi.Topology(segments={"zone": "z1"})]
        ),
    )
    assert json.loads(redact(request)) == {
        "name": "pvc-1",
        "capacity_range": {"required_bytes": 10737418240},
        "volume_capabilities": [
            {
                "mount": {"fs_type": "xfs", "mount_flags": ["ro"]},
                "access_mode": {"mode": "SINGLE_NODE_WRITER"},
            }
        ],
        "parameters": {"type": "ssd"},
        "accessibility_requirements": {"requisite": [{"segments": {"zone": "z1"}}]},
    }


def test_unknown_enum_number_is_shown_as_number() -> None:
    mode = csi.VolumeCapability.AccessMode.FromString(b"\x08\x63")
    assert json.loads(redact(mode)) == {"mode": 99}


def test_a_line_of_the_log_has_its_fields_in_order_and_letters_as_they_are() -> None:
    """Users search logs for what they see, and the same request must give the same line."""
    request = csi.CreateVolumeRequest(
        name="größe", parameters={"z": "1", "a": "2"}, secrets={"p": "x"}
    )
    assert redact(request) == (
        '{"name":"größe","parameters":{"a":"2","z":"1"},"secrets":"***stripped***"}'
    )
    entry = csi.CapacityRange(required_bytes=1, limit_bytes=2)
    assert redact(entry) == '{"limit_bytes":2,"required_bytes":1}'


def test_secrets_are_found_among_everything_else() -> None:
    """The request has other fields of every shape: text, maps, lists, messages, numbers."""
    request = csi.CreateVolumeRequest(
        name="pvc-1",
        capacity_range=csi.CapacityRange(required_bytes=1),
        volume_capabilities=[
            csi.VolumeCapability(
                mount=csi.VolumeCapability.MountVolume(fs_type="xfs", mount_flags=["ro"])
            )
        ],
        parameters={"type": "ssd"},
        secrets={"user": "admin", "password": "hunter2"},
        accessibility_requirements=csi.TopologyRequirement(
            requisite=[csi.Topology(segments={"zone": "z1"})]
        ),
    )
    assert sorted(secret_values(request)) == ["admin", "hunter2"]
    request.ClearField("secrets")
    assert list(secret_values(request)) == []
