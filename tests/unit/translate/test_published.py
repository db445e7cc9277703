"""The capability of an existing volume is the same in every call about it (A-051, A-052)."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from workers.errors import AttemptError
from workers.translate.published import access_mode, volume_capability

Mode = csi.VolumeCapability.AccessMode


@pytest.mark.parametrize(
    ("modes", "plain", "multi"),
    [
        (["ReadWriteOncePod"], Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_SINGLE_WRITER),
        (["ReadWriteOnce"], Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_MULTI_WRITER),
        (["ReadWriteOnce"] * 2, Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_MULTI_WRITER),
        (["ReadOnlyMany"], Mode.MULTI_NODE_READER_ONLY, Mode.MULTI_NODE_READER_ONLY),
        (
            ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            Mode.MULTI_NODE_MULTI_WRITER,
            Mode.MULTI_NODE_MULTI_WRITER,
        ),
    ],
)
def test_access_modes_become_one(modes, plain, multi):
    """The first matching rule decides, with and without SINGLE_NODE_MULTI_WRITER."""
    assert access_mode(modes, multi_writer=False) == plain
    assert access_mode(modes, multi_writer=True) == multi


@pytest.mark.parametrize(
    ("modes", "text"),
    [
        (
            ["ReadWriteOnce", "ReadWriteOncePod"],
            (
                "Kubernetes does not support use of ReadWriteOncePod with other access modes on "
                "the same PersistentVolume"
            ),
        ),
        (
            ["ReadOnlyMany", "ReadWriteOnce"],
            "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume",
        ),
        ([], "unsupported AccessMode combination: []"),
    ],
)
def test_modes_without_meaning_are_refused(modes, text):
    """The message is the one of the Go sidecars."""
    with pytest.raises(AttemptError) as caught:
        access_mode(modes, multi_writer=False)
    assert caught.value.message == text


def volume(**spec):
    return {"spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d"}, **spec}}


def test_a_block_volume_has_no_file_system():
    """Mount options do not apply to it."""
    found = volume_capability(
        volume(volumeMode="Block", mountOptions=["noatime"]),
        default_fs_type="ext4",
        multi_writer=False,
    )
    assert found.HasField("block")
    assert not found.HasField("mount")


@pytest.mark.parametrize(
    ("named", "default", "expected"), [("xfs", "ext4", "xfs"), ("", "ext4", "ext4"), ("", "", "")]
)
def test_the_default_file_system_fills_the_gap(named, default, expected):
    """An empty default leaves the choice to the driver."""
    csi_source = {"driver": "d", "fsType": named}
    found = volume_capability(
        volume(csi=csi_source, mountOptions=["noatime"]),
        default_fs_type=default,
        multi_writer=False,
    )
    assert found.mount.fs_type == expected
    assert list(found.mount.mount_flags) == ["noatime"]
