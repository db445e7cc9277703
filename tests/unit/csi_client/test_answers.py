"""Every answer is validated before use: each call, each field, each kind of invalid value."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from google.protobuf import json_format

from csi_client import answers
from csi_client import messages as csi
from csi_client.errors import UnusableAnswerError

CONTROLLER, GROUPS = "/csi.v1.Controller/", "/csi.v1.GroupController/"
MEMBERS = [
    {"snapshot_id": "s1", "source_volume_id": "v1", "size_bytes": 1, "group_snapshot_id": "g"},
    {"snapshot_id": "s2", "source_volume_id": "v2", "ready_to_use": True},
]
SNAPSHOT = {"snapshot_id": "s", "size_bytes": 5, "creation_time": "2026-01-02T03:04:05Z"}

# The request and a valid answer of each call.
CALLS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    f"{CONTROLLER}CreateVolume": (
        csi.CreateVolumeRequest(name="n"),
        csi.CreateVolumeResponse,
        {"volume": {"volume_id": "v", "capacity_bytes": 5, "volume_context": {"a": "b"}}},
    ),
    f"{CONTROLLER}ControllerPublishVolume": (
        csi.ControllerPublishVolumeRequest(volume_id="v"),
        csi.ControllerPublishVolumeResponse,
        {"publish_context": {"device": "/dev/sda"}},
    ),
    f"{CONTROLLER}ControllerExpandVolume": (
        csi.ControllerExpandVolumeRequest(volume_id="v"),
        csi.ControllerExpandVolumeResponse,
        {"capacity_bytes": 5},
    ),
    f"{CONTROLLER}ControllerGetVolume": (
        csi.ControllerGetVolumeRequest(volume_id="v"),
        csi.ControllerGetVolumeResponse,
        {"volume": {"volume_id": "v"}},
    ),
    f"{CONTROLLER}GetCapacity": (
        csi.GetCapacityRequest(),
        csi.GetCapacityResponse,
        {"available_capacity": 5, "maximum_volume_size": 3},
    ),
    f"{CONTROLLER}CreateSnapshot": (
        csi.CreateSnapshotRequest(name="n", source_volume_id="v"),
        csi.CreateSnapshotResponse,
        {"snapshot": SNAPSHOT},
    ),
    f"{CONTROLLER}GetSnapshot": (
        csi.GetSnapshotRequest(snapshot_id="s"),
        csi.GetSnapshotResponse,
        {"snapshot": SNAPSHOT},
    ),
    f"{CONTROLLER}ListSnapshots": (
        csi.ListSnapshotsRequest(snapshot_id="s"),
        csi.ListSnapshotsResponse,
        {"entries": [{"snapshot": SNAPSHOT}]},
    ),
    f"{GROUPS}CreateVolumeGroupSnapshot": (
        csi.CreateVolumeGroupSnapshotRequest(name="n", source_volume_ids=["v1", "v2"]),
        csi.CreateVolumeGroupSnapshotResponse,
        {"group_snapshot": {"group_snapshot_id": "g", "snapshots": MEMBERS}},
    ),
    f"{GROUPS}GetVolumeGroupSnapshot": (
        csi.GetVolumeGroupSnapshotRequest(group_snapshot_id="g"),
        csi.GetVolumeGroupSnapshotResponse,
        {"group_snapshot": {"group_snapshot_id": "g", "snapshots": MEMBERS}},
    ),
    "/csi.v1.Identity/GetPluginInfo": (
        csi.GetPluginInfoRequest(),
        csi.GetPluginInfoResponse,
        {"name": "ebs.csi.aws.com"},
    ),
    "/csi.v1.Node/NodeGetInfo": (
        csi.NodeGetInfoRequest(),
        csi.NodeGetInfoResponse,
        {"node_id": "n", "accessible_topology": {"segments": {"topology.io/zone": "a"}}},
    ),
}

BAD_IDS = {
    "absent": None,
    "empty": "",
    "blank": " ",
    "too long": "x" * 5000,
    "NUL": "v\x00",
    "a bell": "\x07v",
    "C1": "v\x85",
}
NEGATIVE = {"negative": "-1", "smallest": str(-(2**63))}
HUGE = {"huge": {"k": "v" * 600_000}, "many": {f"k{n}": "v" * 50 for n in range(12_000)}}
OTHER = {"another": "other"}
NO_LABEL = {
    "slash": {"a/b/c": "x"},
    "no name": {"a/": "x"},
    "no prefix": {"/a": "x"},
    "space": {"zone a": "x"},
    "long": {"z" * 64: "x"},
    "long prefix": {f"{'p' * 254}/z": "x"},
    "capital prefix": {"Topology.io/zone": "x"},
    "empty": {"": "x"},
    "value": {"zone": "a b"},
    "long value": {"zone": "z" * 64},
}

# The call, the path of the field, and the field's invalid values.
BAD_FIELDS: list[tuple[str, list[Any], dict[str, Any]]] = [
    (f"{CONTROLLER}CreateVolume", ["volume"], {"absent": None}),
    (f"{CONTROLLER}CreateVolume", ["volume", "volume_id"], BAD_IDS),
    (f"{CONTROLLER}CreateVolume", ["volume", "capacity_bytes"], NEGATIVE),
    (f"{CONTROLLER}CreateVolume", ["volume", "volume_context"], HUGE),
    (f"{CONTROLLER}ControllerPublishVolume", ["publish_context"], HUGE),
    (f"{CONTROLLER}ControllerExpandVolume", ["capacity_bytes"], NEGATIVE),
    (f"{CONTROLLER}ControllerGetVolume", ["volume"], {"absent": None}),
    (f"{CONTROLLER}ControllerGetVolume", ["volume", "volume_id"], BAD_IDS | OTHER),
    (f"{CONTROLLER}GetCapacity", ["available_capacity"], NEGATIVE),
    (f"{CONTROLLER}GetCapacity", ["maximum_volume_size"], NEGATIVE),
    (f"{CONTROLLER}CreateSnapshot", ["snapshot"], {"absent": None}),
    (f"{CONTROLLER}CreateSnapshot", ["snapshot", "snapshot_id"], BAD_IDS),
    (f"{CONTROLLER}GetSnapshot", ["snapshot"], {"absent": None}),
    (f"{CONTROLLER}GetSnapshot", ["snapshot", "snapshot_id"], BAD_IDS | OTHER),
    (f"{CONTROLLER}ListSnapshots", ["entries", 0, "snapshot"], {"absent": None}),
    (f"{CONTROLLER}ListSnapshots", ["entries", 0, "snapshot", "snapshot_id"], BAD_IDS),
    (f"{GROUPS}CreateVolumeGroupSnapshot", ["group_snapshot"], {"absent": None}),
    (f"{GROUPS}CreateVolumeGroupSnapshot", ["group_snapshot", "group_snapshot_id"], BAD_IDS),
    (
        f"{GROUPS}CreateVolumeGroupSnapshot",
        ["group_snapshot", "snapshots", 0, "snapshot_id"],
        BAD_IDS | {"doubled": "s2"},
    ),
    (
        f"{GROUPS}CreateVolumeGroupSnapshot",
        ["group_snapshot", "snapshots", 1, "source_volume_id"],
        BAD_IDS | {"doubled": "v1", "of nobody": "v3"},
    ),
    (
        f"{GROUPS}CreateVolumeGroupSnapshot",
        ["group_snapshot", "snapshots", 0, "group_snapshot_id"],
        OTHER,
    ),
    (
        f"{GROUPS}CreateVolumeGroupSnapshot",
        ["group_snapshot", "snapshots"],
        {"one is missing": MEMBERS[:1]},
    ),
    (f"{GROUPS}GetVolumeGroupSnapshot", ["group_snapshot"], {"absent": None}),
    (f"{GROUPS}GetVolumeGroupSnapshot", ["group_snapshot", "group_snapshot_id"], BAD_IDS | OTHER),
    (
        "/csi.v1.Identity/GetPluginInfo",
        ["name"],
        {"a bar": "a|b", "an at": "a@b", "long": "a" * 64, "a dash at the end": "a-"},
    ),
    ("/csi.v1.Node/NodeGetInfo", ["accessible_topology", "segments"], NO_LABEL),
]


def changed(rpc: str, place: list[Any], value: Any) -> Any:
    """Return the call's valid answer with another value in one place; None removes the field."""
    _, answer_type, good = CALLS[rpc]
    content: Any = copy.deepcopy(good)
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    if value is None:
        inner.pop(place[-1], None)
    else:
        inner[place[-1]] = value
    return json_format.ParseDict(content, answer_type())


