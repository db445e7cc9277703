"""What a list changes in the provisioner's rules, also when the watch is interrupted."""

from __future__ import annotations

import pytest

from tests.support.kube_objects import make_claim, make_volume
from workers.constants import FINALIZER_CLONE_SOURCE
from workers.controllers.provisioner.rules import ProvisionerRules
from workers.kube import paths
from workers.kube.objects import Attachment, Meta
from workers.spec import Forget

FOO = {"name": "foo", "queue_name": "foo", "controller_capabilities": ["CLONE_VOLUME"]}
CLAIM = "claims|foo|default/claim1|u1"
VOLUME = "volumes|foo|pv1|"
CLONING = "cloning|foo|default/src|s1"
LATE = {"metadata": {"name": "late", "uid": "l"}, "volumeBindingMode": "WaitForFirstConsumer"}


def texts(told):
    return [one.key.text if isinstance(one, Forget) else one.text for one in told]


def source(*, uid="s1", finalizers=(FINALIZER_CLONE_SOURCE,), **fields):
    """Return a claim that waits until its cloning protection is removed."""
    fields = {"volume_name": "pv-src", "phase": "Bound", "deletionTimestamp": "t"} | fields
    return make_claim("src", uid=uid, finalizers=list(finalizers), **fields)


def clone(uid="c1", **fields):
    data_source = {"kind": "PersistentVolumeClaim", "name": "src"}
    return make_claim(f"clone-{uid}", uid=uid, dataSource=data_source, **fields)


def attachment(name="va", volume="pv2"):
    found = Attachment(metadata=Meta(name=name))
    found.spec.source.persistent_volume_name = volume
    return found


@pytest.fixture
def table():
    """Return rules that have listed the class `late`."""
    table = ProvisionerRules()
    table.set_drivers([FOO])
    table.begin_list(paths.STORAGE_CLASSES)
    table.seen(paths.STORAGE_CLASSES, LATE, is_listed=True)
    table.end_list(paths.STORAGE_CLASSES)
    return table


def see(table, resource, *items):
    return [key for one in items for key in texts(table.seen(resource, one, is_listed=False))]


def listed(table, resource, *items):
    return [key for one in items for key in texts(table.seen(resource, one, is_listed=True))]


OBJECTS = [
    pytest.param(paths.CLAIMS, make_claim(), [CLAIM], id="claim"),
    pytest.param(paths.CLAIMS, source(), [], id="clone source"),
    pytest.param(paths.VOLUMES, make_volume(), [VOLUME], id="volume"),
]


@pytest.mark.parametrize(("resource", "item", "told"), OBJECTS)
def test_m017_a_list_that_broke_off_says_nothing(table, resource, item, told):
    """M-017: The objects on its pages may be deleted by the time of the next list."""
    see(table, resource, item)
    table.begin_list(resource)
    listed(table, resource, item)
    table.begin_list(resource)
    assert texts(table.end_list(resource)) == told
    assert (table.all_keys(), set(table.counts().values())) == ([], {0})


@pytest.mark.parametrize(("resource", "item", "told"), OBJECTS)
def test_m017_each_list_is_counted_for_itself(table, resource, item, told):
    """M-017: Being in the previous list does not make an object part of this one."""
    table.begin_list(resource)
    listed(table, resource, item)
    assert texts(table.end_list(resource)) == []
    assert len(table.all_keys()) == 1
    table.begin_list(resource)
    assert texts(table.end_list(resource)) == told
    assert table.all_keys() == []


def test_an_event_is_no_part_of_a_list(table):
    """A list shows one point in time.

    An object that is missing is gone, even after an earlier event.
    """
    table.begin_list(paths.CLAIMS)
    see(table, paths.CLAIMS, make_claim())
    assert texts(table.end_list(paths.CLAIMS)) == [CLAIM]


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_m017_a_class_that_no_list_holds_is_forgotten(table, is_broken_off):
    """L-022 row 5: The worker gets the claims of this class and reports the missing class."""
    see(table, paths.CLAIMS, make_claim(storage_class="late"))
    if is_broken_off:
        table.begin_list(paths.STORAGE_CLASSES)
        listed(table, paths.STORAGE_CLASSES, LATE)
    assert table.all_keys() == []
    table.begin_list(paths.STORAGE_CLASSES)
    assert table.end_list(paths.STORAGE_CLASSES) == []
    assert texts(table.all_keys()) == [CLAIM]


