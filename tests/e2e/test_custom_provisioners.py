"""Plug-ins use the public API on a real API server; the cases are the Go library's (issue 11)."""

from __future__ import annotations

import subprocess
import uuid

import pytest

from tests.support import plugins
from tests.support.fleet import Fleet, environment, program
from tests.support.waiting import wait_until
from workers.constants import (
    ANN_PROVISIONED_BY,
    ANN_SELECTED_NODE,
    ANN_STORAGE_PROVISIONER,
    FINALIZER_VOLUME,
)

TAG = f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plugins")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, folder, redis_binary):
    """Run two workers that serve four plug-ins and no CSI driver."""
    flags = [f"--provisioner=tests.support.plugins:{one.__name__}" for one in plugins.ALL]
    env = {"TEST_PLUGIN_DIR": str(folder), "TEST_PLUGIN_TAG": TAG}
    retries = ("--retry-interval-start=200ms", "--workers=2")
    directory = tmp_path_factory.mktemp("fleet")
    with Fleet(directory, kubeconfig, [], *retries, *flags, env=env) as fleet:
        yield fleet


def plugin(kind, folder, scene):
    """Return the plug-in as the test sees it, with rules and calls of its own namespace."""
    found = kind(folder, TAG)
    found.script.namespace = scene.namespace
    return found


@pytest.fixture
def plain(fleet, folder, scene):
    return plugin(plugins.ScriptedProvisioner, folder, scene)


@pytest.fixture
def guarded(fleet, folder, scene):
    return plugin(plugins.Guarded, folder, scene)


@pytest.fixture
def block(fleet, folder, scene):
    return plugin(plugins.Block, folder, scene)


@pytest.fixture
def backoff(fleet, folder, scene):
    return plugin(plugins.Backoff, folder, scene)


def class_of(scene, plugin, name="", **body):
    return scene.storage_class(plugin.name, name or plugin.kind, **body)


def messages(scene, claim, reason):
    return [one["message"] for one in scene.events(claim) if one["reason"] == reason]


def volume_events(scene, name):
    return {(one["reason"], one["message"]) for one in scene.api.events_of("default", name)}


def marker(scene, plugin, full):
    """Create another claim and wait until it is bound.

    Earlier claims have had their turn by then.
    """
    name = f"marker-{uuid.uuid4().hex[:6]}"
    scene.claim(name, full, metadata={"labels": {"wanted": "yes"}})
    scene.wait_bound(name)
    return name


