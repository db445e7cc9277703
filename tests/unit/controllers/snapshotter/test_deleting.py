"""DeleteSnapshot, queries and the rows of the state table: SNT-070 to SNT-082, SNT-084."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from csi_client import messages as csi
from tests.support.snapshot_world import (
    ANN_CREATED,
    ANN_DELETED,
    CONTENT,
    CUT,
    DRIVER,
    SnapshotWorld,
    content_body,
    error_of,
    given_body,
)
from workers import constants as k
from workers.config.flags import Command
from workers.config.load import parse
from workers.config.settings import NodeSettings
from workers.controllers.snapshotter.controller import CONTROLLER
from workers.controllers.snapshotter.decide import Action, decide, is_ours, should_delete
from workers.controllers.snapshotter.settings import read_settings
from workers.errors import ConfigError
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Mode

STATUS = {"snapshotHandle": "sh", "readyToUse": True, "creationTime": 1, "restoreSize": 2}
SECRET = {k.ANN_SNAPSHOT_SECRET_NAME: "creds", k.ANN_SNAPSHOT_SECRET_NAMESPACE: "ns"}


def going(world: SnapshotWorld, *, annotations: dict | None = None, given: bool = False, **changes):
    """Add a content under deletion, annotated for deletion by its snapshot's controller."""
    marks = {ANN_DELETED: "yes"} if annotations is None else annotations
    metadata = {"annotations": marks, **changes.pop("metadata", {})}
    add = world.add_given if given else world.add_content
    add(metadata=metadata, **changes)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)


def test_snt070_a_driver_that_cannot_list_is_believed():
    """SNS-031: Without a list, a pre-provisioned snapshot counts as ready."""
    world = SnapshotWorld()
    world.add_given()
    assert world.run_content().action.value == "done"
    status = world.content()["status"]
    assert (status["snapshotHandle"], status["readyToUse"]) == ("sx", True)
    assert "restoreSize" not in status
    assert world.client.methods == []


def test_snt071_a_snapshot_that_is_not_listed():
    """SNS-031: The entry of another snapshot does not count (SND-026)."""
    world = SnapshotWorld("LIST_SNAPSHOTS")
    world.add_given()
    other = {"entries": [{"snapshot": {"snapshot_id": "other", "ready_to_use": True}}]}
    for answer in ({}, other):
        world.client.respond({"ListSnapshots": [lambda _, a=answer: answer_of(a)]})
        assert world.run_content().action.value == "retry"
    assert error_of(world.content()) == (
        "Failed to check and update snapshot content: failed to list snapshot for content "
        f'{CONTENT}: "can not find snapshot for snapshotID sx"'
    )
    assert world.reasons == ["SnapshotContentCheckandUpdateFailed"]


def answer_of(content):
    """Return a ListSnapshots answer that is built from JSON."""
    return json_format.ParseDict(content, csi.ListSnapshotsResponse())


def test_snt072_the_list_secret_of_the_class():
    """SNS-030, SNA-023: ListSnapshots gets the list secret that the class names."""
    world = SnapshotWorld("LIST_SNAPSHOTS")
    prefix = "csi.storage.k8s.io/snapshotter-list-secret"
    world.add_class(
        parameters={
            f"{prefix}-name": "l-${volumesnapshotcontent.name}",
            f"{prefix}-namespace": "ns",
        }
    )
    world.api.add(
        paths.SECRETS,
        {"metadata": {"name": f"l-{CONTENT}", "namespace": "ns"}, "data": {"a": "Yg=="}},
    )
    world.add_given()
    entry = {"entries": [{"snapshot": {"snapshot_id": "sx", "ready_to_use": True}}]}
    world.client.respond({"ListSnapshots": [lambda _: answer_of(entry)]})
    assert world.run_content().action.value == "done"
    assert dict(world.client.requests("ListSnapshots")[0].secrets) == {"a": "b"}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"name": "s-${volumesnapshot.name}", "namespace": "ns"},
            'value "s-${volumesnapshot.name}": invalid tokens: ["volumesnapshot.name"]',
        ),
        (
            {"name": "none", "namespace": "ns"},
            'error getting secret none in namespace ns: secrets "none" not found',
        ),
    ],
)
def test_list_secrets_that_cannot_be_used(parameters, words):
    """SNS-030: Errors of the template and of the secret have the recorded texts."""
    world = SnapshotWorld("LIST_SNAPSHOTS")
    prefix = "csi.storage.k8s.io/snapshotter-list-secret"
    world.add_class(parameters={f"{prefix}-{key}": value for key, value in parameters.items()})
    world.add_given()
    assert world.run_content().action.value == "retry"
    assert error_of(world.content()).endswith(words)


