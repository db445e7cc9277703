"""The pre-check of a claim, and the meaning of its fields."""

from __future__ import annotations

import pytest

from tests.support.translate_objects import (
    BETA,
    DRIVER,
    GA,
    MIGRATED_TO,
    Attempt,
    make_claim,
    make_class,
)
from workers.errors import AttemptError, IgnoredError, State
from workers.translate import claims
from workers.translate.claims import Decision, should_provision
from workers.translate.names import known_names

IN_TREE = "kubernetes.io/test"
NODE = "volume.kubernetes.io/selected-node"
ALPHA_NODE = "volume.alpha.kubernetes.io/selected-node"
CLASS_BETA = "volume.beta.kubernetes.io/storage-class"
WAITS = {"volumeBindingMode": "WaitForFirstConsumer"}
CLASS = make_class()


def decide(claim, storage_class=CLASS, names=frozenset({DRIVER})):
    return should_provision(
        claim,
        storage_class,
        known_names=names,
        is_qualified=claims.qualifies(claim, DRIVER),
    )


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({GA: DRIVER}, Decision.PROVISION, id="T-061 GA annotation"),
        pytest.param({BETA: "bar"}, Decision.NOT_OURS, id="C-001 claim of bar"),
        pytest.param({BETA: "other"}, Decision.NOT_OURS, id="T-062 other"),
        pytest.param({GA: "other", BETA: DRIVER}, Decision.NOT_OURS, id="T-063 GA wins"),
        pytest.param({GA: "bar", BETA: DRIVER}, Decision.NOT_OURS, id="C-011 GA wins"),
        pytest.param({GA: "", BETA: DRIVER}, Decision.NOT_OURS, id="P-100 GA wins when empty"),
        pytest.param({BETA: DRIVER}, Decision.PROVISION, id="C-012 only beta"),
        pytest.param({}, Decision.NOT_OURS, id="C-013 no annotation"),
        pytest.param({MIGRATED_TO: DRIVER}, Decision.NOT_OURS, id="L-022 migrated-to alone"),
    ],
)
def test_provisioner_annotation(annotations, expected):
    assert decide(make_claim(annotations=annotations)) is expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param(
            {BETA: IN_TREE, MIGRATED_TO: DRIVER}, Decision.PROVISION, id="C-006 migrated claim"
        ),
        pytest.param(
            {BETA: IN_TREE, MIGRATED_TO: "foo"}, Decision.NOT_OURS, id="L-025 migrated elsewhere"
        ),
        pytest.param({BETA: IN_TREE}, Decision.NOT_OURS, id="L-025 not migrated"),
        pytest.param({BETA: DRIVER}, Decision.PROVISION, id="L-026 CSI name"),
    ],
)
def test_claims_of_the_in_tree_name(annotations, expected):
    claim = make_claim(annotations=annotations)
    assert decide(claim, names=known_names(DRIVER, IN_TREE)) is expected


def test_c006_class_of_the_in_tree_name_is_known():
    names = known_names(DRIVER, IN_TREE)
    assert claims.is_known_class(make_class(provisioner=IN_TREE), names)


def test_c014_class_of_another_provisioner_is_not_known():
    assert not claims.is_known_class(make_class(provisioner="bar"), known_names(DRIVER))


def test_c007_bound_claim():
    assert decide(make_claim(volumeName="v")) is Decision.ALREADY_BOUND


def test_c008_class_is_missing():
    assert decide(make_claim(), None) is Decision.CLASS_MISSING


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        pytest.param({CLASS_BETA: "beta"}, "beta", id="C-009 annotation names another class"),
        pytest.param({CLASS_BETA: ""}, "", id="C-010 empty annotation wins"),
        pytest.param({}, "fake-test-sc", id="L-023 the spec"),
    ],
)
def test_class_of_a_claim(annotations, name):
    assert claims.claim_class_name(make_claim(annotations=annotations)) == name


def test_claim_without_class_has_the_empty_one():
    """D-012: csi-provisioner crashes on such a claim in node mode."""
    assert claims.claim_class_name(make_claim(storageClassName=None)) == ""


@pytest.mark.parametrize(
    ("is_qualified", "expected"),
    [
        pytest.param(False, Decision.NOT_OURS, id="C-015 qualifier says no"),
        pytest.param(True, Decision.PROVISION, id="C-015 qualifier says yes"),
    ],
)
def test_qualifier(is_qualified, expected):
    """L-022 row 2: the annotation would match, so the qualifier decides."""
    decision = should_provision(
        make_claim(), CLASS, known_names={DRIVER}, is_qualified=is_qualified
    )
    assert decision is expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, Decision.WAITS_FOR_NODE, id="T-065 no node"),
        pytest.param({}, Decision.WAITS_FOR_NODE, id="C-016 no node"),
        pytest.param({NODE: ""}, Decision.WAITS_FOR_NODE, id="C-016 empty node"),
        pytest.param({NODE: "node-1"}, Decision.PROVISION, id="C-016 node-1"),
        pytest.param({ALPHA_NODE: "node-1"}, Decision.WAITS_FOR_NODE, id="C-016 only alpha"),
    ],
)
def test_delayed_binding(annotations, expected):
    claim = make_claim(annotations={BETA: DRIVER} | annotations)
    assert decide(claim, make_class(**WAITS)) is expected


