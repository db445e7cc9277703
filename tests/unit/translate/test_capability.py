"""The capabilities that a driver must report, and the volume capabilities that are sent."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from tests.support.translate_objects import Attempt, make_claim, make_class
from workers.errors import AttemptError, State

Mode = csi.VolumeCapability.AccessMode.Mode
MULTI = {"CREATE_DELETE_VOLUME", "SINGLE_NODE_MULTI_WRITER"}
NOT_DYNAMIC = "CSI driver does not support dynamic provisioning: "
SNAPSHOT = {"kind": "VolumeSnapshot", "name": "s", "apiGroup": "snapshot.storage.k8s.io"}
CLONE = {"kind": "PersistentVolumeClaim", "name": "s"}


def sent_modes(attempt):
    return [
        Mode.Name(capability.access_mode.mode) for capability in attempt.sent.volume_capabilities
    ]


@pytest.mark.parametrize(
    ("plugin", "controller", "spec", "message"),
    [
        pytest.param(
            set(),
            {"CREATE_DELETE_VOLUME"},
            {},
            f"{NOT_DYNAMIC}plugin CONTROLLER_SERVICE capability is not reported",
            id="T-018 no controller service",
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            set(),
            {},
            f"{NOT_DYNAMIC}controller CREATE_DELETE_VOLUME capability is not reported",
            id="T-018 no CREATE_DELETE_VOLUME",
        ),
        pytest.param(
            set(),
            set(),
            {"dataSource": SNAPSHOT, "volumeAttributesClassName": "v"},
            f"{NOT_DYNAMIC}plugin CONTROLLER_SERVICE capability is not reported",
            id="P-120 first failure wins",
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            {"CREATE_DELETE_VOLUME", "CLONE_VOLUME", "MODIFY_VOLUME"},
            {"dataSource": SNAPSHOT},
            "CSI driver does not support snapshot restore: "
            "controller CREATE_DELETE_SNAPSHOT capability is not reported",
            id="T-094 no CREATE_DELETE_SNAPSHOT",
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            {"CREATE_DELETE_VOLUME", "CREATE_DELETE_SNAPSHOT"},
            {"dataSource": CLONE},
            "CSI driver does not support clone operations: "
            "controller CLONE_VOLUME capability is not reported",
            id="T-108 no CLONE_VOLUME",
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            {"CREATE_DELETE_VOLUME"},
            {"volumeAttributesClassName": "v"},
            "CSI driver does not support VolumeAttributesClass: "
            "controller MODIFY_VOLUME capability is not reported",
            id="T-072 no MODIFY_VOLUME",
        ),
    ],
)
def test_missing_capability(plugin, controller, spec, message):
    """P-120: without a required capability the attempt ends before the call."""
    attempt = Attempt(plugin=plugin, controller=controller)
    with pytest.raises(AttemptError) as caught:
        attempt.provision(make_claim(**spec), make_class())
    assert (caught.value.message, caught.value.state) == (message, State.FINISHED)
    assert attempt.request is None


@pytest.mark.parametrize(
    ("modes", "controller", "expected"),
    [
        pytest.param(["ReadWriteMany"], set(), ["MULTI_NODE_MULTI_WRITER"], id="T-021 RWX"),
        pytest.param(["ReadWriteOnce"], set(), ["SINGLE_NODE_WRITER"], id="T-022 RWO without"),
        pytest.param(["ReadWriteOnce"], MULTI, ["SINGLE_NODE_MULTI_WRITER"], id="T-022 RWO with"),
        pytest.param(["ReadWriteOncePod"], set(), ["SINGLE_NODE_WRITER"], id="T-023 RWOP without"),
        pytest.param(
            ["ReadWriteOncePod"], MULTI, ["SINGLE_NODE_SINGLE_WRITER"], id="T-023 RWOP with"
        ),
        pytest.param(["ReadWriteMany"], MULTI, ["MULTI_NODE_MULTI_WRITER"], id="P-141 RWX with"),
        pytest.param(["ReadOnlyMany"], MULTI, ["MULTI_NODE_READER_ONLY"], id="P-141 ROX with"),
    ],
)
def test_access_modes(modes, controller, expected):
    """P-141: the driver's capabilities decide the CSI modes; the PV keeps the claim's modes."""
    attempt = Attempt(controller={"CREATE_DELETE_VOLUME"} | controller)
    volume = attempt.provision(make_claim(accessModes=modes), make_class())
    assert sent_modes(attempt) == expected
    assert volume["spec"]["accessModes"] == modes


@pytest.mark.parametrize(
    ("modes", "flag", "expected", "read_only"),
    [
        pytest.param(["ReadOnlyMany"], False, ["MULTI_NODE_READER_ONLY"], False, id="T-024"),
        pytest.param(["ReadOnlyMany"], True, ["MULTI_NODE_READER_ONLY"], True, id="T-025"),
        pytest.param(
            ["ReadOnlyMany", "ReadWriteOnce"],
            True,
            ["MULTI_NODE_READER_ONLY", "SINGLE_NODE_WRITER"],
            False,
            id="T-026 two modes",
        ),
        pytest.param(["ReadWriteOnce"], True, ["SINGLE_NODE_WRITER"], False, id="P-701 RWO"),
    ],
)
def test_read_only_publishing(modes, flag, expected, read_only):
    """P-701: the flag makes a volume read-only whose only access mode is ReadOnlyMany."""
    attempt = Attempt(publish_readonly=flag)
    volume = attempt.provision(make_claim(accessModes=modes), make_class())
    assert sent_modes(attempt) == expected
    assert volume["spec"]["csi"].get("readOnly", False) is read_only


def test_t027_filesystem():
    attempt = Attempt()
    volume = attempt.provision(make_claim(volumeMode="Filesystem"), make_class())
    assert attempt.sent.volume_capabilities[0].WhichOneof("access_type") == "mount"
    assert volume["spec"]["volumeMode"] == "Filesystem"


def test_t028_block():
    attempt = Attempt()
    storage_class = make_class({"fstype": "ext3"}, mountOptions=["noatime"])
    volume = attempt.provision(make_claim(volumeMode="Block"), storage_class)
    assert attempt.sent.volume_capabilities[0].WhichOneof("access_type") == "block"
    assert volume["spec"]["volumeMode"] == "Block"
    assert "fsType" not in volume["spec"]["csi"]
    assert volume["spec"]["mountOptions"] == ["noatime"]


def test_t029_no_access_modes():
    attempt = Attempt()
    volume = attempt.provision(make_claim(accessModes=[]), make_class())
    assert list(attempt.sent.volume_capabilities) == []
    assert "accessModes" not in volume["spec"]


def test_t020_mount_options():
    attempt = Attempt()
    storage_class = make_class(mountOptions=["foo=bar", "baz=qux"])
    claim = make_claim(accessModes=["ReadWriteOnce", "ReadOnlyMany"])
    volume = attempt.provision(claim, storage_class)
    assert [list(c.mount.mount_flags) for c in attempt.sent.volume_capabilities] == [
        ["foo=bar", "baz=qux"]
    ] * 2
    assert volume["spec"]["mountOptions"] == ["foo=bar", "baz=qux"]


def test_unknown_access_mode_is_final():
    """P-140: the attempt ends as finished."""
    with pytest.raises(AttemptError) as caught:
        Attempt().provision(make_claim(accessModes=["ReadWriteOnce", "Other"]), make_class())
    assert caught.value.message == "unsupported AccessMode combination: [Other]"
    assert caught.value.state is State.FINISHED
