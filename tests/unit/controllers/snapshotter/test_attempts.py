"""The intent of an attempt, and how an attempt ends whose object is gone.

SNQ-005, SNS-021, SND-032.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.fake_context import SEAL
from tests.support.snapshot_world import (
    ANN_CREATED,
    ANN_DELETED,
    CONTENT,
    CONTENT_KEY,
    CUT,
    DRIVER,
    UPLOADING,
    SnapshotWorld,
    error_of,
    notes,
)
from workers import constants as k
from workers.controllers.snapshotter.intent import (
    FIELD_RECORD,
    FIELD_SEAL,
    Intent,
    copy_name,
    read_copy,
    write_copy,
)
from workers.errors import LeaseLost
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.keys import Key
from workers.queue.seal import Seal
from workers.translate.secrets import SecretRef

SECRET = {k.ANN_SNAPSHOT_SECRET_NAME: "creds", k.ANN_SNAPSHOT_SECRET_NAMESPACE: "ns"}
BEGUN = Intent("snapshot-u1", ("h1",), version=1)
FULL, NO, AWAY = "RESOURCE_EXHAUSTED", "INTERNAL", "UNAVAILABLE"


def refused(code: str) -> dict[str, str]:
    return {"code": code, "message": "no"}


def recorded(world: SnapshotWorld) -> Intent | None:
    """Return the intent in the key's state."""
    return Intent.read(world.queue.marks.get(CONTENT_KEY.text, {}).get("intent"))


def wanted_gone(world: SnapshotWorld) -> None:
    change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)


def drop(world: SnapshotWorld) -> None:
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)


# The intent.


@pytest.mark.parametrize(
    ("intent", "flags"),
    [
        (BEGUN, (True, False, False, False)),
        (BEGUN.with_copy(), (True, False, True, False)),
        (BEGUN.as_full(), (False, False, False, True)),
        (BEGUN.as_failed(), (False, True, False, False)),
        (BEGUN.with_copy().as_failed(), (False, True, False, False)),
        (BEGUN.with_copy().as_full(), (False, False, True, True)),
        (replace(BEGUN, is_failed=True), (True, True, False, False)),
    ],
)
def test_what_a_record_says_and_that_it_comes_back(intent, flags):
    """The flags are: open, failed, copied, full.

    Writing and reading an intent returns an equal one.
    """
    assert (intent.is_open, intent.is_failed, intent.has_copy, intent.is_full) == flags
    for secret in (None, SecretRef("a", "b")):
        kept = replace(intent, secret=secret, parameters={"tier": "cold"})
        assert Intent.read(msgspec.json.decode(msgspec.json.encode(kept.record()))) == kept
    assert Intent.read({}) is Intent.read(None) is None


@pytest.mark.parametrize(("more", "is_kept"), [(0, True), (1, False)])
def test_parameters_that_are_too_large_are_not_remembered(more, is_kept):
    """The parameters may take exactly 12 KiB of the key's state."""
    parameters = {"a": "x" * (12 * 1024 - len('{"a":""}') + more)}
    found = replace(BEGUN, parameters=parameters).record()["parameters"]
    assert found == (parameters if is_kept else None)


def put(
    world: SnapshotWorld,
    record: dict[str, Any],
    driver: str = DRIVER,
    *,
    signer: Seal = SEAL,
    signed_for: Key = CONTENT_KEY,
) -> None:
    metadata: dict[str, Any] = {"name": copy_name(CONTENT_KEY), "namespace": "fleet", "uid": "m"}
    body = {"metadata": metadata}
    body["metadata"]["annotations"] = {k.ANN_RECORD_DRIVER: driver} if driver else {}
    text = msgspec.json.encode({"key": CONTENT_KEY.text, **record, "copy_uid": "m"})
    seal = signer.close("marks", signed_for.text, signed_for.tenant, text).removesuffix(text)
    data = {FIELD_RECORD: text.decode(), FIELD_SEAL: seal.decode()}
    world.api.add(paths.CONFIG_MAPS, body | {"data": data})


