"""The cause that `csi-fleet explain va` derives from the facts."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.attach_world import FIN, AttachWorld
from workers.controllers.attacher import explain
from workers.controllers.attacher.explain import AttachmentFacts, attachment_cause
from workers.controllers.attacher.spec import SPEC
from workers.explain.generic import candidates
from workers.kube.errors import ForbiddenError
from workers.observability.trail import REFUSED
from workers.queue.inspect import KeyState, Note
from workers.queue.keys import Key
from workers.queue.limits import LaneLimits

NOW = 1_767_225_610.0
KEY = Key("attachments", "csi/test", "node1/va", "u1")


def attachment(*, deleted=False, finalizers=(FIN,), **status):
    metadata = {"name": "va", "uid": "u1", "finalizers": list(finalizers)}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"attacher": "csi/test", "nodeName": "node1", "source": {}}
    return {"metadata": metadata, "spec": spec, "status": {"attached": False, **status}}


def error(message):
    return {"message": message, "time": "2026-01-01T00:00:00Z"}


def facts(found=None, **more):
    driver = {"name": "csi/test"}
    return AttachmentFacts(
        "va", NOW, found, **{"driver": driver, "watchers": 1, "workers": 1} | more
    )


@pytest.mark.parametrize(
    ("given", "code"),
    [
        pytest.param(facts(), "not-found", id="no such"),
        pytest.param(facts(attachment(), driver=None, workers=0), "no-worker", id="nobody"),
        pytest.param(facts(attachment(), driver=None), "driver-not-registered", id="not here"),
        pytest.param(facts(attachment(attached=True)), "attached", id="attached"),
        pytest.param(
            facts(attachment(attached=True), driver=None), "attached", id="by somebody else"
        ),
        pytest.param(
            facts(attachment(deleted=True, finalizers=["x"])), "foreign-finalizer", id="others"
        ),
        pytest.param(facts(attachment(), watchers=0), "no-watcher", id="no watcher"),
        pytest.param(facts(attachment()), "not-queued", id="forgotten"),
        pytest.param(facts(attachment(attachError=error("other"))), "attach-failed", id="else"),
    ],
)
def test_first_cause(given, code):
    """Each cause has one word that is stable for scripts."""
    assert attachment_cause(given).code == code


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("volume-missing", "volume-missing"),
        ("driver-not-on-node", "driver-not-on-node"),
        ("secret", "secret"),
        ("secret-missing", "secret"),
        ("driver-error", "driver-error"),
        ("", "detach-failed"),
        ("written by somebody", "detach-failed"),
    ],
)
def test_the_reason_of_the_last_pass_is_the_cause(reason, code):
    """The text of the error does not matter."""
    state = KeyState(KEY, NOW, fails=1, memo=json.dumps({"reason": reason}) if reason else "")
    given = facts(attachment(deleted=True, detachError=error("words")), state=state)
    assert attachment_cause(given).code == code


@pytest.mark.parametrize("is_deleting", [False, True], ids=["attach", "detach"])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("no volume", "volume-missing"),
        ("no node", "driver-not-on-node"),
        ("no secret", "secret"),
        ("refused secret", "secret"),
        ("driver", "driver-error"),
        ("status", "attach-failed"),
    ],
)
def test_a_failed_pass_says_why(change, code, is_deleting):
    """The cause gets from the reconcile to the command without parsing the text."""
    world = AttachWorld(has_node=change != "no node")
    secret = {"controllerPublishSecretRef": {"name": "s", "namespace": "n"}}
    if change != "no volume":
        world.add_volume(csi=secret if "secret" in change else {})
    if change == "refused secret":
        world.api.fail("get", "secrets/s", ForbiddenError(403, "Forbidden", "no"))
    fails = [{"code": "INTERNAL", "message": "x"}]
    world.client.respond({"ControllerPublishVolume": fails, "ControllerUnpublishVolume": fails})
    source = {} if change == "status" else None
    options = {"finalizers": [FIN], "is_deleting": True} if is_deleting else {}
    key = world.add_attachment("va", source=source, **options)
    assert world.run(key).action.value == "retry"
    state = KeyState(key, NOW, fails=1, memo=world.memos[key.text])
    found = attachment_cause(facts(world.attachment("va"), state=state))
    wanted = code.replace("attach-failed", "detach-failed") if is_deleting else code
    assert (found.code, world.client.published) == (wanted, {})


def test_error_is_quoted_with_its_age():
    given = facts(attachment(attachError=error("rpc error: code = Internal desc = boom")))
    assert attachment_cause(given).text == (
        "The last attach failed 10 s ago: rpc error: code = Internal desc = boom"
    )


def test_volume_removed_by_force_needs_a_person():
    """DA-006: Without a record only an administrator can end the detach."""
    message = 'persistentvolume "pv1" not found'
    state = KeyState(KEY, NOW, fails=1, memo='{"reason":"volume-missing"}')
    given = facts(attachment(deleted=True, detachError=error(message)), state=state)
    assert "finalizer" in attachment_cause(given).advice


def test_running_key_comes_before_its_last_error():
    """The current state is more important than the last error."""
    state = KeyState(KEY, now=NOW, lease=("host:1:x", NOW - 1))
    given = facts(attachment(attachError=error("boom")))
    assert attachment_cause(replace(given, state=state)).code == "running"


def test_keys_that_retry_looks_for():
    """The node precedes the name in the key, so `csi-fleet retry va NAME` must add the node."""
    records = {"csi/test": {"name": "csi/test", "controllers": ["attacher"]}}
    found = {"metadata": {"name": "va", "uid": "u1"}, "spec": {"nodeName": "node1"}}
    (kind,) = [one for one in SPEC.kinds if one.name == "attachments"]
    assert KEY in list(candidates(records, SPEC, kind, found))


def test_others_that_keep_the_object_are_named():
    """All their finalizers are listed, because each has its own controller."""
    given = facts(attachment(deleted=True, finalizers=["x", "y"]))
    assert "other controllers keep the VolumeAttachment: x, y." in attachment_cause(given).text


def test_attached_is_no_problem():
    """`explain` exits with 0 only in this case."""
    assert attachment_cause(facts(attachment(attached=True))).is_problem is False
    assert attachment_cause(facts(attachment())).is_problem is True


@pytest.mark.parametrize(
    ("fails", "message", "code"),
    [
        pytest.param(0, "boom", "queued", id="tried again by a change"),
        pytest.param(2, "boom", "attach-failed", id="a retry waits for its turn"),
        pytest.param(0, "", "queued", id="first attempt"),
        pytest.param(2, "", "queued", id="the error was not saved"),
    ],
)
def test_a_failure_says_more_than_the_place_of_its_retry(fails, message, code):
    """Before a first attempt, the queue's position is more important than an old error."""
    state = KeyState(KEY, NOW, position=1, waiting=3, fails=fails, limits=LaneLimits(2))
    found = attachment(attachError=error(message)) if message else attachment()
    assert attachment_cause(facts(found, state=state)).code == code