def test_c017_selected_node_and_ga_annotation_only():
    claim = make_claim(annotations={GA: DRIVER, NODE: "n"})
    assert decide(claim, make_class(**WAITS)) is Decision.PROVISION


@pytest.mark.parametrize("mode", ["Immediate", None, "Other"])
def test_any_other_binding_mode_needs_no_node(mode):
    """L-022 row 8: only WaitForFirstConsumer waits for a node."""
    assert decide(make_claim(), make_class(volumeBindingMode=mode)) is Decision.PROVISION


def test_c018_selected_node_with_an_immediate_class():
    claim = make_claim(annotations={BETA: DRIVER, NODE: "n1"})
    assert decide(claim) is Decision.PROVISION
    assert claims.selected_node(claim) == "n1"


@pytest.mark.parametrize(
    ("annotations", "node"),
    [
        pytest.param({NODE: "n1", ALPHA_NODE: "n2"}, "n1", id="C-019 both"),
        pytest.param({ALPHA_NODE: "n2"}, "n2", id="L-040 alpha"),
        pytest.param({}, "", id="L-040 none"),
    ],
)
def test_selected_node(annotations, node):
    assert claims.selected_node(make_claim(annotations=annotations)) == node


def test_c020_claim_under_deletion_is_provisioned():
    claim = make_claim()
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert decide(claim) is Decision.PROVISION


def test_t062_direct_call_is_ignored():
    """P-102: a claim annotated for another provisioner is ignored with a reason."""
    claim = make_claim(annotations={GA: "other"})
    with pytest.raises(IgnoredError) as caught:
        claims.check_qualifies(claim, DRIVER)
    assert caught.value.reason == (
        "PVC annotated with external-provisioner name other does not match provisioner driver name "
        "test-driver. This could mean the PVC is not migrated"
    )


def test_t061_direct_call_goes_on():
    claims.check_qualifies(make_claim(annotations={GA: DRIVER}), DRIVER)
    claims.check_qualifies(make_claim(annotations={GA: "x", MIGRATED_TO: DRIVER}), DRIVER)


def test_t013_selector():
    attempt = Attempt()
    with pytest.raises(AttemptError, match=r"^claim Selector is not supported$") as caught:
        attempt.provision(make_claim(selector={}), make_class())
    assert caught.value.state is State.FINISHED
    assert attempt.request is None


def test_null_selector_is_no_selector():
    Attempt().provision(make_claim(selector=None), make_class())


@pytest.mark.parametrize(
    ("request_text", "size_bytes"),
    [
        pytest.param("1500m", 2, id="T-019 rounded up"),
        pytest.param(None, 0, id="T-019 none"),
        pytest.param("0", 0, id="P-138 zero"),
        pytest.param("10Gi", 10737418240, id="P-138 binary"),
    ],
)
def test_requested_size(request_text, size_bytes):
    attempt = Attempt()
    attempt.provision(make_claim(request=request_text), make_class())
    assert attempt.sent.HasField("capacity_range")
    assert attempt.sent.capacity_range.required_bytes == size_bytes
    assert attempt.sent.capacity_range.limit_bytes == 0


@pytest.mark.parametrize(
    ("request_text", "problem"),
    [
        ("-1", "storage request -1 is negative"),
        ("1Zi", 'storage request: quantity "1Zi" is malformed, expected for example 10Gi'),
        ("99Ei", 'storage request: quantity "99Ei" is larger than 9223372036854775807 bytes'),
    ],
)
def test_unusable_request_is_explained(request_text, problem):
    """The text names the claim and the field to change."""
    with pytest.raises(AttemptError) as caught:
        claims.requested_bytes(make_claim(request=request_text))
    assert caught.value.message == f"PersistentVolumeClaim fake-ns/fake-pvc: {problem}"
    assert caught.value.state is State.NO_CHANGE


def test_reference_to_the_claim():
    """L-040 step 2: the reference carries kind, name, uid and resource version."""
    assert claims.claim_reference(make_claim()) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "fake-ns",
        "name": "fake-pvc",
        "uid": "testid",
        "resourceVersion": "7",
    }


def test_reference_needs_an_identity():
    """Without a UID in claimRef, another claim of that name could take the volume."""
    with pytest.raises(AttemptError, match="metadata lacks namespace, uid"):
        claims.claim_reference({"metadata": {"name": "c"}})


@pytest.mark.parametrize(
    ("mode", "is_block"), [("Block", True), ("Filesystem", False), (None, False)]
)
def test_volume_mode(mode, is_block):
    claim = make_claim(volumeMode=mode)
    assert claims.volume_mode(claim) == mode
    assert claims.is_block(claim) is is_block