def test_get_snapshot_is_preferred():
    """SND-035: NOT_FOUND from GetSnapshot means that the snapshot is gone."""
    world = SnapshotWorld("LIST_SNAPSHOTS", "GET_SNAPSHOT")
    world.add_given()
    found = {"snapshot": {"snapshot_id": "sx", "ready_to_use": True}}
    world.client.respond({"GetSnapshot": [{"code": "NOT_FOUND", "message": "x"}, found]})
    world.run_content()
    assert "can not find snapshot for snapshotID sx" in error_of(world.content())
    assert world.run_content().action.value == "done"
    assert set(world.client.methods) == {"GetSnapshot"}


def test_a_given_snapshot_that_is_not_ready_is_polled():
    """SNS-012, SND-001: Polls have growing delays."""
    world = SnapshotWorld("GET_SNAPSHOT")
    world.add_given()
    world.client.respond({"GetSnapshot": [{"snapshot": {"snapshot_id": "sx"}}]})
    waits = [world.run_content().delay_seconds for _ in range(3)]
    assert waits == [1.0, 1.5, 2.25]


def test_snt073_others_contents_are_ignored():
    """SNS-003: The content has another driver, a class of another driver, or no source at all."""
    other = {"driver": "other.test"}
    assert not is_ours(content_body(spec=other), None, DRIVER)
    assert not is_ours(content_body(), other, DRIVER)
    assert not is_ours(content_body(spec={"source": {}}), None, DRIVER)
    assert is_ours(content_body(), None, DRIVER)
    world = SnapshotWorld()
    world.add_class(driver="other.test")
    world.add_content()
    assert world.run_content().reason == "not ours"


def test_snt074_deletion_in_order():
    """SNS-040, SNQ-011 d: Call with the secret, clear the status, remove the finalizer last."""
    world = SnapshotWorld()
    world.api.add(
        paths.SECRETS, {"metadata": {"name": "creds", "namespace": "ns"}, "data": {"a": "Yg=="}}
    )
    going(world, annotations={ANN_DELETED: "yes"} | SECRET, status=dict(STATUS))
    assert world.run_content().action.value == "done"
    request = world.client.requests("DeleteSnapshot")[0]
    assert (request.snapshot_id, dict(request.secrets)) == ("sh", {"a": "b"})
    assert world.steps.reached == ["delete-snapshot", "clear-status", "remove-finalizer"]
    assert world.content() is None


def test_snt075_retain_keeps_the_snapshot():
    """SNS-010 row 2: DeleteSnapshot is not called."""
    world = SnapshotWorld()
    going(world, spec={"deletionPolicy": "Retain"}, status=dict(STATUS))
    world.run_content()
    assert world.client.methods == []
    assert world.content() is None


def test_snt076_a_refusal_is_told_with_its_cause():
    """SNS-041, SND-013: The deletion is retried forever, also after INVALID_ARGUMENT."""
    world = SnapshotWorld()
    going(world, status=dict(STATUS))
    answers = [
        {"code": "FAILED_PRECONDITION", "message": "has a clone"},
        {"code": "INVALID_ARGUMENT", "message": "member"},
        {},
    ]
    world.client.respond({"DeleteSnapshot": answers})
    assert world.run_content().action.value == "retry"
    assert world.reasons == ["SnapshotDeleteError"]
    assert "has a clone" in world.messages[0]
    assert "has a clone" in error_of(world.content())
    assert world.content()["status"]["snapshotHandle"] == "sh"
    assert world.run_content().delay_seconds == 300.0
    world.run_content()
    assert world.content() is None


