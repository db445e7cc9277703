"""A driver that answers every field of every call at its worst: other drivers notice nothing.

The answers are made from the definition of CSI (tests/support/hostile_answers.py).
"""

from __future__ import annotations

from base64 import b64encode

import pytest

from csi_client import messages as csi
from tests.support import hostile_answers
from tests.support.waiting import wait_until

GIB = 2**30
OTHERS = 20
# The example driver reads all rules at each call, so that they have to be small.
WORST = {"many": 300, "huge": "x" * 5000}
# Those of the calls that the drivers' workers make while claims come and go.
CALLS = {
    "ControllerGetCapabilities": csi.ControllerGetCapabilitiesResponse,
    "GetPluginCapabilities": csi.GetPluginCapabilitiesResponse,
    "GetPluginInfo": csi.GetPluginInfoResponse,
    "Probe": csi.ProbeResponse,
    "GetCapacity": csi.GetCapacityResponse,
    "ListVolumes": csi.ListVolumesResponse,
}


def encoded(message):
    return b64encode(message.SerializeToString()).decode()


def created(foreign):
    """CreateVolume's answers: each field at its worst, also with another driver's volume."""
    good = csi.CreateVolumeResponse(
        volume=csi.Volume(
            volume_id="v",
            capacity_bytes=GIB,
            volume_context={"key": "value"},
            accessible_topology=[csi.Topology(segments={"zone": "z1"})],
            content_source=csi.VolumeContentSource(
                volume=csi.VolumeContentSource.VolumeSource(volume_id="v")
            ),
        )
    )
    return dict(hostile_answers.worst(good, foreign=foreign, **WORST))


def is_open(claim):
    return claim["status"].get("phase") != "Bound"


def bind(scene, storage_class, name):
    """Claims of the other driver; waits until all are bound."""
    names = [f"{name}-{number}" for number in range(OTHERS)]
    for one in names:
        scene.claim(one, storage_class)
    scene.wait_bound(*names, timeout_seconds=120)


@pytest.fixture
def other(drivers):
    return drivers[1]


def test_nothing_outside_its_own_objects_and_others_are_served(fleet, driver, other, scene):
    honest = scene.storage_class(other.name)
    bind(scene, honest, "alone")
    foreign = next(iter(other.volumes()))
    answers = created(foreign)
    rules = [
        {
            "method": "CreateVolume", "match": f"case={number}", "skip_work": True,
            "answer_base64": encoded(answer),
        }
        for number, answer in enumerate(answers.values())
    ]  # fmt: skip
    rules += [
        {"method": name, "times": 1, "answer_base64": encoded(answer)}
        for name, kind in CALLS.items()
        for _, answer in hostile_answers.worst(
            hostile_answers.filled(kind), foreign=foreign, **WORST
        )
    ]
    rules.append({"method": "DeleteVolume", "match": "v*", "delay_seconds": 2, "gives_up": True})
    before = {one["metadata"]["name"]: one for one in scene.volumes()}
    driver.set_rules(*rules)
    for number in range(len(answers)):
        full = scene.storage_class(driver.name, f"case-{number}", parameters={"case": str(number)})
        scene.claim(f"hostile-{number}", full)
    wait_until(lambda: len(driver.calls("CreateVolume")) > len(answers) / 2, 60, "it is asked")
    bind(scene, honest, "beside")
    names = {claim["metadata"]["name"] for claim in scene.claims().values() if is_open(claim)}
    assert {one.partition("-")[0] for one in names} == {"hostile"}, "its claims still wait"
    assert {foreign} <= set(other.volumes()), "it is there still"
    after = {one["metadata"]["name"]: one for one in scene.volumes()}
    for name, volume in before.items():
        assert after[name]["metadata"]["resourceVersion"] == volume["metadata"]["resourceVersion"]
    own = {driver.name, other.name}
    assert {one["spec"]["csi"]["driver"] for one in after.values()} <= own
    strange = {"v", foreign, *hostile_answers.WORDS.values()}
    told = {one for call in other.calls("DeleteVolume") for one in call.volumes}
    assert not told & strange
    driver.set_rules()
    assert "Traceback" not in fleet.log_text()
    assert "starting it again" not in fleet.log_text()
    for name in list(scene.claims()):
        if name.startswith("hostile"):
            scene.delete(name)
    scene.claim("after", scene.storage_class(driver.name, "good"))
    scene.wait_bound("after", timeout_seconds=90)
