"""One DeleteVolume call: its announcement, its timeout, and with or without a secret (P-501)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.fake_cluster import DRIVER
from workers.constants import FINALIZER_VOLUME
from workers.engine.outcome import Action
from workers.engine.steps import Step
from workers.errors import LeaseLost

NAME = "pv1"
SECRET = "volume.kubernetes.io/provisioner-deletion-secret"


def add_volume(world, *, secret="", **spec):
    """Add a released PV of this driver; `secret=None` leaves out the annotation that names one."""
    annotations = {"pv.kubernetes.io/provisioned-by": DRIVER}
    if secret is not None:
        annotations |= {f"{SECRET}-name": secret, f"{SECRET}-namespace": secret}
    return world.kube.add(
        "persistentvolumes",
        {
            "metadata": {
                "name": NAME, "annotations": annotations, "finalizers": [FINALIZER_VOLUME]
            },
            "spec": {
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": DRIVER, "volumeHandle": "h1"},
                **spec,
            },
            "status": {"phase": "Released"},
        },
    )  # fmt: skip


def test_every_effect_of_a_deletion_is_announced(world):
    """I-7: The crash tests stop before each announced step."""
    add_volume(world)
    reached = []
    world.runtime.effects.steps = SimpleNamespace(reach=lambda step, _lease: reached.append(step))
    assert world.volume_pass(NAME).action is Action.DONE
    assert reached == [Step.DELETE_VOLUME, Step.DELETE_OBJECT, Step.RELEASE_OBJECT]


def test_g9_without_the_lease_the_driver_is_not_asked(world):
    add_volume(world)

    def reach(step, _lease):
        if step is Step.DELETE_VOLUME:
            raise LeaseLost("lost")

    world.runtime.effects.steps = SimpleNamespace(reach=reach)
    with pytest.raises(LeaseLost):
        world.volume_pass(NAME)
    assert (world.client.deleted, set(world.volumes())) == ([], {NAME})


@pytest.mark.parametrize(
    ("class_name", "seconds"),
    [
        pytest.param("fast", 33.0, id="the class's"),
        pytest.param("other", 22.0, id="the driver's, another class"),
        pytest.param(None, 22.0, id="the driver's, no class"),
    ],
)
def test_a_deletion_may_take_as_long_as_driver_and_class_say(world, class_name, seconds):
    add_volume(world, **({"storageClassName": class_name} if class_name else {}))
    world.driver = replace(
        world.driver,
        timeouts={"create": 1.0, "delete": 22.0},
        class_timeouts={"fast": {"create": 2.0, "delete": 33.0}},
    )
    given = []
    world.client.delete_volume = lambda *_, timeout_seconds: given.append(timeout_seconds)
    world.volume_pass(NAME)
    assert given == [seconds]


@pytest.mark.parametrize("class_name", ["gone", None], ids=["P-512 class is gone", "no class"])
def test_a_secret_that_nobody_knows_does_not_hold_the_deletion_up(world, class_name):
    """P-511: The driver itself reports if it cannot delete without a secret."""
    add_volume(world, secret=None, **({"storageClassName": class_name} if class_name else {}))
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.client.deleted == [("h1", {})]
