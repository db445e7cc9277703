"""Class parameters: file system, stripping, extra metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.translate_objects import PREFIX, Attempt, make_claim, make_class, make_secret
from workers.errors import AttemptError, State
from workers.translate.parameters import RESERVED, deprecations, extra_metadata, fstype, strip

BOTH = 'fstype specified in parameters with both "fstype" and "csi.storage.k8s.io/fstype" keys'


@pytest.mark.parametrize(
    ("parameters", "default", "sent", "fs_type"),
    [
        pytest.param({"fstype": "ext3"}, "ext4", {"fstype": "ext3"}, "ext3", id="T-001 stays"),
        pytest.param({f"{PREFIX}fstype": "ext4"}, "", {}, "ext4", id="T-002 prefixed is stripped"),
        pytest.param({}, "ext4", {}, "ext4", id="T-005 default"),
        pytest.param({"fstype": ""}, "ext4", {"fstype": ""}, "ext4", id="P-125 empty value"),
        pytest.param({}, "", {}, "", id="T-006 none at all"),
        pytest.param({"fstype": "xfs"}, "", {"fstype": "xfs"}, "xfs", id="T-007 no default"),
        pytest.param({"FsType": "XFS"}, "", {"FsType": "XFS"}, "XFS", id="P-125 any letter case"),
        pytest.param({f"{PREFIX}fstype": "a"}, "b", {}, "a", id="P-125 parameter beats default"),
    ],
)
def test_fstype(parameters, default, sent, fs_type):
    """P-125, P-126: covers the driver's parameters and the PV's file system."""
    attempt = Attempt(default_fstype=default)
    volume = attempt.provision(make_claim(), make_class(parameters))
    assert dict(attempt.sent.parameters) == sent
    assert attempt.sent.volume_capabilities[0].mount.fs_type == fs_type
    assert volume["spec"]["csi"].get("fsType", "") == fs_type
    assert ("fsType" in volume["spec"]["csi"]) == bool(fs_type)


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"fstype": "ext3", f"{PREFIX}fstype": "ext4"}, id="T-003 both keys"),
        pytest.param({"FSType": "xfs", "fstype": "xfs"}, id="T-004 two spellings"),
    ],
)
def test_two_file_systems_are_refused(parameters):
    attempt = Attempt()
    with pytest.raises(AttemptError) as caught:
        attempt.provision(make_claim(), make_class(parameters))
    assert (caught.value.message, caught.value.state) == (BOTH, State.FINISHED)
    assert attempt.request is None


def test_prefixed_fstype_counts_in_its_exact_spelling_only():
    assert fstype({f"{PREFIX}FSTYPE": "xfs"}, "ext4") == "ext4"


def test_t008_extra_create_metadata():
    attempt = Attempt(extra_create_metadata=True)
    attempt.provision(make_claim(), make_class({"fstype": "ext3"}))
    assert dict(attempt.sent.parameters) == {
        "fstype": "ext3",
        f"{PREFIX}pvc/name": "fake-pvc",
        f"{PREFIX}pvc/namespace": "fake-ns",
        f"{PREFIX}pv/name": "test-testi",
    }


def test_nothing_is_added_without_the_flag():
    attempt = Attempt()
    attempt.provision(make_claim(), make_class())
    assert dict(attempt.sent.parameters) == {}


@pytest.mark.parametrize(
    "key",
    ["bim", "pvc/name", "pvc/namespace", "pv/name", "resizer-secret-name", "", "FSTYPE"],
)
def test_t009_unknown_reserved_key_is_final(key):
    """P-126: a typo in a reserved key must not reach the driver as a parameter."""
    attempt = Attempt()
    with pytest.raises(AttemptError) as caught:
        attempt.provision(make_claim(), make_class({f"{PREFIX}{key}": "baz"}))
    assert caught.value.message == (
        "failed to strip CSI Parameters of prefixed keys: found unknown parameter key "
        f'"{PREFIX}{key}" with reserved namespace {PREFIX}'
    )
    assert caught.value.state is State.FINISHED
    assert attempt.request is None


def test_first_unknown_key_by_name_is_reported():
    """D-026: csi-provisioner picks one at random, so its event text changes between attempts."""
    with pytest.raises(AttemptError, match=f'"{PREFIX}a"'):
        strip({f"{PREFIX}b": "1", f"{PREFIX}a": "1"})


def test_t010_every_reserved_key_is_stripped():
    parameters = {key: "ns" if key.endswith("namespace") else "x" for key in RESERVED}
    attempt = Attempt(secrets={("ns", "x"): make_secret()})
    attempt.provision(make_claim(), make_class(parameters | {"foo": "bar"}))
    assert dict(attempt.sent.parameters) == {"foo": "bar"}
    assert len(RESERVED) == 17


def test_t011_deprecated_secret_keys_stay():
    stems = ["Provisioner", "ControllerPublish", "NodeStage", "NodePublish"]
    parameters = {
        f"csi{stem}Secret{part}": part.lower() for stem in stems for part in ("Name", "Namespace")
    }
    attempt = Attempt(secrets={("namespace", "name"): make_secret()})
    attempt.provision(make_claim(), make_class(parameters))
    assert dict(attempt.sent.parameters) == parameters
    assert len(parameters) == 8


def test_t012_prefix_inside_a_value_means_nothing():
    attempt = Attempt()
    attempt.provision(make_claim(), make_class({"bim": f"{PREFIX}x"}))
    assert dict(attempt.sent.parameters) == {"bim": f"{PREFIX}x"}


def test_class_is_not_changed():
    """P-128: all claims of this process share the class."""
    storage_class = make_class({f"{PREFIX}fstype": "xfs", "a": "b"})
    Attempt(extra_create_metadata=True).provision(make_claim(), storage_class)
    assert storage_class == make_class({f"{PREFIX}fstype": "xfs", "a": "b"})


def test_deprecated_keys_are_logged():
    """P-131: each deprecated key gets a warning that names its replacement."""
    assert deprecations({"fstype": "x", "csiNodeStageSecretName": "y", "other": "z"}) == [
        (
            '"fstype" is deprecated and will be removed in a future release, please use '
            '"csi.storage.k8s.io/fstype" instead'
        ),
        (
            '"csiNodeStageSecretName" is deprecated and will be removed in a future release, '
            'please use "csi.storage.k8s.io/node-stage-secret-name" instead'
        ),
    ]
    assert deprecations({f"{PREFIX}fstype": "x"}) == []


def test_metadata_of_a_claim_without_any():
    assert set(extra_metadata({}, "v").values()) == {"", "v"}


KEYS = st.text() | st.sampled_from(sorted(RESERVED)) | st.text().map(lambda tail: PREFIX + tail)


@given(st.dictionaries(KEYS, st.text()))
def test_strip_keeps_all_that_is_not_reserved(parameters):
    """No user parameter is lost or changed, and no reserved parameter gets through."""
    prefixed = {key for key in parameters if key.startswith(PREFIX)}
    if prefixed <= RESERVED:
        assert strip(parameters) == {k: v for k, v in parameters.items() if k not in prefixed}
    else:
        with pytest.raises(AttemptError):
            strip(parameters)