@pytest.mark.parametrize(
    ("record", "driver", "is_read"),
    [
        (BEGUN.record(), DRIVER, True),
        (BEGUN.record(), "", True),
        (BEGUN.record(), "other.test", False),
        ({}, DRIVER, False),
        ({"name": "n"}, DRIVER, False),
    ],
)
def test_a_copy_is_believed_if_it_is_the_drivers(record, driver, is_read):
    """The copy must also be readable; the intent that is read has the flag `copied`."""
    world = SnapshotWorld()
    put(world, record, driver)
    found = read_copy(world.api.kube, world.queue, "fleet", CONTENT_KEY)
    assert found == (replace(BEGUN.with_copy(), copy_uid="m") if is_read else None)


@pytest.mark.parametrize(
    ("key", "signer"),
    [
        pytest.param(CONTENT_KEY, Seal(), id="not signed"),
        pytest.param(CONTENT_KEY, Seal.of_lines(["1" * 64]), id="by somebody else"),
        pytest.param(Key(CONTENT_KEY.kind, DRIVER, "other"), SEAL, id="for another content"),
    ],
)
def test_a_copy_that_no_worker_signed_is_not_believed(key, signer):
    world = SnapshotWorld()
    put(world, BEGUN.record(), signer=signer, signed_for=key)
    assert read_copy(world.api.kube, world.queue, "fleet", CONTENT_KEY) is None


def test_a_copy_that_cannot_be_written_stops_nobody():
    """The driver may already be working, so the failed copy must not end the attempt."""
    world = SnapshotWorld()
    world.api.fail("patch", "configmaps", ForbiddenError(403, "Forbidden", "no"))
    write_copy(world.api.kube, world.queue, "fleet", CONTENT_KEY, BEGUN)
    assert read_copy(world.api.kube, world.queue, "fleet", CONTENT_KEY) is None
    uid = write_copy(world.api.kube, world.queue, "fleet", CONTENT_KEY, BEGUN)
    other = Key(CONTENT_KEY.kind, "other.test", CONTENT)
    assert read_copy(world.api.kube, world.queue, "fleet", CONTENT_KEY) == replace(
        BEGUN.with_copy(), copy_uid=uid
    )
    assert read_copy(world.api.kube, world.queue, "fleet", other) is None


# How each answer changes the intent.


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([AWAY], (True, False, True)),
        ([AWAY, AWAY], (True, False, True)),
        ([NO], (False, True, False)),
        ([FULL], (False, False, False)),
        ([FULL, FULL], (False, False, False)),
        ([AWAY, FULL], (True, False, True)),
        ([NO, FULL], (True, False, True)),
        ([FULL, AWAY], (True, False, True)),
        (["NOT_FOUND"], None),
        ([FULL, "NOT_FOUND"], None),
        ([AWAY, "NOT_FOUND"], (False, True, False)),
        ([NO, "NOT_FOUND"], (False, True, False)),
    ],
)
def test_the_record_after_each_answer(answers, expected):
    """SNS-021, SND-032: The flags are open, failed, copied.

    A final answer erases no earlier call.
    """
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused(code) for code in answers]})
    for _ in answers:
        assert world.run_content().action.value == "retry"
    known = recorded(world)
    assert (known and (known.is_open, known.is_failed, known.has_copy)) == expected
    copied = world.api.of(paths.CONFIG_MAPS, copy_name(CONTENT_KEY), "fleet")
    assert (copied is not None) is bool(expected and expected[2])


def test_each_open_call_is_copied():
    """Each copy has the deadline of its own call."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused(AWAY)]})
    world.run_content()
    copying = ["record-intent", "copy-intent", "record-intent"]
    assert world.steps.reached[-4:] == [*copying, "write-error"]
    for _ in range(2):
        world.run_content()
    assert world.steps.reached.count("copy-intent") == 3
    world.client.respond({"CreateSnapshot": [CUT]})
    world.run_content()
    assert world.steps.reached[-3:] == ["drop-copy", "record-intent", "unmark-created"]


@pytest.mark.parametrize("is_going", [True, False])
def test_nothing_is_asked_again_without_class_and_record(is_going):
    """SND-004: Without its class and its intent, a request cannot be repeated."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused(AWAY)]})
    world.run_content()
    world.api.drop(paths.SNAPSHOT_CLASSES, "c1")
    world.queue.marks.clear()
    if is_going:
        wanted_gone(world)
    assert world.run_content().action.value == "retry"
    assert len(world.client.calls) == 1
    assert error_of(world.content()).endswith(r'k8s.io \"c1\" not found"')


