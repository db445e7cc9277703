"""Snapshots with a topology are taken, stored and restored on a real API server (KEP-5943).

The CRDs of the tests lack the fields, as those of external-snapshotter v8.6 do; `fields` adds them
for one test.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.e2e.test_snapshots import CREATE, ROOT, Snapshots
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.tool import Tool
from tests.support.waiting import wait_until

ZONE = "snapshots.example.org/zone"
CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,CREATE_DELETE_SNAPSHOT,"
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"
)
CONTROLLERS = "--controllers=provisioner,snapshotter,snapshot-controller"
GATE = "--feature-gates=VolumeSnapshotTopology=true"
SELECTOR = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "matchLabelExpressions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["key", "values"],
                    "properties": {
                        "key": {"type": "string"},
                        "values": {"type": "array", "items": {"type": "string"}},
                    },
                },
            }
        },
    },
}
SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties"
FIELDS = {
    "volumesnapshotclasses": f"{SCHEMA}/allowedTopologies",
    "volumesnapshotcontents": f"{SCHEMA}/spec/properties/nodeAffinity",
}


def zones(*values):
    return [{"matchLabelExpressions": [{"key": ZONE, "values": list(values)}]}]


def change(api, plural, *operations):
    """Change a CRD by a JSON patch."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.request(
        "PATCH",
        f"{path}/{plural}.snapshot.storage.k8s.io",
        list(operations),
        content_type="application/json-patch+json",
    )


@pytest.fixture
def fields(api):
    """Add the fields to the CRDs, and remove them again."""
    for plural, path in FIELDS.items():
        change(api, plural, {"op": "add", "path": path, "value": SELECTOR})
    metadata = {"name": "probe-of-topology"}
    body = {"driver": "probe", "deletionPolicy": "Delete", "allowedTopologies": zones("z")}
    kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass"}

    def is_kept():
        made = api.create({**kind, "metadata": metadata, **body})
        api.delete(f"{ROOT}/volumesnapshotclasses/{metadata['name']}")
        return "allowedTopologies" in made

    wait_until(is_kept, 30, "the API server serves the new schema")
    yield
    for plural, path in FIELDS.items():
        change(api, plural, {"op": "remove", "path": path})


@contextmanager
def running(directory, kubeconfig, scene, *flags):
    """Yield a fleet, its driver with volumes in zone z1, and the snapshots of the scene."""
    arguments = ["--capabilities", CAPABILITIES, "--topology", f"{ZONE}=z1"]
    with (
        DirectoryDriver(arguments=arguments) as driver,
        Fleet(directory, kubeconfig, [driver], "--workers=1", CONTROLLERS, *flags) as fleet,
    ):
        snapshots = Snapshots(scene, driver)
        try:
            yield fleet, driver, snapshots
        finally:
            snapshots.clean_up()


def placed(scene, driver, name, *values):
    """Return a class of volumes in these zones, in immediate binding."""
    more = {"allowedTopologies": zones(*values)} if values else {}
    return scene.storage_class(driver.name, name, **more)


def source(name):
    return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}


def zone_of(scene, claim):
    """Return the zones of the claim's volume."""
    terms = scene.volume_of(scene.get(claim))["spec"]["nodeAffinity"]["required"]
    return [
        value
        for term in terms["nodeSelectorTerms"]
        for one in term["matchExpressions"]
        for value in one["values"]
    ]


def requested(driver, method):
    """Return the zones that each call requested; None if it requested none."""
    wanted = [one.request.get("accessibility_requirements") for one in driver.calls(method)]
    return [one and [place["segments"][ZONE] for place in one["requisite"]] for one in wanted]


@pytest.mark.usefixtures("fields")
def test_a_snapshot_is_taken_and_restored_where_it_is_allowed(tmp_path, kubeconfig, scene):
    """SNS-121, SNS-123, P-343: No node is registered, so only the snapshot names the zone."""
    with running(tmp_path, kubeconfig, scene, GATE) as (fleet, driver, snapshots):
        path = f"{ROOT}/volumesnapshotclasses/{snapshots.snapshot_class}"
        scene.api.patch(path, {"allowedTopologies": zones("z2", "z3")})
        scene.claim("data", placed(scene, driver, "both", "z1", "z2"))
        scene.wait_bound("data")
        snapshots.take("snap", "data")
        snapshots.wait_ready("snap")
        assert requested(driver, CREATE) == [["z2", "z3"]]
        stored = snapshots.content("snap")["spec"]["nodeAffinity"]
        assert stored == [*zones("z2"), *zones("z3")]

        scene.claim("any", placed(scene, driver, "any"), dataSource=source("snap"))
        scene.claim("some", placed(scene, driver, "some", "z1", "z3"), dataSource=source("snap"))
        scene.wait_bound("any", "some")
        assert zone_of(scene, "any")[0] in {"z2", "z3"}
        assert zone_of(scene, "some") == ["z3"]
        calls = len(driver.calls("CreateVolume"))
        scene.claim("none", placed(scene, driver, "none", "z1"), dataSource=source("snap"))
        scene.wait_event("none", "no compatible topology")
        assert len(driver.calls("CreateVolume")) == calls

        path = f"{ROOT}/volumesnapshotcontents/{snapshots.content('snap')['metadata']['name']}"
        scene.api.patch(path, {"spec": {"nodeAffinity": zones("z1")}})
        scene.wait_bound("none")
        assert zone_of(scene, "none") == ["z1"]
        assert "Traceback" not in fleet.log_text()


@pytest.mark.usefixtures("fields")
def test_without_the_gate_nothing_is_requested_or_stored(tmp_path, kubeconfig, scene):
    """SNS-120: The driver and the CRDs could; the recorded behaviour stays."""
    with running(tmp_path, kubeconfig, scene) as (_fleet, driver, snapshots):
        path = f"{ROOT}/volumesnapshotclasses/{snapshots.snapshot_class}"
        scene.api.patch(path, {"allowedTopologies": zones("z2")})
        scene.claim("data", placed(scene, driver, "one", "z1"))
        scene.wait_bound("data")
        snapshots.take("snap", "data")
        snapshots.wait_ready("snap")
        assert requested(driver, CREATE) == [None]
        assert "nodeAffinity" not in snapshots.content("snap")["spec"]


def test_crds_without_the_fields_are_told(tmp_path, kubeconfig, scene):
    """SNS-125: Snapshots are taken and restored as before; the log says so once, `explain` too."""
    with running(tmp_path, kubeconfig, scene, GATE) as (fleet, driver, snapshots):
        scene.claim("data", placed(scene, driver, "one", "z1"))
        scene.wait_bound("data")
        for name in ("first", "second"):
            snapshots.take(name, "data")
        snapshots.wait_ready("first", "second")
        content = snapshots.content("first")
        assert "nodeAffinity" not in content["spec"]
        tool = Tool(kubeconfig, fleet.redis_url)
        text = tool.wait_cause("content", content["metadata"]["name"], "topology-dropped")
        assert "does not have it" in text
        scene.claim("back", placed(scene, driver, "back", "z1"), dataSource=source("first"))
        scene.wait_bound("back")
        assert fleet.log_text().count("dropped the field nodeAffinity") == 1
