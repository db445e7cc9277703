"""Deletion: ownership, finalizer, whether to delete, and which secret to use."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.translate_objects import (
    DELETION_NAME,
    DELETION_NAMESPACE,
    FINALIZER,
    MIGRATED_TO,
    PREFIX,
    make_class,
)
from workers.errors import AttemptError, IgnoredError, State
from workers.migration.to_csi import volume_to_csi
from workers.topology.affinity import is_accessible, node_affinity
from workers.translate import capability, volumes
from workers.translate.names import known_names
from workers.translate.secrets import SecretRef
from workers.translate.volumes import DeletionSecret, FinalizerAction

BY = "pv.kubernetes.io/provisioned-by"
NAMES = known_names("foo", "kubernetes.io/foo")
CSI = {"driver": "foo", "volumeHandle": "h"}
NAME_KEY = f"{PREFIX}provisioner-secret-name"
NAMESPACE_KEY = f"{PREFIX}provisioner-secret-namespace"


def make_volume(
    annotations: dict[str, str] | None = None,
    phase: str = "Released",
    policy: str = "Delete",
    *,
    deleting: bool = False,
    finalizers: list[str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "v", "annotations": annotations or {}}
    metadata["finalizers"] = [FINALIZER] if finalizers is None else finalizers
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    source = {"csi": CSI, "persistentVolumeReclaimPolicy": policy}
    return {"metadata": metadata, "spec": source | spec, "status": {"phase": phase}}


IN_TREE = {"csi": None, "nfs": {}}


@pytest.mark.parametrize(
    ("volume", "is_ours"),
    [
        pytest.param(make_volume({BY: "foo"}), True, id="C-060 ours"),
        pytest.param(make_volume({BY: "bar"}), False, id="C-060 another provisioner"),
        pytest.param(make_volume(**IN_TREE), False, id="C-074 static in-tree"),
        pytest.param(make_volume(), True, id="C-074 static CSI of our driver"),
        pytest.param(make_volume(csi={"driver": "bar"}), False, id="C-074 unknown driver"),
        pytest.param(
            make_volume({MIGRATED_TO: "foo"}, **IN_TREE), True, id="C-074 static in-tree, migrated"
        ),
        pytest.param(
            make_volume({MIGRATED_TO: "foo"}, csi={"driver": "bar"}), False, id="L-071 csi decides"
        ),
        pytest.param(
            make_volume({BY: "kubernetes.io/foo"}, **IN_TREE), True, id="C-075 in-tree known"
        ),
        pytest.param(
            make_volume({BY: "x", MIGRATED_TO: "foo"}), True, id="C-075 unknown but migrated"
        ),
        pytest.param(make_volume({BY: "x", MIGRATED_TO: "y"}), False, id="C-075 both unknown"),
        pytest.param(make_volume({BY: ""}), False, id="L-071 empty name"),
    ],
)
def test_ownership(volume, is_ours):
    """L-071, P-500: annotation and driver name decide whether csi-fleet owns the volume."""
    assert volumes.is_ours(volume, NAMES) is is_ours


BARE: dict[str, Any] = {"finalizers": []}


@pytest.mark.parametrize(
    ("volume", "add_finalizer", "action"),
    [
        pytest.param(
            make_volume({BY: "foo"}, "Bound", **BARE), True, "ADD", id="C-068 dynamic CSI"
        ),
        pytest.param(make_volume({}, "Bound", **BARE), True, "ADD", id="C-068 static CSI"),
        pytest.param(
            make_volume({MIGRATED_TO: "foo"}, "Bound", **BARE, **IN_TREE),
            True,
            "ADD",
            id="C-068 static in-tree",
        ),
        pytest.param(make_volume({}, "Released", **BARE), True, "KEEP", id="C-069 Released"),
        pytest.param(make_volume({}, "Pending", **BARE), True, "KEEP", id="C-069 Pending"),
        pytest.param(
            make_volume({}, "Bound", deleting=True, **BARE), True, "KEEP", id="C-070 deleting"
        ),
        pytest.param(make_volume({}, "Bound"), False, "REMOVE", id="C-071 roll-back"),
        pytest.param(make_volume({}, "Bound", **BARE), False, "KEEP", id="C-071 nothing to remove"),
        pytest.param(make_volume(policy="Retain"), True, "REMOVE", id="C-072 Retain"),
        pytest.param(make_volume(policy="Recycle"), True, "REMOVE", id="C-072 Recycle"),
        pytest.param(make_volume(policy="Retain", **BARE), True, "KEEP", id="C-072 none there"),
        pytest.param(
            make_volume(policy="Retain", deleting=True), True, "REMOVE", id="C-072 deleting"
        ),
        pytest.param(make_volume({}, "Bound", "Delete", **BARE), True, "ADD", id="C-073 patched"),
        pytest.param(make_volume({}, "Bound"), True, "KEEP", id="L-072 there already"),
        pytest.param(make_volume({}, "Bound", "", **BARE), True, "KEEP", id="L-072 no policy"),
    ],
)
def test_finalizer(volume, add_finalizer, action):
    """L-072, P-520: the finalizer is added or removed depending on volume and flag."""
    found = volumes.finalizer_action(volume, add_finalizer=add_finalizer)
    assert found is FinalizerAction[action]


def test_c021_finalizer_of_a_retained_volume_is_taken_away():
    assert volumes.finalizer_action(make_volume({}, "Bound", "Retain")) is FinalizerAction.REMOVE


@pytest.mark.parametrize(
    ("volume", "options", "expected"),
    [
        pytest.param(make_volume(), {}, True, id="C-060 Released and Delete"),
        pytest.param(make_volume({}, "Bound"), {}, False, id="C-061 Bound"),
        pytest.param(make_volume({}, "Failed"), {}, False, id="C-061 Failed"),
        pytest.param(make_volume({}, "Available"), {}, False, id="C-061 Available"),
        pytest.param(make_volume(policy="Retain"), {}, False, id="C-062 Retain"),
        pytest.param(
            make_volume(deleting=True), {"add_finalizer": False}, False, id="C-065 no AddFinalizer"
        ),
        pytest.param(make_volume(), {"add_finalizer": False}, True, id="C-065 not deleting"),
        pytest.param(make_volume(deleting=True), {}, True, id="C-066 deleting, ours is there"),
        pytest.param(make_volume(), {}, True, id="C-066 not deleting"),
        pytest.param(make_volume(deleting=True, **BARE), {}, False, id="C-067 finalizer absent"),
        pytest.param(make_volume(**BARE), {}, True, id="L-073 absent but not deleting"),
        *(
            pytest.param(make_volume({}, phase, deleting=True), {}, True, id=f"BUG-5 {phase}")
            for phase in ("Available", "Failed", "Pending", "")
        ),
        pytest.param(make_volume({}, "Bound", deleting=True), {}, False, id="BUG-5 Bound"),
        pytest.param(make_volume({}, "Lost", deleting=True), {}, False, id="BUG-5 unknown phase"),
        pytest.param(
            make_volume({}, "Available", deleting=True, **BARE), {}, False, id="BUG-5 not ours"
        ),
        pytest.param(
            make_volume({}, "Available", "Retain", deleting=True), {}, False, id="BUG-5 Retain"
        ),
        pytest.param(make_volume(), {"is_guard_willing": False}, False, id="C-076 guard says no"),
    ],
)
def test_should_delete(volume, options, expected):
    """L-073: phase, policy, deletion timestamp, finalizer and guard decide."""
    assert volumes.should_delete(volume, **options) is expected


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param(None, id="T-160 no volume"),
        pytest.param(make_volume(csi=None), id="T-160 no csi source"),
        pytest.param({}, id="T-160 no fields"),
    ],
)
def test_invalid_volume(volume):
    with pytest.raises(AttemptError, match=r"^invalid CSI PV$"):
        volumes.volume_handle(volume)


def test_handle_is_verbatim():
    assert volumes.volume_handle(make_volume()) == "h"


def test_empty_handle_is_never_sent():
    """A driver might treat an empty id as any volume."""
    with pytest.raises(AttemptError, match="volumeHandle is empty") as caught:
        volumes.volume_handle(make_volume(csi={"driver": "foo"}))
    assert caught.value.state is State.NO_CHANGE


@pytest.mark.parametrize(
    ("spec", "is_deletable"),
    [
        pytest.param("other", False, id="T-157 other host"),
        pytest.param("own", True, id="T-157 own host"),
        pytest.param(None, True, id="T-157 no affinity"),
    ],
)
def test_volume_of_another_node(spec, is_deletable):
    """P-506: the volume has the affinity that csi-fleet writes for the driver's answer."""
    csi = capability.csi
    topologies = [csi.Topology(segments={"host": spec})] if spec else []
    volume = make_volume(nodeAffinity=node_affinity(topologies))
    assert is_accessible(volume, {"host": "own"}) is is_deletable