def test_a_class_that_is_deleted_is_forgotten(table):
    """L-022 row 5: A delete event has the same effect."""
    see(table, paths.CLAIMS, make_claim(storage_class="late"))
    assert table.all_keys() == []
    assert list(table.gone(paths.STORAGE_CLASSES, LATE)) == []
    assert texts(table.all_keys()) == [CLAIM]


LISTS = {
    paths.CLAIMS: [make_claim(), make_claim("late", uid="u2", storage_class="late"), source()],
    paths.VOLUMES: [make_volume(), make_volume("pv2")],
    paths.STORAGE_CLASSES: [LATE],
    paths.ATTACHMENTS: [attachment()],
    paths.NODES: [],
}


@pytest.mark.parametrize("order", [[*LISTS], [*LISTS][::-1]], ids=["forwards", "backwards"])
def test_lists_of_several_resources_run_side_by_side(table, order):
    """Each resource is listed in its own thread, and the lists must not disturb each other."""
    for resource, items in LISTS.items():
        see(table, resource, *items)
    known = sorted(texts(table.all_keys()))
    assert known == sorted([CLAIM, VOLUME, "volumes|foo|pv2|", CLONING])
    for resource in order:
        table.begin_list(resource)
        assert listed(table, resource, *LISTS[resource]) == []
    assert [texts(table.end_list(resource)) for resource in order] == [[]] * len(order)
    assert sorted(texts(table.all_keys())) == known


def test_a_deleted_claim_of_a_driver_that_nobody_serves_is_no_work(table):
    """M-012: Only a driver's worker could have begun an attempt."""
    claim = make_claim(provisioner="bar")
    assert see(table, paths.CLAIMS, claim) == []
    assert table.gone(paths.CLAIMS, claim) == []
    assert table.counts()["claims"] == 0


BY_HAND = clone(volume_name="pv")


def test_cl006_a_clone_bound_by_hand_holds_its_source_while_it_is_pending(table):
    """CL-006: Such a clone has nothing to provision, and is still in each list."""
    see(table, paths.CLAIMS, BY_HAND, source())
    table.begin_list(paths.CLAIMS)
    assert listed(table, paths.CLAIMS, BY_HAND, source()) == []
    assert table.end_list(paths.CLAIMS) == []
    assert table.all_keys() == []


def test_cl009_such_a_clone_that_vanished_frees_its_source(table):
    """CL-009: The watcher may miss the clone's delete event, as of any other object."""
    see(table, paths.CLAIMS, BY_HAND, source())
    table.begin_list(paths.CLAIMS)
    assert listed(table, paths.CLAIMS, source()) == []
    assert texts(table.end_list(paths.CLAIMS)) == [CLONING]


def test_a_source_whose_protection_ended_is_forgotten(table):
    """CL-005: Other controllers' finalizers may keep the object for a while."""
    assert see(table, paths.CLAIMS, source()) == [CLONING]
    assert see(table, paths.CLAIMS, source(finalizers=["other"])) == []
    assert (table.all_keys(), table.counts()["cloning"]) == ([], 0)


def test_c150_a_list_adds_only_sources_that_are_new(table):
    """M-017: A source created again under the same name counts as new."""
    assert see(table, paths.CLAIMS, source()) == [CLONING]
    table.begin_list(paths.CLAIMS)
    assert listed(table, paths.CLAIMS, source()) == []
    assert listed(table, paths.CLAIMS, source(uid="s2")) == ["cloning|foo|default/src|s2"]
    assert table.end_list(paths.CLAIMS) == []


@pytest.mark.parametrize("own", ["a", "b"])
def test_cl005_a_source_is_its_own_drivers_work_first(table, own):
    """CL-005: Its own driver is preferred to another driver that can clone."""
    cloning = [FOO | {"name": name, "queue_name": name} for name in ("a", "b")]
    table.set_drivers(cloning)
    assert see(table, paths.CLAIMS, source(provisioner=own)) == [f"cloning|{own}|default/src|s1"]


def test_cl005_a_source_that_nobody_provisioned_is_anybodys_work(table):
    """CL-005: A claim bound by hand has no annotation, so any driver that can clone may do it."""
    item = source(provisioner=None)
    item.metadata.annotations = None
    assert see(table, paths.CLAIMS, item) == [CLONING]
