"""Which of a claim's labels and annotations the driver and the PV get."""

from __future__ import annotations

import pytest

from workers.errors import AttemptError, State
from workers.translate.claim_metadata import (
    MOST_BYTES,
    chosen,
    driver_parameters,
    patch,
    with_labels,
)

RECORD = "csi-fleet.io/claim-labels"
CLAIM = {
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "namespace": "shop",
        "name": "data",
        "labels": {"team": "red", "example.org/tier": "", "secret": "x"},
        "annotations": {"backup": "täglich", "other": "y"},
    },
}


@pytest.mark.parametrize(
    ("labels", "annotations", "parameters"),
    [
        ((), (), {}),
        (("team",), (), {"label/team": "red"}),
        (("example.org/tier", "absent"), (), {"label/example.org/tier": ""}),
        ((), ("backup", "team"), {"annotation/backup": "täglich"}),
        (("team",), ("backup",), {"label/team": "red", "annotation/backup": "täglich"}),
    ],
)
def test_the_driver_gets_the_chosen_keys_and_no_others(labels, annotations, parameters):
    found = driver_parameters(CLAIM, labels=labels, annotations=annotations)
    assert found == {f"csi.storage.k8s.io/pvc/{key}": value for key, value in parameters.items()}


def test_a_claim_without_metadata_has_nothing_to_pass():
    assert driver_parameters({"metadata": {}}, labels=("a",), annotations=("b",)) == {}


@pytest.mark.parametrize("excess", [0, 1])
def test_what_a_tenant_sends_is_limited_in_bytes(excess):
    name = "csi.storage.k8s.io/pvc/annotation/note"
    note = "ä" * ((MOST_BYTES - len(name)) // 2) + "a" * excess
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"annotations": {"note": note}}}
    if not excess:
        assert driver_parameters(claim, labels=(), annotations=("note",)) == {name: note}
        return
    with pytest.raises(AttemptError, match=r"at most 4096 .* Shorten .* pvc/annotation/note") as it:
        driver_parameters(claim, labels=(), annotations=("note",))
    assert it.value.state is State.FINISHED


RED, BLUE = {"team": "red"}, {"team": "blue"}


@pytest.mark.parametrize(
    ("wanted", "labels", "record", "change"),
    [
        pytest.param({}, {}, None, {}, id="nothing to do"),
        pytest.param({}, None, "", {}, id="an empty record is none"),
        pytest.param(RED, RED, "team", {}, id="equal"),
        pytest.param(RED, {**RED, "own": "x"}, "team", {}, id="a label of somebody else"),
        pytest.param(
            RED, {}, None, {"labels": RED, "annotations": {RECORD: "team"}}, id="a first label"
        ),
        pytest.param(RED, BLUE, "team", {"labels": RED}, id="another value"),
        pytest.param(RED, None, "team", {"labels": RED}, id="removed by hand"),
        pytest.param(RED, RED, None, {"annotations": {RECORD: "team"}}, id="not recorded"),
        pytest.param(
            RED, BLUE, None, {"labels": RED, "annotations": {RECORD: "team"}}, id="the claim wins"
        ),
        pytest.param(
            {}, RED, "team", {"labels": {"team": None}, "annotations": {RECORD: None}}, id="gone"
        ),
        pytest.param({}, {}, "team", {"annotations": {RECORD: None}}, id="gone on both"),
        pytest.param({}, RED, None, {}, id="never ours, so it stays"),
        pytest.param({}, RED, "old", {}, id="only another key was ours"),
        pytest.param({}, {"old": "x"}, "old", {}, id="no longer chosen: stays, and stays recorded"),
        pytest.param(
            {"tier": "1"},
            {**RED, "old": "x"},
            "old,team",
            {"labels": {"tier": "1", "team": None}, "annotations": {RECORD: "old,tier"}},
            id="one comes, one goes, one is no longer chosen",
        ),
    ],
)
def test_the_volume_follows_the_claim(wanted, labels, record, change):
    assert patch(wanted, labels, record, ("team", "tier")) == change


def test_chosen_labels_are_sorted():
    assert list(chosen({"b": "1", "a": "2", "c": "3"}, ("b", "a"))) == ["a", "b"]
    assert chosen(None, ("a",)) == {}


@pytest.mark.parametrize(
    ("keys", "labels", "record"),
    [
        ((), {"own": "x"}, None),
        (("absent",), {"own": "x"}, None),
        (("team",), {"own": "x", "team": "red"}, "team"),
        (("own", "team", "example.org/tier"), {"own": "x", "team": "red", "example.org/tier": ""},
         "example.org/tier,team"),
    ],
)  # fmt: skip
def test_a_new_volume_has_the_chosen_labels(keys, labels, record):
    volume = {"metadata": {"name": "pv", "labels": {"own": "x"}, "annotations": {"a": "b"}}}
    metadata = with_labels(volume, CLAIM, keys)["metadata"]
    assert metadata["labels"] == labels
    assert metadata["annotations"] == {"a": "b"} | ({RECORD: record} if record else {})
    assert volume["metadata"]["labels"] == {"own": "x"}


def test_malformed_labels_of_a_plug_ins_volume_leave_the_attempt_open():
    """The state is background, because the volume already exists."""
    with pytest.raises(AttemptError, match="labels is a list") as it:
        with_labels({"metadata": {"labels": ["team"]}}, CLAIM, ("team",))
    assert it.value.state is State.BACKGROUND