def test_what_keeps_a_node_from_a_volume():
    """P-506: it belongs to another node, or its affinity is invalid."""
    ignored, failed = volumes.not_accessible(""), volumes.not_accessible("p")
    assert isinstance(ignored, IgnoredError)
    assert ignored.reason == "PV was not provisioned on this node"
    assert isinstance(failed, AttemptError)
    assert failed.message == "checking volume affinity failed: p"
    assert failed.state is State.NO_CHANGE


def annotated(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    return make_volume({DELETION_NAME: name, DELETION_NAMESPACE: namespace}, **spec)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="T-163 no class"),
        pytest.param({"storageClassName": "sc"}, id="T-163 class present"),
    ],
)
def test_empty_annotations_mean_no_secret(spec):
    assert volumes.deletion_secret(annotated("", "", **spec)) == DeletionSecret()


def test_t164_annotations_beat_the_class():
    """P-511: the class may be gone or name another secret."""
    assert volumes.deletion_secret(annotated("s", "ns", storageClassName="sc")) == DeletionSecret(
        ref=SecretRef("s", "ns")
    )


def test_t165_missing_secret_is_a_log_line():
    """The deletion continues without secrets."""
    assert volumes.secret_read_failed(make_volume(), 'secrets "s" not found') == (
        'failed to get credentials for volume v: secrets "s" not found'
    )