def test_what_is_reported_has_no_record_while_it_is_asked_for_again():
    """SNQ-005: The intent is of an earlier worker, which died after it had written the status."""
    world = SnapshotWorld()
    annotations = {ANN_CREATED: "yes"}
    world.add_content(metadata={"annotations": annotations}, status={"snapshotHandle": "sh"})
    world.queue.marks[CONTENT_KEY.text] = {"intent": BEGUN.record(), "polls": 3}
    seen = []

    def look(_: Any) -> dict[str, Any]:
        seen.append((dict(world.queue.marks[CONTENT_KEY.text]), notes(world.content())))
        return UPLOADING

    world.client.respond({"CreateSnapshot": [look]})
    outcome = world.run_content()
    ((mark, annotated),) = seen
    assert mark.pop("overtaken"), "until when the call may run"
    assert (mark, annotated) == ({"polls": 3}, {})
    assert outcome.delay_seconds == 1.5**3


def test_a_lease_that_is_lost_while_a_reported_snapshot_is_asked_for():
    """G9: Nothing is copied, because the snapshot's handle is already reported."""
    world = SnapshotWorld()
    world.add_content(status={"snapshotHandle": "sh"})
    lost: list[Any] = []
    leases = world.lease

    def take(key: Key) -> Any:
        lost.append(leases(key))
        return lost[-1]

    def lose(_: Any) -> dict[str, Any]:
        lost[-1].is_lost = True
        return UPLOADING

    world.lease = take  # type: ignore[method-assign]
    world.client.respond({"CreateSnapshot": [lose]})
    with pytest.raises(LeaseLost):
        world.run_content()
    assert not [one for one in world.api.writes if "configmaps" in one.path]


def test_a_reported_snapshot_whose_content_goes_during_a_call_is_forgotten_at_once():
    """No further reconcile is needed to drop the intent."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [UPLOADING, lambda _: drop(world) or CUT]})
    world.run_content()
    assert world.queue.marks[CONTENT_KEY.text].keys() == {"polls", "asked"}
    assert world.run_content().reason == "gone"
    assert world.queue.marks == {}
    assert "DeleteSnapshot" not in world.client.methods


def test_a_content_that_goes_while_its_call_fails_is_asked_for_once_more():
    """Two final answers in a row, of which each proves nothing, mean that no snapshot was made."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [lambda _: drop(world) or refused(NO), refused(NO)]})
    assert world.run_content().reason == "nothing was left"
    assert world.client.methods == ["CreateSnapshot", "CreateSnapshot"]
    assert world.queue.marks == {}


