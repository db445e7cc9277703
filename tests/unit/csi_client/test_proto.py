"""The wire format equals the published CSI definitions and bytes made by hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import Message

from csi_client import messages as csi
from tests.support import generate_stubs
from tests.support.csi_field_table import table

HERE = Path(__file__).parent
CSI_12, CSI_13 = (
    set((HERE / f"csi_v1_{minor}_fields.txt").read_text().splitlines()) for minor in (12, 13)
)
# CSI 1.13 reserves the numbers of the fields that it removed; drivers for 1.12 still use them.
REUSED = {line for line in CSI_13 - CSI_12 if line.startswith("reserved ")}
PUBLISHED = sorted((CSI_12 | CSI_13) - REUSED)


def our_file() -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    csi.DESCRIPTOR.CopyToProto(proto)
    return proto


def test_definition_equals_the_published_one() -> None:
    """Numbers, types, labels, oneofs, secret and alpha marks, enums, methods and options match."""
    assert table(our_file()) == PUBLISHED


def test_published_table_has_the_whole_standard() -> None:
    """The table itself must not be truncated together with the file that it checks."""
    kinds = [line.split()[0] for line in PUBLISHED]
    assert (kinds.count("service"), kinds.count("method"), kinds.count("option")) == (5, 36, 7)
    assert sum(line.endswith("secret") or " secret " in line for line in PUBLISHED) == 22


def test_only_what_1_13_removed_is_in_1_12_alone() -> None:
    """They are VolumeCondition and its capabilities; 1.13 does not reuse their numbers."""
    removed = {line.split()[1] for line in CSI_12 - CSI_13}
    assert removed
    assert all("volume_condition" in one.lower() or "VolumeCondition" in one for one in removed)
    assert len(REUSED) == 3


def _renumber(file: descriptor_pb2.FileDescriptorProto) -> None:
    request = next(m for m in file.message_type if m.name == "CreateVolumeRequest")
    request.field[0].number += 100


def _hide_secret_mark(file: descriptor_pb2.FileDescriptorProto) -> None:
    request = next(m for m in file.message_type if m.name == "DeleteVolumeRequest")
    request.field[1].ClearField("options")


def _renumber_enum(file: descriptor_pb2.FileDescriptorProto) -> None:
    capability = next(m for m in file.message_type if m.name == "ControllerServiceCapability")
    capability.nested_type[0].enum_type[0].value[7].number = 70


def _retype(file: descriptor_pb2.FileDescriptorProto) -> None:
    message = next(m for m in file.message_type if m.name == "CapacityRange")
    message.field[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64


@pytest.mark.parametrize("change", [_renumber, _hide_secret_mark, _renumber_enum, _retype])
def test_table_notices_one_change(
    change: Callable[[descriptor_pb2.FileDescriptorProto], None],
) -> None:
    file = our_file()
    change(file)
    assert table(file) != PUBLISHED


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        pytest.param(
            csi.DeleteVolumeRequest(volume_id="v-1", secrets={"k": "s"}),
            b"\x0a\x03v-1" + b"\x12\x06\x0a\x01k\x12\x01s",
            id="string and map",
        ),
        pytest.param(
            csi.CreateVolumeRequest(
                name="n",
                capacity_range=csi.CapacityRange(required_bytes=300),
                volume_capabilities=[
                    csi.VolumeCapability(
                        mount=csi.VolumeCapability.MountVolume(fs_type="xfs"),
                        access_mode=csi.VolumeCapability.AccessMode(
                            mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_MULTI_WRITER
                        ),
                    )
                ],
            ),
            b"\x0a\x01n\x12\x03\x08\xac\x02\x1a\x0b\x12\x05\x0a\x03xfs\x1a\x02\x08\x07",
            id="nested, varint, oneof, enum",
        ),
        pytest.param(
            csi.CreateVolumeRequest(capacity_range=csi.CapacityRange()),
            b"\x12\x00",
            id="P-905 capacity_range is present although empty",
        ),
        pytest.param(
            csi.TopologyRequirement(preferred=[csi.Topology(segments={"z": "1"})]),
            b"\x12\x08\x0a\x06\x0a\x01z\x12\x011",
            id="repeated message with map",
        ),
    ],
)
def test_wire_bytes(message: Message, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


def test_generated_code_is_current() -> None:
    """`make proto` would change nothing."""
    assert generate_stubs.stale_files() == []


def test_drift_check_notices_a_changed_definition(tmp_path: Path) -> None:
    text = (generate_stubs.PROTO_DIR / "csi.proto").read_text()
    assert "string volume_id = 2;" in text
    shutil.copytree(generate_stubs.PROTO_DIR, tmp_path / "proto")
    (tmp_path / "proto" / "csi.proto").write_text(
        text.replace("string volume_id = 2;", "string volume_id = 9;")
    )
    assert "csi_pb2.py" in generate_stubs.stale_files(proto_dir=tmp_path / "proto")


def test_every_message_and_enum_is_reexported() -> None:
    """Callers import only from `messages`, so nothing may be missing there."""
    names = {*csi.DESCRIPTOR.message_types_by_name, *csi.DESCRIPTOR.enum_types_by_name}
    assert names | {"DESCRIPTOR", "csi_secret"} == set(csi.__all__)
    assert all(hasattr(csi, name) for name in csi.__all__)


def test_messages_load_no_grpc() -> None:
    """Pure code (translate, topology) may import the messages, so they must stay plain values."""
    program = "import sys, csi_client.messages; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