def test_snt077_a_status_that_is_not_cleared():
    """SNS-042: DeleteSnapshot is repeated, and drivers answer OK."""
    world = SnapshotWorld()
    going(world, status=dict(STATUS))
    world.api.fail("patch", f"{CONTENT}/status", ForbiddenError(403, "Forbidden", "no"))
    assert world.run_content().action.value == "retry"
    assert world.messages == ["Failed to clear content status"]
    world.run_content()
    assert world.client.methods == ["DeleteSnapshot", "DeleteSnapshot"]
    assert world.content() is None


def test_what_it_wrote_asks_for_no_second_pass():
    """COR-15: Its writes to status and finalizer cause events during the reconcile and later."""
    world = SnapshotWorld()
    finalizers = [k.FINALIZER_CONTENT, "of/another"]
    going(world, status=dict(STATUS), metadata={"finalizers": finalizers})
    outcome = world.run_content()
    left = world.content()
    assert left["metadata"]["finalizers"] == ["of/another"]
    assert outcome.known == left["metadata"]["resourceVersion"] != ""


def test_snt078_deleted_by_hand():
    """SNS-011: The VolumeSnapshot exists, so the content waits for that snapshot's deletion."""
    world = SnapshotWorld()
    going(world, annotations={}, status=dict(STATUS))
    assert world.run_content().action.value == "done"
    assert world.client.methods == []
    assert world.content() is not None


@pytest.mark.parametrize(
    ("policy", "status", "expected"),
    [
        ("Delete", STATUS, ["DeleteSnapshot"]),
        ("Retain", STATUS, []),
        ("Delete", None, ["DeleteSnapshot"]),
        ("Delete", {"error": {"message": "x"}}, ["DeleteSnapshot"]),
    ],
    ids=["SNT-079 Delete", "SNT-079 Retain", "never looked at", "looked at, no handle"],
)
def test_unbound_contents_follow_their_policy(policy, status, expected):
    """SNS-043: If no handle was reported, the source's handle is deleted (SND-021)."""
    world = SnapshotWorld()
    unbound = {"volumeSnapshotRef": {"name": "s", "namespace": "ns"}, "deletionPolicy": policy}
    more = {} if status is None else {"status": dict(status)}
    going(world, annotations={}, given=True, spec=unbound, **more)
    world.run_content()
    assert world.client.methods == expected
    assert world.content() is None


def test_the_handle_of_the_source_can_be_left_alone():
    """SND-021: `--delete-unread-snapshots=false` restores csi-snapshotter's behaviour."""
    world = SnapshotWorld(deletes_unread=False)
    unbound = {"volumeSnapshotRef": {"name": "s", "namespace": "ns"}}
    going(world, annotations={}, given=True, spec=unbound)
    world.run_content()
    assert world.client.methods == []
    assert world.content() is None


def test_snt080_a_secret_that_is_gone_holds_nothing_up():
    """SND-012: Another error of the API server does block the deletion."""
    world = SnapshotWorld()
    going(world, annotations={ANN_DELETED: "yes"} | SECRET, status=dict(STATUS))
    world.api.fail("get", "secrets/creds", ForbiddenError(403, "Forbidden", "no"))
    assert world.run_content().action.value == "retry"
    assert world.client.methods == []
    world.run_content()
    assert dict(world.client.requests("DeleteSnapshot")[0].secrets) == {}
    assert world.messages[1].startswith("Failed to get snapshot credentials, deleting without")
    assert world.content() is None


