"""A driver answers every field of every call with hostile values; other drivers are unaffected.

The answers are generated from the definition of CSI (tests/support/hostile_answers.py).
"""

from __future__ import annotations

import pytest

from tests.support import hostile_answers
from tests.support.waiting import wait_until

OTHERS = 20


def is_open(claim):
    return claim["status"].get("phase") != "Bound"


def bind(scene, storage_class, name):
    """Create claims of the other driver and wait until all are bound."""
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
    cases, rules = hostile_answers.rules(foreign)
    rules.append({"method": "DeleteVolume", "match": "v*", "delay_seconds": 2, "gives_up": True})
    before = {one["metadata"]["name"]: one for one in scene.volumes()}
    driver.set_rules(*rules)
    for number in range(cases):
        full = scene.storage_class(driver.name, f"case-{number}", parameters={"case": str(number)})
        scene.claim(f"hostile-{number}", full)
    wait_until(lambda: len(driver.calls("CreateVolume")) > cases / 2, 60, "it is asked")
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
    assert "restarting it" not in fleet.log_text()
    for name in list(scene.claims()):
        if name.startswith("hostile"):
            scene.delete(name)
    scene.claim("after", scene.storage_class(driver.name, "good"))
    scene.wait_bound("after", timeout_seconds=90)