REFUSAL = Note(NOW - 3, "error", f"{REFUSED}403 Forbidden: csinodes is forbidden")


@pytest.mark.parametrize("status", [{}, {"attachError": error("boom")}], ids=["first", "earlier"])
@pytest.mark.parametrize("deleted", [False, True], ids=["attach", "detach"])
def test_a_refusal_that_no_status_tells_of_is_the_cause(status, deleted):
    """The status could not be written, or has an older error."""
    state = KeyState(KEY, NOW, fails=2, due=NOW + 5, trail=(REFUSAL,))
    found = attachment_cause(facts(attachment(deleted=deleted, **status), state=state))
    assert found.code == "refused"
    assert "csinodes is forbidden" in found.text
    assert "csi-fleet doctor" in found.advice
    assert found.until == NOW + 5


def tools_of(world, records):
    """Return the API server and the Redis that the command uses."""
    return SimpleNamespace(
        kube=world.api.kube,
        registry=SimpleNamespace(alive=lambda: records),
        redis="redis",
        presence=SimpleNamespace(alive=lambda: ["w1", "w2"], workers=lambda: ["p1"]),
    )


@pytest.fixture
def asked(monkeypatch):
    """Return a list of the keys that are looked up in Redis."""
    found = []

    def read_key(_redis, key):
        found.append(key)
        return KeyState(key, NOW)

    monkeypatch.setattr(explain, "read_key", read_key)
    return found


ATTACHES = {"controllers": ["attacher"]}
RECORDS = {"other": {"name": "other", **ATTACHES}, "q": {"name": "csi/test", **ATTACHES}}


@pytest.mark.parametrize(
    ("is_deleting", "kind"), [(False, "attachments"), (True, "detachments")], ids=str
)
def test_da023_the_key_of_its_lane_is_read(asked, is_deleting, kind):
    """DA-023, MA-010: The key has the name of the driver's queue."""
    world = AttachWorld()
    key = world.add_attachment("va", is_marked=True, is_deleting=is_deleting)
    found = explain.gather(tools_of(world, RECORDS), "va")
    assert asked == [Key(kind, "q", "node1/va", key.uid)]
    assert found.driver == RECORDS["q"]
    assert found.served.names == ("csi/test", "other")
    assert (found.watchers, found.workers) == (2, 1)


def test_facts_of_a_driver_that_nobody_serves(asked):
    """The queue of such a driver has the driver's name."""
    world = AttachWorld()
    key = world.add_attachment("va")
    given = explain.explain(tools_of(world, {"other": RECORDS["other"]}), "va", "", "va")
    assert asked == [Key("attachments", "csi/test", "node1/va", key.uid)]
    assert given.cause.code == "driver-not-registered"
    assert "Drivers served now: other." in given.cause.advice


def test_a_driver_whose_workers_do_not_attach(asked):
    """The driver is half migrated.

    csi-fleet provisions its volumes, and its Go attacher still runs.
    """
    world = AttachWorld()
    world.add_attachment("va")
    records = RECORDS | {"q": {"name": "csi/test", "controllers": ["provisioner"]}}
    cause = explain.explain(tools_of(world, records), "va", "", "va").cause
    assert (cause.code, "none of them runs the attacher" in cause.text) == ("not-served", True)


def test_facts_of_an_attachment_that_is_not_there(asked):
    given = explain.explain(tools_of(AttachWorld(), RECORDS), "va", "", "va")
    assert (given.cause.code, given.state, asked) == ("not-found", None, [])
