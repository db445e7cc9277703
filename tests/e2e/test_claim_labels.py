"""The selected labels and annotations of a claim reach its driver and its PV."""

from __future__ import annotations

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.shipped_fleet import ShippedFleet
from tests.support.waiting import wait_until

FLAGS = (
    "--claim-labels-to-pv=example.org/team,tier",
    "--claim-labels-to-driver=tier",
    "--claim-annotations-to-driver=example.org/backup",
    "--timeout=3s",
)
TEAM, TIER = "example.org/team", "tier"
PREFIX = "csi.storage.k8s.io/pvc"
RECORD = "csi-fleet.io/claim-labels"


@pytest.fixture(scope="module")
def fleet(control_plane, tmp_path_factory, drivers, redis_binary):
    """Run workers with the accounts and Redis users of k8s/."""
    folder = tmp_path_factory.mktemp("labels")
    with ShippedFleet(folder, control_plane, redis_binary, drivers, *FLAGS) as fleet:
        yield fleet


@pytest.fixture
def own_driver():
    """A driver that no other program serves."""
    with DirectoryDriver() as driver:
        yield driver


def relabel(scene, name, **labels):
    scene.api.patch(f"{scene.claims_path}/{name}", {"metadata": {"labels": labels}})


def labels_of(scene, name):
    claim = scene.get(name)
    return scene.volume_of(claim)["metadata"].get("labels", {})


def claim(scene, name, class_name, labels, **annotations):
    metadata = {"labels": labels, "annotations": annotations}
    return scene.claim(name, class_name, metadata=metadata)


def sent(driver, claim):
    """Return the parameters of each CreateVolume call for the claim."""
    name = f"pvc-{claim['metadata']['uid']}"
    calls = [one for one in driver.calls("CreateVolume") if one.request["name"] == name]
    return [one.request.get("parameters", {}) for one in calls]


def test_a_volume_has_the_labels_and_follows_their_changes(fleet, driver, scene):
    class_name = scene.storage_class(driver.name)
    claim(scene, "data", class_name, {TEAM: "red", TIER: "1", "other": "x"})
    scene.wait_bound("data")
    assert labels_of(scene, "data") == {TEAM: "red", TIER: "1"}

    volume = scene.volume_of(scene.get("data"))["metadata"]
    assert volume["annotations"][RECORD] == f"{TEAM},{TIER}"
    path = f"/api/v1/persistentvolumes/{volume['name']}"
    scene.api.patch(path, {"metadata": {"labels": {"owner": "somebody"}}})
    others = {"owner": "somebody"}
    for change, expected in (
        ({TEAM: "blue"}, {TEAM: "blue", TIER: "1", **others}),
        ({TIER: None, "other": None}, {TEAM: "blue", **others}),
        ({TEAM: None}, others),
        ({TIER: "2"}, {TIER: "2", **others}),
    ):
        relabel(scene, "data", **change)
        wait_until(lambda e=expected: labels_of(scene, "data") == e, 20, f"the PV has {expected}")
    # Another client's change of such a label is reverted.
    scene.api.patch(path, {"metadata": {"labels": {TIER: "9"}}})
    wait_until(lambda: labels_of(scene, "data")[TIER] == "2", 20, "the claim's label is back")


def test_the_driver_gets_the_same_metadata_when_a_call_is_repeated(fleet, driver, scene):
    """The example driver answers ALREADY_EXISTS to a different request with the same name."""
    driver.set_rules({"method": "CreateVolume", "hang": True, "times": 1})
    class_name = scene.storage_class(driver.name, parameters={"kind": "ssd"})
    made = claim(
        scene, "data", class_name, {TIER: "1", TEAM: "red"}, **{"example.org/backup": "daily"}
    )
    wait_until(lambda: sent(driver, made), 20, "the first call")
    relabel(scene, "data", **{TIER: "2", TEAM: "blue"})
    scene.annotate("data", **{"example.org/backup": "never"})
    scene.wait_bound("data")
    parameters = {
        "kind": "ssd",
        f"{PREFIX}/label/tier": "1",
        f"{PREFIX}/annotation/example.org/backup": "daily",
    }
    assert sent(driver, made) == [parameters] * 2
    wait_until(
        lambda: labels_of(scene, "data") == {TIER: "2", TEAM: "blue"}, 20, "the PV has the new ones"
    )


def test_too_long_an_annotation_is_told_and_the_claim_is_bound_once_it_is_short(
    fleet, driver, scene
):
    class_name = scene.storage_class(driver.name)
    made = claim(scene, "data", class_name, {}, **{"example.org/backup": "x" * 5000})
    event = scene.wait_event("data", "at most 4096 are allowed")
    assert event["reason"] == "ProvisioningFailed"
    assert sent(driver, made) == []
    scene.annotate("data", **{"example.org/backup": "x" * 4000})
    scene.wait_bound("data")


def test_a_class_cannot_pose_as_the_claim(fleet, driver, scene):
    class_name = scene.storage_class(driver.name, parameters={f"{PREFIX}/label/tier": "1"})
    made = claim(scene, "data", class_name, {TIER: "2"})
    event = scene.wait_event("data", f'unknown parameter key "{PREFIX}/label/tier"')
    assert event["reason"] == "ProvisioningFailed"
    assert sent(driver, made) == []


def test_a_change_while_nothing_runs_is_found_at_the_next_start(
    tmp_path, kubeconfig, own_driver, scene
):
    """The program is stopped, then started with one more key."""
    class_name = scene.storage_class(own_driver.name)
    claim(scene, "data", class_name, {TEAM: "red", TIER: "1"})
    with Fleet(tmp_path / "first", kubeconfig, [own_driver], f"--claim-labels-to-pv={TEAM}"):
        scene.wait_bound("data")
        assert labels_of(scene, "data") == {TEAM: "red"}
    relabel(scene, "data", **{TEAM: "blue"})
    keys = f"--claim-labels-to-pv={TEAM},{TIER}"
    with Fleet(tmp_path / "second", kubeconfig, [own_driver], keys):
        wait_until(lambda: labels_of(scene, "data") == {TEAM: "blue", TIER: "1"}, 30, "it follows")