def test_snt081_members_of_a_group_are_not_deleted_alone():
    """SNS-010 row 1, SNG-003: Only the group's call deletes a member."""
    world = SnapshotWorld()
    going(world, status=STATUS | {"volumeGroupSnapshotHandle": "gh"})
    world.run_content()
    assert world.client.methods == []
    assert world.content() is None


def test_snt082_members_of_a_group_are_not_created_alone():
    """SNS-010 rows 3 and 7: Only the group's call creates a member."""
    world = SnapshotWorld()
    world.add_content(metadata={"annotations": {k.ANN_GROUP_HANDLE: "gh"}})
    assert world.run_content().action.value == "wait"
    assert world.client.methods == []


def test_snt083_drivers_without_snapshots_are_not_served():
    """SNS-110: The process's other controllers still run."""
    world = SnapshotWorld()
    assert CONTROLLER.serves(world.driver)
    world.driver.supports = lambda name: name != "CREATE_DELETE_SNAPSHOT"
    assert not CONTROLLER.serves(world.driver)
    assert CONTROLLER.spec.unserved
    assert CONTROLLER.spec.unserved_code == 1


@pytest.mark.parametrize(
    "values",
    [{"snapshot-name-prefix": ""}, {"groupsnapshot-name-prefix": ""}],
)
def test_empty_prefixes_end_the_start(values):
    """SNS-110: An empty name prefix is a configuration error with exit code 1."""
    with pytest.raises(ConfigError, match="name prefix cannot be of length 0") as caught:
        read_settings(values)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("length", [0, 33, 40, -2])
def test_lengths_that_give_no_name_end_the_start(length):
    """SND-025: A UID length that allows no name is a configuration error."""
    with pytest.raises(ConfigError, match="uuid-length"):
        read_settings({"snapshot-name-uuid-length": length})


def test_names():
    """SNA-007: A name has the prefix and the UID, cut to the configured length."""
    settings = read_settings({"snapshot-name-prefix": "backup", "snapshot-name-uuid-length": 8})
    assert settings.snapshot_name.name("0f1e2d3c-4b5a-4968") == "backup-0f1e2d3c"
    assert settings.group_name.name("a-b") == "groupsnapshot-a-b"


@pytest.mark.parametrize(
    ("metadata", "given", "expected"),
    [
        ({}, False, False),
        ({"annotations": {ANN_DELETED: "yes"}}, False, False),
        ({"deletionTimestamp": "t"}, False, False),
        ({"deletionTimestamp": "t", "annotations": {ANN_DELETED: ""}}, False, True),
        (
            {"deletionTimestamp": "t", "annotations": {ANN_DELETED: "yes", ANN_CREATED: ""}},
            False,
            False,
        ),
        ({"deletionTimestamp": "t"}, True, True),
    ],
)
def test_should_delete(metadata, given, expected):
    """SNS-011: An annotation counts if it is present, whatever its value is (SNA-006)."""
    unbound = {"volumeSnapshotRef": {"name": "s", "namespace": "ns"}}
    body = given_body(metadata=metadata, spec=unbound) if given else content_body(metadata=metadata)
    assert should_delete(body) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Action.CREATE),
        ({"status": {"readyToUse": True, "snapshotHandle": "s"}}, Action.TIDY),
        ({"status": {"readyToUse": True}}, Action.REPEAT),
        ({"status": {"readyToUse": True, "snapshotHandle": ""}}, Action.REPEAT),
        ({"status": {"snapshotHandle": "s"}}, Action.REPEAT),
        ({"status": {"error": {}}}, Action.REPEAT),
        ({"spec": {"source": {"snapshotHandle": "s"}}}, Action.QUERY),
        (
            {"status": {"snapshotHandle": "s", "volumeGroupSnapshotHandle": "g"}},
            Action.QUERY,
        ),
        ({"metadata": {"annotations": {k.ANN_GROUP_HANDLE: "g"}}, "status": {}}, Action.NOTHING),
    ],
)
def test_the_state_table(changes, expected):
    """SNS-010: An error without a message changes nothing (SND-017)."""
    assert decide(content_body(**changes)) is expected


