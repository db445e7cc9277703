"""What does `csi-fleet explain va` conclude from the facts?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.attach_world import FIN
from workers.controllers.attacher.explain import AttachmentFacts, attachment_cause
from workers.controllers.attacher.spec import SPEC
from workers.explain.generic import candidates
from workers.queue.inspect import KeyState
from workers.queue.keys import Key

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
            facts(attachment(deleted=True, finalizers=["x"])), "foreign-finalizer", id="others"
        ),
        pytest.param(facts(attachment(), watchers=0), "no-watcher", id="no watcher"),
        pytest.param(facts(attachment()), "not-queued", id="forgotten"),
        pytest.param(
            facts(attachment(attachError=error('persistentvolume "pv1" not found'))),
            "volume-missing",
            id="volume",
        ),
        pytest.param(
            facts(attachment(attachError=error("CSINode node1 does not contain driver csi/test"))),
            "driver-not-on-node",
            id="node",
        ),
        pytest.param(
            facts(attachment(attachError=error('failed to load secret "a/b": no'))),
            "secret",
            id="secret",
        ),
        pytest.param(
            facts(attachment(deleted=True, detachError=error("rpc error: code = Internal"))),
            "driver-error",
            id="driver",
        ),
        pytest.param(facts(attachment(attachError=error("other"))), "attach-failed", id="else"),
    ],
)
def test_first_cause(given, code):
    """One word per cause, stable for scripts."""
    assert attachment_cause(given).code == code


def test_error_is_quoted_with_its_age():
    given = facts(attachment(attachError=error("rpc error: code = Internal desc = boom")))
    assert attachment_cause(given).text == (
        "The last attach failed 10 s ago: rpc error: code = Internal desc = boom"
    )


def test_volume_removed_by_force_needs_a_person():
    """DA-006: without a record nothing else ends it."""
    message = 'persistentvolume "pv1" not found'
    given = facts(attachment(deleted=True, detachError=error(message)))
    assert "finalizer" in attachment_cause(given).advice


def test_running_key_comes_before_its_last_error():
    """What happens now says more than what happened then."""
    state = KeyState(KEY, now=NOW, lease=("host:1:x", NOW - 1))
    given = facts(attachment(attachError=error("boom")))
    assert attachment_cause(replace(given, state=state)).code == "running"


def test_keys_that_retry_looks_for():
    """The node stands before the name, so `csi-fleet retry va NAME` must look there."""
    records = {"csi/test": {"name": "csi/test", "controllers": ["attacher"]}}
    found = {"metadata": {"name": "va", "uid": "u1"}, "spec": {"nodeName": "node1"}}
    (kind,) = [one for one in SPEC.kinds if one.name == "attachments"]
    assert KEY in list(candidates(records, SPEC, kind, found))