@pytest.mark.parametrize("going", [{"deletionTimestamp": "t"}, {"annotations": {ANN_DELETED: "y"}}])
def test_only_a_content_that_is_wanted_gone_comes_back_at_once(going):
    """SND-006: Only a content that is deleted and annotated is reconciled again at once."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})

    def half() -> None:
        world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"metadata": going})

    world.api.before("patch", f"{CONTENT}/status", half)
    assert world.run_content().reason == "ready"


# The end of an attempt whose object is gone.


@pytest.mark.parametrize(
    ("known", "answer", "ends", "flags"),
    [
        (BEGUN, NO, "Internal", (False, True, False)),
        (BEGUN, AWAY, "Unavailable", (True, False, True)),
        (BEGUN, FULL, "ResourceExhausted", (True, False, True)),
        (BEGUN.as_failed(), NO, "nothing was left", None),
        (BEGUN.as_failed(), AWAY, "Unavailable", (False, True, True)),
        (BEGUN.as_failed(), FULL, "ResourceExhausted", (False, True, True)),
        (BEGUN.as_full(), NO, "nothing was left", None),
        (BEGUN.as_full(), AWAY, "Unavailable", (False, False, True)),
        (BEGUN.as_full(), FULL, "nothing was left", None),
    ],
)
def test_what_a_last_question_proves(known, answer, ends, flags):
    """After an open call a failed call proves nothing, nor a full pool after a failed call."""
    world = SnapshotWorld()
    world.add_content()
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.queue.marks[CONTENT_KEY.text] = {"intent": known.record()}
    world.client.respond({"CreateSnapshot": [refused(answer)]})
    outcome = world.run_content()
    assert (outcome.reason, outcome.action.value) == (ends, "done" if flags is None else "retry")
    found = recorded(world)
    assert (found and (found.is_open, found.is_failed, found.has_copy)) == flags
    copied = world.api.of(paths.CONFIG_MAPS, copy_name(CONTENT_KEY), "fleet")
    assert (copied is not None) is bool(flags and flags[2])


@pytest.mark.parametrize("has_secret", [True, False])
def test_what_a_last_question_found_goes_with_the_attempts_secret(has_secret):
    """SND-012: The snapshot is deleted with the secret if it can be read.

    Each step is announced.
    """
    world = SnapshotWorld()
    world.add_content()
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    if has_secret:
        metadata = {"name": "creds", "namespace": "ns"}
        world.api.add(paths.SECRETS, {"metadata": metadata, "data": {"a": "Yg=="}})
    known = replace(BEGUN, secret=SecretRef("creds", "ns"))
    world.queue.marks[CONTENT_KEY.text] = {"intent": known.record()}
    world.client.respond({"CreateSnapshot": [CUT]})
    assert world.run_content().reason == "cleaned up"
    assert world.client.methods == ["CreateSnapshot", "DeleteSnapshot"]
    for _, request in world.client.calls:
        assert dict(request.secrets) == ({"a": "b"} if has_secret else {})
    assert world.client.requests("DeleteSnapshot")[0].snapshot_id == "sh"
    assert world.steps.reached == [
        *("record-intent", "ask-orphan", "record-intent", "delete-orphan", "record-intent"),
    ]
    assert world.queue.marks == {}


def test_a_found_snapshot_that_cannot_be_deleted_is_tried_again():
    """There is no object for an event or a status."""
    world = SnapshotWorld()
    world.add_content()
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.queue.marks[CONTENT_KEY.text] = {"intent": BEGUN.record()}
    world.client.respond({"CreateSnapshot": [CUT], "DeleteSnapshot": [refused(NO), {}]})
    assert world.run_content().action.value == "retry"
    kept = recorded(world)
    assert kept == replace(BEGUN.with_copy(), handle="sh", copy_uid=kept.copy_uid)
    assert world.run_content().reason == "cleaned up"
    assert world.client.methods == ["CreateSnapshot", "DeleteSnapshot", "DeleteSnapshot"]


@pytest.mark.parametrize(
    ("capabilities", "listed", "is_gone"),
    [
        pytest.param(["LIST_SNAPSHOTS"], {}, True, id="none"),
        pytest.param(["LIST_SNAPSHOTS"], {"next_token": "more"}, False, id="more pages"),
        pytest.param(["LIST_SNAPSHOTS"], CsiError(errors.INTERNAL, "no"), False, id="refused"),
        pytest.param([], {}, False, id="cannot list"),
    ],
)
def test_only_a_whole_list_without_snapshots_is_a_proof(capabilities, listed, is_gone):
    """SND-032: The list is of the volume's snapshots; an open call came before the full pool."""
    world = SnapshotWorld(*capabilities)
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused(AWAY), refused(FULL)]})
    is_answer = isinstance(listed, dict)
    world.client.respond({"ListSnapshots": [{"pages": {"": listed}} if is_answer else listed]})
    world.run_content()
    wanted_gone(world)
    for _ in range(2):
        world.run_content()
    assert (world.content() is None) is is_gone
    asked = world.client.requests("ListSnapshots")
    assert {one.source_volume_id for one in asked} == ({"h1"} if capabilities else set())