def test_a_ready_content_loses_a_forgotten_announcement():
    """SNS-010 row 4: The annotation that announces a call is removed."""
    world = SnapshotWorld()
    world.add_content(metadata={"annotations": {ANN_CREATED: "yes"}}, status=dict(STATUS))
    world.run_content()
    assert ANN_CREATED not in world.content()["metadata"].get("annotations", {})


def test_what_a_last_call_found_cannot_be_deleted():
    """The content's status states the cause, and the call is repeated."""
    world = SnapshotWorld()
    world.add_content(spec={"deletionPolicy": "Retain"})
    no = {"code": "INTERNAL", "message": "no"}
    found = {"snapshot": {"snapshot_id": "sh"}}
    world.client.respond({"CreateSnapshot": [no, found], "DeleteSnapshot": [no, {}]})
    world.run_content()
    change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    assert world.run_content().action.value == "retry"
    assert "failed to delete snapshot sh: " in error_of(world.content())
    assert "desc = no" in world.messages[-1]
    world.run_content()
    world.run_content()
    assert world.content() is None
    assert world.client.methods == [
        *("CreateSnapshot", "CreateSnapshot", "DeleteSnapshot", "DeleteSnapshot"),
    ]
    assert world.queue.marks == {}


def test_no_deletion_while_a_volume_is_made_from_it():
    """SNQ-003: A restore locks the content, and another content locks the snapshot."""
    for name in (f"snapshot-content:{CONTENT}", f"{DRIVER}#snapshot#sh"):
        world = SnapshotWorld()
        going(world, status=dict(STATUS))
        world.queue.busy[name] = Mode.SHARED
        outcome = world.run_content()
        assert outcome.action.value == "blocked"
        assert outcome.lock.name == name
        assert world.client.methods == []


@pytest.mark.parametrize("label", ["n1", "n2", None])
def test_a_content_that_another_node_got_is_left_to_it(label):
    """SNS-001: The key may still be in this node's queue when the label changes."""
    world = SnapshotWorld()
    world.driver.settings.node = NodeSettings(enabled=True, node_name="n1")
    labels = {} if label is None else {k.LABEL_SNAPSHOT_NODE: label}
    world.add_content(metadata={"labels": labels})
    world.run_content()
    assert world.client.methods == (["CreateSnapshot"] if label == "n1" else [])


def test_what_this_node_began_is_ended_here_although_another_got_the_content():
    """SNS-001, SNQ-005: No other node knows of the snapshot that the call may have made."""
    world = SnapshotWorld()
    world.driver.settings.node = NodeSettings(enabled=True, node_name="n1")
    world.add_class()
    world.add_content(metadata={"labels": {k.LABEL_SNAPSHOT_NODE: "n1"}})
    world.client.respond({"CreateSnapshot": [{"code": "DEADLINE_EXCEEDED"}, CUT]})
    world.run_content()
    world.api.change(
        paths.SNAPSHOT_CONTENTS,
        world.content()["metadata"]["name"],
        {"metadata": {"labels": {k.LABEL_SNAPSHOT_NODE: "n2"}}},
    )
    world.run_content()
    assert world.client.methods.count("CreateSnapshot") == 2
    assert world.run_content().reason == "not ours"


def test_snt084_node_mode():
    """SNS-100: Node deployment excludes a Lease, and requires the node's name."""
    values = {"node-deployment": True, "leader-election": True}
    with pytest.raises(ConfigError) as caught:
        read_settings(values)
    assert caught.value.exit_code == 1
    argv = ["--controllers=snapshotter", "--node-deployment", "--csi-address=/x"]
    with pytest.raises(ConfigError, match="NODE_NAME") as caught:
        parse(Command.RUN, argv, {})
    assert caught.value.exit_code == 255
    found = parse(Command.RUN, argv, {"NODE_NAME": "n1"})
    assert (found.node.enabled, found.node.node_name) == (True, "n1")
