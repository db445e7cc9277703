"""VolumeAttributesClass: what is read, and what reaches the driver and the PV."""

from __future__ import annotations

import pytest

from tests.support.translate_objects import DRIVER, Attempt, make_claim, make_class
from workers.errors import AttemptError, State

CAPS = {"CREATE_DELETE_VOLUME", "MODIFY_VOLUME"}
CLAIM = make_claim(volumeAttributesClassName="v")


def make_vac(driver=DRIVER, **parameters):
    return {"metadata": {"name": "v"}, "driverName": driver, "parameters": parameters}


def test_t070_mutable_parameters():
    attempt = Attempt(controller=CAPS, attributes_classes={"v": make_vac(k="v1")})
    volume = attempt.provision(CLAIM, make_class())
    assert dict(attempt.sent.mutable_parameters) == {"k": "v1"}
    assert volume["spec"]["volumeAttributesClassName"] == "v"


def test_reserved_looking_keys_are_not_stripped():
    """P-160: parameters are passed unchanged."""
    key = "csi.storage.k8s.io/any"
    attempt = Attempt(controller=CAPS, attributes_classes={"v": make_vac(**{key: "x"})})
    attempt.provision(CLAIM, make_class())
    assert dict(attempt.sent.mutable_parameters) == {key: "x"}


def test_t071_gate_off():
    """The class is not even read: this test has none."""
    attempt = Attempt(attributes_gate=False)
    volume = attempt.provision(CLAIM, make_class())
    assert dict(attempt.sent.mutable_parameters) == {}
    assert "volumeAttributesClassName" not in volume["spec"]


def test_empty_name_is_none():
    volume = Attempt().provision(make_claim(volumeAttributesClassName=""), make_class())
    assert "volumeAttributesClassName" not in volume["spec"]


def test_t073_class_is_missing():
    attempt = Attempt(controller=CAPS)
    with pytest.raises(AttemptError) as caught:
        attempt.provision(CLAIM, make_class())
    assert caught.value.message == 'volumeattributesclasses.storage.k8s.io "v" not found'
    assert caught.value.state is State.NO_CHANGE
    assert attempt.request is None


def test_t074_class_of_another_driver():
    attempt = Attempt(controller=CAPS, attributes_classes={"v": make_vac("x.test")})
    with pytest.raises(AttemptError) as caught:
        attempt.provision(CLAIM, make_class())
    assert caught.value.message == (
        "VAC v referenced in PVC is for driver x.test which does not match driver name test-driver"
    )
    assert caught.value.state is State.FINISHED
    assert attempt.request is None