def check(rpc: str, answer: Any) -> Any:
    answers.check(CALLS[rpc][0], answer, rpc=rpc, driver="d.example")
    return answer


MATRIX = [
    pytest.param(rpc, place, value, id=f"{rpc.rpartition('/')[2]} {place[-1]} {name}")
    for rpc, place, values in BAD_FIELDS
    for name, value in values.items()
]


@pytest.mark.parametrize(("rpc", "place", "value"), MATRIX)
def test_an_answer_that_must_not_be_believed(rpc, place, value):
    """The error names driver, call and field and suggests a fix; the outcome stays unknown."""
    with pytest.raises(UnusableAnswerError) as caught:
        check(rpc, changed(rpc, place, value))
    text = str(caught.value)
    assert "d.example" in text
    assert rpc.rpartition("/")[2] in text
    assert next(step for step in reversed(place) if isinstance(step, str)) in text
    assert "Update the driver" in text
    assert not caught.value.is_final
    assert len(text) < 6000


@pytest.mark.parametrize("rpc", CALLS)
def test_a_good_answer_stays_as_it_is(rpc):
    answer = changed(rpc, ["x"], None)
    before = copy.deepcopy(answer)
    assert check(rpc, answer) == before


BAD_TIMES = {
    "year 1": {"seconds": -62135596800},
    "milliseconds": {"seconds": 1_767_323_045_000},
    "nanoseconds": {"seconds": 1_767_323_045_000_000_000},
    "after 2262": {"seconds": 2**63 // 10**9 + 1},
    "before 1677": {"seconds": -(2**63) // 10**9 - 1},
    "negative nanos": {"seconds": 5, "nanos": -1},
    "too many nanos": {"seconds": 5, "nanos": 10**9},
    "largest": {"seconds": 2**63 - 1, "nanos": 2**31 - 1},
}
STAMPED = {
    f"{CONTROLLER}CreateSnapshot": lambda answer: answer.snapshot,
    f"{CONTROLLER}GetSnapshot": lambda answer: answer.snapshot,
    f"{CONTROLLER}ListSnapshots": lambda answer: answer.entries[0].snapshot,
    f"{GROUPS}CreateVolumeGroupSnapshot": lambda answer: answer.group_snapshot.snapshots[1],
}
GROUP_STAMPED = {
    f"{GROUPS}CreateVolumeGroupSnapshot": lambda answer: answer.group_snapshot,
    f"{GROUPS}GetVolumeGroupSnapshot": lambda answer: answer.group_snapshot,
}


@pytest.mark.parametrize("stamp", BAD_TIMES.values(), ids=BAD_TIMES)
@pytest.mark.parametrize(("rpc", "of"), [*STAMPED.items(), *GROUP_STAMPED.items()])
def test_a_time_that_cannot_be_stored_was_not_answered(rpc, of, stamp, caplog):
    """BUG-1: the snapshot is usable without it; the log names driver and field."""
    answer = changed(rpc, ["x"], None)
    of(answer).creation_time.seconds = stamp["seconds"]
    of(answer).creation_time.nanos = stamp.get("nanos", 0)
    check(rpc, answer)
    assert not of(answer).HasField("creation_time")
    (told,) = [one for one in caplog.records if "ignoring" in one.message]
    assert told.driver == "d.example"
    assert told.field.endswith("creation_time")


@pytest.mark.parametrize("asked", ["s", ""], ids=["one snapshot", "all"])
@pytest.mark.parametrize("at", [0, 1], ids=["before it", "after it"])
def test_a_broken_snapshot_of_a_list_speaks_for_no_other(asked, at):
    """A driver that ignores the filter lists broken snapshots next to the requested one."""
    entries = [{"snapshot": {"snapshot_id": "s", "size_bytes": 1}}]
    entries.insert(at, {"snapshot": {"snapshot_id": "", "size_bytes": -1}})
    answer = csi.ListSnapshotsResponse(entries=entries)
    request, rpc = csi.ListSnapshotsRequest(snapshot_id=asked), f"{CONTROLLER}ListSnapshots"
    if asked:
        answers.check(request, answer, rpc=rpc, driver="d.example")
    else:
        with pytest.raises(UnusableAnswerError, match=rf"entries\[{at}\]\.snapshot\.snapshot_id"):
            answers.check(request, answer, rpc=rpc, driver="d.example")


@pytest.mark.parametrize("size", [-1, -(2**63)])
@pytest.mark.parametrize(("rpc", "of"), STAMPED.items())
def test_a_negative_size_of_a_snapshot_was_not_answered(rpc, of, size):
    answer = changed(rpc, ["x"], None)
    of(answer).size_bytes = size
    assert of(check(rpc, answer)).size_bytes == 0


@pytest.mark.parametrize("seconds", [0, -1, 1, 2**63 // 10**9 - 1])
def test_times_that_can_be_stored_stay(seconds):
    answer = changed(f"{CONTROLLER}CreateSnapshot", ["x"], None)
    answer.snapshot.creation_time.seconds = seconds
    check(f"{CONTROLLER}CreateSnapshot", answer)
    assert answer.snapshot.creation_time.seconds == seconds


@pytest.mark.parametrize("name", ["", " "])
def test_a_volume_without_a_name_is_left_out_of_a_list(name):
    """The others are still valid: one broken volume does not stop the comparison of the rest."""
    answer = csi.ListVolumesResponse()
    for volume_id in ("a", name, "b"):
        answer.entries.add().volume.volume_id = volume_id
    answer.entries.add()
    request = csi.ListVolumesRequest()
    answers.check(request, answer, rpc=f"{CONTROLLER}ListVolumes", driver="d")
    assert [entry.volume.volume_id for entry in answer.entries] == ["a", "b"]


@pytest.mark.parametrize("segments", NO_LABEL.values(), ids=NO_LABEL)
def test_a_topology_that_no_node_can_have(segments):
    volume = csi.Volume(volume_id="v")
    volume.accessible_topology.add(segments={"zone": "a"})
    volume.accessible_topology.add(segments=segments)
    with pytest.raises(UnusableAnswerError, match=r"accessible_topology\[1\]") as caught:
        answers.check_topology(volume, driver="d")
    assert caught.value.made == "v"


@pytest.mark.parametrize(
    "segments",
    [{"topology.kubernetes.io/zone": "eu-1a"}, {"zone": ""}, {"A_b.c-1": "X_y.z"}, {}],
)
def test_a_topology_that_a_node_can_have(segments):
    volume = csi.Volume(volume_id="v")
    volume.accessible_topology.add(segments=segments)
    answers.check_topology(volume, driver="d")


def test_what_was_made_is_told_as_far_as_the_answer_names_it():
    rpc = f"{GROUPS}CreateVolumeGroupSnapshot"
    place = ["group_snapshot", "snapshots", 1, "source_volume_id"]
    with pytest.raises(UnusableAnswerError) as caught:
        check(rpc, changed(rpc, place, ""))
    assert (caught.value.made, caught.value.members) == ("g", ("s1", "s2"))
    rpc = f"{CONTROLLER}CreateVolume"
    with pytest.raises(UnusableAnswerError) as caught:
        check(rpc, changed(rpc, ["volume", "volume_id"], "v\x00"))
    assert caught.value.made == "v\x00"


def test_a_group_that_is_not_ready_may_tell_its_members_later():
    rpc = f"{GROUPS}CreateVolumeGroupSnapshot"
    check(rpc, changed(rpc, ["group_snapshot", "snapshots"], []))
    answer = changed(rpc, ["group_snapshot", "snapshots"], [])
    answer.group_snapshot.ready_to_use = True
    with pytest.raises(UnusableAnswerError, match="no snapshot of volume v1"):
        check(rpc, answer)
