"""Cloning a claim: every row of P-220."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.translate_objects import DRIVER, make_claim
from workers.errors import State
from workers.translate import clones
from workers.translate.sources import ContentSource, DataSource, SourceError

FINALIZER = "provisioner.storage.kubernetes.io/cloning-protection"
SOURCE = DataSource("PersistentVolumeClaim", "src", "", "fake-ns", "fake-ns", "fake-pvc")
WRAPPED = "error getting handle for DataSource Type PersistentVolumeClaim by Name src: "
INVALID = "claim in dataSource not bound or invalid"
MODES = (
    "the source PVC and destination PVCs must have the same volume mode for cloning.  Source is "
)


def make_source(metadata=None, phase="Bound", **spec: Any):
    found = {
        "storageClassName": "other-sc",
        "volumeName": "v",
        "resources": {"requests": {"storage": "1000"}},
    }
    return {
        "metadata": {"namespace": "fake-ns", "name": "src", "uid": "su"} | (metadata or {}),
        "spec": found | spec,
        "status": {"phase": phase},
    }


def make_volume(ref=None, phase="Bound", csi=None, **spec: Any):
    bound_to = {"namespace": "fake-ns", "name": "src", "uid": "su"} | (ref or {})
    source = {"driver": DRIVER, "volumeHandle": "handle"} | (csi or {})
    return {
        "metadata": {"name": "v"},
        "spec": {"claimRef": bound_to, "csi": source} | spec,
        "status": {"phase": phase},
    }


def clone(source_claim=None, volume=None, claim=None):
    source_claim = source_claim or make_source()
    claim = claim or make_claim(request="1000")
    assert clones.source_volume_name(SOURCE, source_claim, claim) == "v"
    return clones.content_source(
        SOURCE,
        source_claim=source_claim,
        source_volume=volume or make_volume(),
        claim=claim,
        driver_name=DRIVER,
    )


def failure(*args, **kwargs):
    with pytest.raises(SourceError) as caught:
        clone(*args, **kwargs)
    assert caught.value.state is State.NO_CHANGE
    assert caught.value.message.startswith(WRAPPED)
    return caught.value


def refused(*args, **kwargs):
    return failure(*args, **kwargs).message.removeprefix(WRAPPED)


def test_t100_bound_source():
    assert clone() == ContentSource(volume_id="handle")
    assert clones.needs_finalizer(make_source())


def test_t101_other_class_of_the_same_driver():
    assert make_source()["spec"]["storageClassName"] != make_claim()["spec"]["storageClassName"]
    assert clone().volume_id == "handle"


def test_t102_smaller_claim():
    assert refused(claim=make_claim(request="999")) == (
        "error, new PVC request must be greater than or equal in size to the specified PVC data "
        "source, requested 999 but source is 1000"
    )


def test_t102_larger_claim():
    assert clone(claim=make_claim(request="2000")).volume_id == "handle"


def test_t103_source_is_absent():
    assert clones.not_found(SOURCE).message == (
        f'{WRAPPED}error getting PVC src (namespace "fake-ns") from api server: '
        'persistentvolumeclaim "src" not found'
    )


def test_error_names_the_namespace_that_was_searched():
    """D-034: csi-provisioner prints the new claim's namespace instead."""
    source = DataSource("PersistentVolumeClaim", "src", "", "ns2", "fake-ns", "fake-pvc")
    assert '(namespace "ns2")' in clones.read_failed(source, "boom").message


@pytest.mark.parametrize(
    ("source_claim", "claim", "message"),
    [
        pytest.param(
            make_source(storageClassName=None),
            None,
            "the source PVC (src) storageclass cannot be empty",
            id="T-103 source without class",
        ),
        pytest.param(
            None,
            make_claim(request="1000", storageClassName=None),
            "the requested PVC (fake-pvc) storageclass cannot be empty",
            id="T-103 claim without class",
        ),
        pytest.param(
            make_source({"deletionTimestamp": "t"}),
            None,
            "the PVC DataSource src is currently being deleted",
            id="P-220 source under deletion",
        ),
        pytest.param(
            make_source(volumeName=""),
            None,
            "volume name is empty in source PVC src",
            id="P-220 source without volume",
        ),
    ],
)
def test_unusable_source(source_claim, claim, message):
    assert refused(source_claim, claim=claim) == message