@pytest.mark.parametrize(("name", "namespace"), [("s", ""), ("", "ns")])
def test_half_an_annotation_pair_is_no_secret(name, namespace):
    """D-022: csi-provisioner does not report this."""
    found = volumes.deletion_secret(annotated(name, namespace))
    assert (found.ref, found.class_name) == (None, "")
    assert found.warning == (
        "deletion secret annotations of volume v are incomplete, "
        "proceeding to delete without secrets"
    )


CLAIM_REF = {"namespace": "cns", "name": "cname", "uid": "u"}


def test_t166_secret_through_the_class():
    volume = make_volume(
        {"volume.beta.kubernetes.io/storage-class": "beta"},
        storageClassName="sc",
        claimRef=CLAIM_REF,
    )
    assert volumes.deletion_secret(volume) == DeletionSecret(class_name="beta")
    storage_class = make_class({NAME_KEY: "${pvc.name}-${pv.name}", NAMESPACE_KEY: "x"})
    assert volumes.deletion_secret_of_class(volume, storage_class) == DeletionSecret(
        ref=SecretRef("cname-v", "x")
    )


def test_one_annotation_key_alone_leads_to_the_class():
    """P-512: the secret is then taken from the class."""
    volume = make_volume({DELETION_NAME: "s"}, storageClassName="sc")
    assert volumes.deletion_secret(volume) == DeletionSecret(class_name="sc")


def test_class_without_secrets():
    volume = make_volume(claimRef=CLAIM_REF)
    assert volumes.deletion_secret_of_class(volume, make_class()) == DeletionSecret()


def test_class_is_gone():
    """P-512: the warning says that the deletion continues without secrets."""
    assert volumes.class_missing_warning("sc", "not found") == (
        "failed to get storageclass: sc, proceeding to delete without secrets. not found"
    )


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        pytest.param(
            {NAME_KEY: "${pvc.annotations['a']}", NAMESPACE_KEY: "x"},
            "error resolving value \"${pvc.annotations['a']}\": invalid tokens: "
            "[\"pvc.annotations['a']\"]",
            id="T-167 claim annotations",
        ),
        pytest.param(
            {NAME_KEY: "s"},
            "failed to get name and namespace template from params: either name and namespace for "
            "Provisioner secrets specified, Both must be specified",
            id="T-167 namespace missing",
        ),
    ],
)
def test_unresolvable_secret_blocks_the_deletion(parameters, problem):
    """P-514: a deletion without the secret could fail forever or run as another user."""
    volume = make_volume(claimRef=CLAIM_REF)
    with pytest.raises(AttemptError) as caught:
        volumes.deletion_secret_of_class(volume, make_class(parameters))
    assert caught.value.message == f"failed to get secretreference for volume v: {problem}"
    assert caught.value.state is State.NO_CHANGE


def test_t168_no_claim_ref():
    storage_class = make_class({NAME_KEY: "s", NAMESPACE_KEY: "x"})
    found = volumes.deletion_secret_of_class(make_volume(), storage_class)
    assert found.ref is None
    assert "has no claimRef" in found.warning


def test_t170_in_tree_volume_has_the_translated_handle():
    spec = {"csi": None, "cinder": {"volumeID": "vid"}}
    assert volumes.volume_handle(volume_to_csi(make_volume(**spec))) == "vid"


@pytest.mark.parametrize(
    ("plugin", "controller", "word"),
    [
        pytest.param(set(), {"CREATE_DELETE_VOLUME"}, "CONTROLLER_SERVICE", id="T-171 plugin"),
        pytest.param({"CONTROLLER_SERVICE"}, set(), "CREATE_DELETE_VOLUME", id="T-171 controller"),
    ],
)
def test_missing_capability_blocks_the_deletion(plugin, controller, word):
    """P-508: the error names the missing capability."""
    with pytest.raises(AttemptError, match=f"{word} capability is not reported"):
        capability.check_driver(plugin, controller)