def test_a_claim_becomes_a_volume_and_vanishes(plain, scene):
    """L-040 step 9, L-100: a plug-in whose name has a slash provisions and deletes."""
    claim = scene.claim("data", class_of(scene, plain))
    scene.wait_bound("data")
    volume = scene.volume_of(claim)
    meta, spec = volume["metadata"], volume["spec"]
    assert meta["annotations"][ANN_PROVISIONED_BY] == plain.name
    assert spec["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert spec["accessModes"] == ["ReadWriteOnce"]
    assert FINALIZER_VOLUME not in meta["finalizers"]
    wait_until(
        lambda: scene.reasons("data") >= {"Provisioning", "ProvisioningSucceeded"}, 10, "events"
    )
    assert {one["source"]["component"] for one in scene.events("data")} == {plain.name}

    scene.delete("data")
    scene.wait_gone()
    assert not (plain.script.volumes / meta["name"]).exists()
    assert len(plain.script.calls("provision", "data")) == 1


def test_c004_block_without_support_is_refused_once(plain, block, scene):
    """L-040 step 3: the plug-in is never called.

    C-005 for all combinations is a unit test.
    """
    scene.claim("raw", class_of(scene, plain), volumeMode="Block")
    event = scene.wait_event("raw", "does not support block volume provisioning")
    assert (event["type"], event["reason"]) == ("Warning", "ProvisioningFailed")
    scene.claim("raw-ok", class_of(scene, block), volumeMode="Block")
    scene.wait_bound("raw-ok")
    assert plain.script.calls("provision", "raw") == []
    assert "Provisioning" not in scene.reasons("raw")


def test_c014_a_class_of_another_provisioner_ends_it_silently(plain, scene):
    full = scene.storage_class("other.example.com/x", "foreign")
    scene.claim("data", full, metadata={"annotations": {ANN_STORAGE_PROVISIONER: plain.name}})
    marker(scene, plain, class_of(scene, plain))
    assert plain.script.calls("provision", "data") == []
    assert scene.events("data") == []


def test_c015_the_qualifier_decides(guarded, scene):
    full = class_of(scene, guarded)
    scene.claim("no", full)
    scene.claim("yes", full, metadata={"labels": {"wanted": "yes"}})
    scene.wait_bound("yes")
    assert guarded.script.calls("provision", "no") == []
    assert scene.reasons("no") == set()


def test_c023_c024_an_ignored_claim_waits_without_event_or_retry(plain, scene):
    plain.script.set("provision", "two", "ignored")
    full = class_of(scene, plain)
    scene.claim("one", full)
    scene.claim("two", full)
    scene.wait_bound("one")
    wait_until(lambda: plain.script.calls("provision", "two"), 20, "the plug-in is asked")
    marker(scene, plain, full)
    assert len(plain.script.calls("provision", "two")) == 1
    assert "ProvisioningFailed" not in scene.reasons("two")
    plain.script.set("provision", "two", "ok")
    scene.annotate("two", note="changed")
    scene.wait_bound("two")


def test_c038_a_threshold_gives_up_and_each_change_tries_once(plain, scene):
    """L-016: with threshold 3 there are four calls, then one more for each update of the claim."""
    plain.script.set("provision", "data", "final:disk on fire")
    full = class_of(scene, plain)
    scene.claim("data", full)

    def calls():
        return len(plain.script.calls("provision", "data"))

    wait_until(lambda: calls() == 4, 30, "four attempts")
    # The next back-off would be 1.6 s: two claims that fail and recover take longer.
    plain.script.set("provision", "later", "final:x", "final:x", "final:x", "ok")
    scene.claim("later", full)
    scene.wait_bound("later")
    assert calls() == 4
    scene.annotate("data", note="changed")
    wait_until(lambda: calls() == 5, 20, "one more attempt")
    plain.script.set("provision", "again", "final:x", "final:x", "final:x", "ok")
    scene.claim("again", full)
    scene.wait_bound("again")
    assert calls() == 5
    # Each worker process that tried writes an Event object of its own.
    assert set(messages(scene, "data", "ProvisioningFailed")) == {"disk on fire"}


def test_c026_c029_a_claim_deleted_in_background_is_finished(plain, scene):
    """G7: the volume that may exist gets its PV, then both are deleted."""
    plain.script.set("provision", "data", "background:still at it", "background:still", "ok")
    claim = scene.claim("data", class_of(scene, plain))
    scene.wait_event("data", "still at it")
    scene.delete("data")
    wait_until(lambda: len(plain.script.calls("provision", "data")) >= 3, 30, "it is finished")
    wait_until(lambda: plain.script.calls("delete", "data"), 30, "and reclaimed")
    wait_until(lambda: scene.volume_of(claim) is None, 20, "PV is gone")


def test_c032_reschedule_takes_the_node_off(plain, scene):
    """L-052: the claim loses its selected node, so the scheduler can choose another.

    C-018 too: the plug-in receives the name of the node.
    """
    plain.script.set("provision", "data", "reschedule:no room on this node", "ok")
    full = class_of(scene, plain, "late", volumeBindingMode="WaitForFirstConsumer")
    scene.claim("data", full)
    scene.annotate("data", **{ANN_STORAGE_PROVISIONER: plain.name})
    scene.select_node("data", "node-1")
    scene.wait_event("data", "no room on this node")

    def node():
        return (scene.get("data")["metadata"].get("annotations") or {}).get(ANN_SELECTED_NODE)

    wait_until(lambda: node() is None, 20, "the scheduler chooses again")
    assert [one["node"] for one in plain.script.calls("provision", "data")] == ["node-1"]
    scene.select_node("data", "node-2")
    scene.wait_bound("data")
    assert plain.script.calls("provision", "data")[-1]["node"] == "node-2"


def test_c044_invalid_argument_is_told_and_retried_slowly(plain, scene):
    plain.script.set("provision", "data", "invalid:no such disk type")
    full = class_of(scene, plain)
    scene.claim("data", full)
    event = scene.wait_event("data", "no such disk type")
    assert "Retries will be delayed" in event["message"]
    scene.annotate("data", note="changed")
    marker(scene, plain, full)
    assert len(plain.script.calls("provision", "data")) == 1


def test_c054_backoff_store_deletes_what_it_cannot_save(backoff, scene):
    """L-081: the API server refuses a PV without capacity three times.

    The plug-in then deletes that volume and makes another.
    """
    backoff.script.set("provision", "data", "no-capacity", "ok")
    claim = scene.claim("data", class_of(scene, backoff))
    event = scene.wait_event("data", "Deleting the volume.")
    assert event["message"].startswith(
        f"Error creating provisioned PV object for claim {scene.namespace}/data: "
    )
    scene.wait_bound("data")
    assert len(backoff.script.calls("provision", "data")) == 2
    assert len(backoff.script.calls("delete", "data")) == 1
    assert scene.volume_of(claim)["spec"]["capacity"] == {"storage": "1Gi"}


def test_c055_backoff_store_asks_for_manual_deletion(backoff, scene):
    backoff.script.set("provision", "data", "no-capacity", "ok")
    backoff.script.set("delete", "data", "cannot", "cannot", "ignored", "ok")
    scene.claim("data", class_of(scene, backoff))
    event = scene.wait_event("data", "Please delete manually.")
    assert event["reason"] == "ProvisioningCleanupFailed"
    scene.wait_bound("data")
    assert len(backoff.script.calls("delete", "data")) == 3


def test_c051_queue_store_keeps_what_it_cannot_save(plain, scene):
    """L-080, D-040: a volume whose PV cannot be saved causes an event and is never deleted.

    If the API server finds the PV invalid, only another answer of the plug-in helps, so it is
    called again with its back-off. After a server error there is no second call: see
    `test_saving.py`.
    """
    plain.script.set("provision", "data", "no-capacity")
    scene.claim("data", class_of(scene, plain))
    scene.wait_event("data", "failed to save volume")
    wait_until(lambda: len(plain.script.calls("provision", "data")) > 1, 30, "asked again")
    marker(scene, plain, f"{scene.name}-{plain.kind}")
    assert plain.script.calls("delete", "data") == []


def test_c063_a_failed_deletion_is_told_and_given_up_at_its_threshold(plain, scene):
    """With threshold 2 there are three calls; a change of the PV causes one more."""
    plain.script.set("delete", "data", "tray is stuck")
    full = class_of(scene, plain)
    claim = scene.claim("data", full)
    scene.wait_bound("data")
    scene.delete("data")

    def calls():
        return len(plain.script.calls("delete", "data"))

    wait_until(lambda: calls() == 3, 30, "three attempts")
    plain.script.set("provision", "later", "final:x", "final:x", "final:x", "ok")
    scene.claim("later", full)
    scene.wait_bound("later")
    assert calls() == 3
    name = f"pvc-{claim['metadata']['uid']}"
    assert ("VolumeFailedDelete", "tray is stuck") in volume_events(scene, name)
    plain.script.set("delete", "data", "ok")
    scene.api.patch(f"/api/v1/persistentvolumes/{name}", {"metadata": {"labels": {"a": "b"}}})
    wait_until(lambda: scene.volume(name) is None, 20, "PV is gone")


def test_c065_without_finalizer_a_deleted_volume_is_left_alone(plain, scene):
    """L-073 row 3: another program's finalizer keeps the PV, which is marked as deleted."""
    full = class_of(scene, plain)
    claim = scene.claim("data", full)
    scene.wait_bound("data")
    name = f"pvc-{claim['metadata']['uid']}"
    path = f"/api/v1/persistentvolumes/{name}"
    finalizers = [*scene.volume(name)["metadata"]["finalizers"], "example.com/hold"]
    scene.api.patch(path, {"metadata": {"finalizers": finalizers}})
    scene.api.delete(path)
    scene.delete("data")
    wait_until(lambda: scene.volume(name)["status"]["phase"] == "Released", 20, "released")
    marker(scene, plain, full)
    assert plain.script.calls("delete", "data") == []


def test_c071_a_finalizer_is_rolled_back(plain, scene):
    """L-072 last row: the other finalizers stay, in their order."""
    claim = scene.claim("data", class_of(scene, plain))
    scene.wait_bound("data")
    name = f"pvc-{claim['metadata']['uid']}"
    before = scene.volume(name)["metadata"]["finalizers"]
    added = ["example.com/one", FINALIZER_VOLUME, *before]
    path = f"/api/v1/persistentvolumes/{name}"
    scene.api.patch(path, {"metadata": {"finalizers": added}})
    kept = [one for one in added if one != FINALIZER_VOLUME]
    wait_until(lambda: scene.volume(name)["metadata"]["finalizers"] == kept, 20, "rolled back")
    scene.api.patch(path, {"metadata": {"finalizers": before}})


def test_c022_c066_with_finalizer_a_deleted_volume_is_deleted_in_the_storage(block, scene):
    claim = scene.claim("data", class_of(scene, block))
    scene.wait_bound("data")
    name = f"pvc-{claim['metadata']['uid']}"
    assert scene.volume(name)["metadata"]["finalizers"].count(FINALIZER_VOLUME) == 1
    scene.api.delete(f"/api/v1/persistentvolumes/{name}")
    scene.delete("data")
    wait_until(lambda: scene.volume(name) is None, 30, "PV is gone")
    assert len(block.script.calls("delete", "data")) == 1


def test_c076_the_guard_keeps_a_volume(guarded, scene):
    full = class_of(scene, guarded)
    claim = scene.claim("data", full, metadata={"labels": {"wanted": "yes"}})
    scene.wait_bound("data")
    name = f"pvc-{claim['metadata']['uid']}"
    path = f"/api/v1/persistentvolumes/{name}"
    scene.api.patch(path, {"metadata": {"labels": {"keep": "yes"}}})
    scene.delete("data")
    wait_until(lambda: scene.volume(name)["status"]["phase"] == "Released", 20, "released")
    marker(scene, guarded, full)
    assert guarded.script.calls("delete", "data") == []
    scene.api.patch(path, {"metadata": {"labels": {"keep": "no"}}})
    wait_until(lambda: scene.volume(name) is None, 20, "PV is gone")


def test_c077_an_ignored_volume_stays_without_event_or_retry(plain, scene):
    plain.script.set("delete", "data", "ignored")
    full = class_of(scene, plain)
    claim = scene.claim("data", full)
    scene.wait_bound("data")
    scene.delete("data")
    wait_until(lambda: plain.script.calls("delete", "data"), 20, "the plug-in is asked")
    marker(scene, plain, full)
    name = f"pvc-{claim['metadata']['uid']}"
    assert scene.volume(name)["status"]["phase"] == "Released"
    assert len(plain.script.calls("delete", "data")) == 1
    assert volume_events(scene, name) == set()


def test_pause_explain_and_status_know_a_plugin(fleet, kubeconfig, plain, scene):
    """All commands treat a plug-in like a driver, although its name has a slash."""

    def tool(*words):
        flags = [f"--kubeconfig={kubeconfig}", f"--redis-url={fleet.redis_url}"]
        done = subprocess.run(
            [*program(), words[0], *flags, *words[1:]],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(),
        )
        assert "Traceback" not in done.stderr
        return done.stdout

    assert plain.name in tool("status")
    tool("pause", f"--driver={plain.name}", "--reason=maintenance of the disks")
    try:
        scene.claim("data", class_of(scene, plain))
        wait_until(
            lambda: "maintenance of the disks" in tool("explain", "pvc", f"{scene.namespace}/data"),
            30,
            "explain tells of the pause",
        )
        assert plain.script.calls("provision", "data") == []
    finally:
        tool("resume", f"--driver={plain.name}")
    scene.wait_bound("data")
    assert "bound" in tool("explain", "pvc", f"{scene.namespace}/data").lower()