def test_empty_class_is_a_class():
    """Rows 4 and 5 apply only to a missing class name."""
    assert clone(make_source(storageClassName="")).volume_id == "handle"


@pytest.mark.parametrize(
    "phase", [pytest.param("Pending", id="T-104 Pending"), pytest.param("Lost", id="T-104 Lost")]
)
def test_source_is_not_bound(phase):
    assert refused(make_source(phase=phase)) == (
        f"the PVC DataSource src must have a status of Bound.  Got {phase}"
    )


def test_t105_volume_is_absent():
    error = clones.volume_read_failed(SOURCE, 'persistentvolumes "v" not found')
    assert error.message == WRAPPED + INVALID
    assert error.detail == 'persistentvolumes "v" not found'


@pytest.mark.parametrize(
    ("volume", "detail"),
    [
        pytest.param(make_volume(phase="Released"), "in phase Released", id="T-105 Released"),
        pytest.param(make_volume(phase="Failed"), "in phase Failed", id="T-105 Failed"),
        pytest.param(make_volume(phase="Pending"), "in phase Pending", id="T-105 Pending"),
        pytest.param(make_volume(phase="Available"), "in phase Available", id="T-105 Available"),
        pytest.param(make_volume(claimRef=None), "no claimRef", id="T-106 no claimRef"),
        pytest.param(make_volume({"uid": "x"}), "uid x, not su", id="T-106 uid"),
        pytest.param(make_volume({"namespace": "x"}), "namespace x", id="T-106 namespace"),
        pytest.param(make_volume({"name": "x"}), "name x, not src", id="T-106 name"),
        pytest.param(make_volume(csi={"driver": "x"}), "driver x", id="T-106 other driver"),
        pytest.param(
            make_volume() | {"spec": {"nfs": {}}}, "no CSI source", id="P-220 no csi source"
        ),
    ],
)
def test_volume_is_not_the_sources(volume, detail):
    """Users see the one text recorded from csi-provisioner; the log has the detail (D-034)."""
    error = failure(volume=volume)
    assert error.message == WRAPPED + INVALID
    assert detail in error.detail


@pytest.mark.parametrize(
    ("source_mode", "mode"),
    [
        pytest.param("Block", "Block", id="T-107 block to block"),
        pytest.param("Filesystem", "Filesystem", id="T-107 fs to fs"),
        pytest.param(None, None, id="T-107 nil to nil"),
        pytest.param(None, "Filesystem", id="T-107 nil to fs"),
        pytest.param("Filesystem", None, id="T-107 fs to nil"),
    ],
)
def test_equal_modes(source_mode, mode):
    volume = make_volume(volumeMode=source_mode)
    assert clone(volume=volume, claim=make_claim(request="1000", volumeMode=mode)).volume_id


@pytest.mark.parametrize(
    ("source_mode", "mode", "message"),
    [
        pytest.param(
            "Filesystem", "Block", "Filesystem, but new PVC requested Block", id="T-107 fs to block"
        ),
        pytest.param(
            None, "Block", "Filesystem, but new PVC requested Block", id="T-107 nil to block"
        ),
        pytest.param(
            "Block", "Filesystem", "Block, but new PVC requested Filesystem", id="T-107 block to fs"
        ),
        pytest.param(
            "Block", None, "Block, but new PVC requested Filesystem", id="T-107 block to nil"
        ),
    ],
)
def test_different_modes(source_mode, mode, message):
    volume = make_volume(volumeMode=source_mode)
    claim = make_claim(request="1000", volumeMode=mode)
    assert refused(volume=volume, claim=claim) == MODES + message


def test_t110_finalizer_is_there_already():
    assert not clones.needs_finalizer(make_source({"finalizers": ["x", FINALIZER]}))
