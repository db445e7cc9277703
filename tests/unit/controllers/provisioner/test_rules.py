"""Rules of the provisioner: which keys are added when an object changes."""

from __future__ import annotations

import pytest

from tests.support.kube_objects import make_claim, make_volume
from workers.constants import FINALIZER_CLONE_SOURCE
from workers.controllers.provisioner.rules import WATCHES, ProvisionerRules
from workers.kube import paths
from workers.kube.objects import Attachment, Meta
from workers.spec import Forget

FOO = {"name": "foo", "queue_name": "foo", "controller_capabilities": ["CLONE_VOLUME"]}
RESOURCES = {watch.item_type: watch.resource for watch in WATCHES}
SOURCE = {"kind": "PersistentVolumeClaim", "name": "src"}


def texts(keys):
    return [key.text for key in keys]


def storage_class(name="class1", uid="class-uid", mode="Immediate"):
    return {"metadata": {"name": name, "uid": uid}, "volumeBindingMode": mode}


def list_classes(table, *classes):
    table.begin_list(paths.STORAGE_CLASSES)
    for one in classes:
        assert list(table.seen(paths.STORAGE_CLASSES, one, is_listed=True)) == []
    return table.end_list(paths.STORAGE_CLASSES)


def see(table, item, *, is_listed=False):
    return table.seen(RESOURCES[type(item)], item, is_listed=is_listed)


def see_class(table, *args):
    return table.seen(paths.STORAGE_CLASSES, storage_class(*args), is_listed=False)


def drop(table, item):
    return table.gone(RESOURCES[type(item)], item)


@pytest.fixture
def table():
    table = ProvisionerRules()
    table.set_drivers([FOO])
    list_classes(table, storage_class())
    return table


CLAIM = "claims|foo|default/claim1|u1"
VOLUME = "volumes|foo|pv1|"
CLONING = "cloning|foo|default/src|s1"


def test_no_claim_is_decided_before_the_classes_are_known():
    """M-017: Without the classes, late binding cannot be distinguished from immediate binding."""
    table = ProvisionerRules()
    table.set_drivers([FOO])
    assert see(table, make_claim()) == []
    late = storage_class(mode="WaitForFirstConsumer")
    assert list_classes(table, late) == []
    assert see(table, make_claim(selected_node="n1")) != []


def test_claims_held_back_come_with_the_classes():
    table = ProvisionerRules()
    table.set_drivers([FOO])
    see(table, make_claim())
    assert texts(list_classes(table)) == [CLAIM]


def test_each_event_of_an_undecided_claim_adds_it(table):
    """L-011: An update is handled at once, even during a back-off (C-043)."""
    assert texts(see(table, make_claim(version="1"))) == [CLAIM]
    assert texts(see(table, make_claim(version="2"))) == [CLAIM]


def test_c150_a_list_adds_only_what_changed(table):
    """M-017: A relist adds no key for an unchanged object."""
    see(table, make_claim(version="1"))
    table.begin_list(paths.CLAIMS)
    assert see(table, make_claim(version="1"), is_listed=True) == []
    assert texts(see(table, make_claim(version="2"), is_listed=True)) == [CLAIM]
    assert table.end_list(paths.CLAIMS) == []


def test_c150_a_list_adds_only_volumes_that_changed(table):
    see(table, make_volume(version="1"))
    table.begin_list(paths.VOLUMES)
    assert see(table, make_volume(version="1"), is_listed=True) == []
    assert texts(see(table, make_volume(version="2"), is_listed=True)) == [VOLUME]
    assert table.end_list(paths.VOLUMES) == []


def test_c150_settled_objects_leave_the_table(table):
    see(table, make_claim())
    see(table, make_volume())
    see(table, make_claim(volume_name="pv1"))
    see(table, make_volume(phase="Bound"))
    assert table.all_keys() == []
    assert table.counts() == {"claims": 0, "volumes": 0, "cloning": 0}


def test_deleted_undecided_claim_is_added_once_more(table):
    """M-012, G7: An open attempt must be finished, and only the worker knows if there is one."""
    see(table, make_claim())
    assert texts(drop(table, make_claim())) == [CLAIM]
    assert drop(table, make_claim()) == []
    assert table.all_keys() == []


def test_deleted_late_binding_claim_without_node_is_added_once_more(table):
    """The selected node may have been removed after an attempt on it began."""
    see_class(table, "late", "l", "WaitForFirstConsumer")
    assert see(table, make_claim(storage_class="late")) == []
    assert texts(drop(table, make_claim())) == [CLAIM]


def test_claim_that_vanished_between_lists_counts_as_deleted(table):
    see(table, make_claim())
    table.begin_list(paths.CLAIMS)
    assert texts(table.end_list(paths.CLAIMS)) == [CLAIM]


def test_c031_recreated_claim_is_another_key(table):
    """The claim was deleted and created again between two lists, so both keys are added."""
    see(table, make_claim(uid="u1"))
    table.begin_list(paths.CLAIMS)
    new = texts(see(table, make_claim(uid="u2"), is_listed=True))
    assert (new, texts(table.end_list(paths.CLAIMS))) == (["claims|foo|default/claim1|u2"], [CLAIM])


def test_c008_new_class_adds_the_claims_that_wait_for_it(table):
    see(table, make_claim(storage_class="later"))
    see(table, make_claim("other", uid="u2"))
    assert texts(see_class(table, "later", "c", None)) == [CLAIM]


def test_unchanged_class_adds_nothing(table):
    see(table, make_claim())
    assert see_class(table, "class1", "class-uid", "Immediate") == []


def test_c045_replaced_class_adds_its_claims(table):
    see(table, make_claim())
    assert texts(see_class(table, "class1", "another-uid", "Immediate")) == [CLAIM]


def test_new_driver_adds_only_its_own_objects():
    table = ProvisionerRules()
    list_classes(table)
    see(table, make_claim(provisioner="bar", uid="u9"))
    see(table, make_claim())
    see(table, make_volume())
    assert table.all_keys() == []
    assert texts(table.set_drivers([FOO])) == [VOLUME, CLAIM]
    assert table.set_drivers([FOO]) == []


def test_a_node_that_comes_back_has_its_keys_again():
    """The queue drops keys of a node that has been away for an hour (`sweep.lua`)."""
    table, on_node = ProvisionerRules(), {"name": "foo", "queue_name": "foo@n", "node": "n"}
    list_classes(table)
    see(table, make_claim(selected_node="n"))
    key = "claims|foo@n|default/claim1|u1"
    for _ in range(2):
        assert texts(table.set_drivers([on_node])) == [key]
        assert table.set_drivers([]) == []


def attachment(name, volume="pv1"):
    found = Attachment(metadata=Meta(name=name))
    found.spec.source.persistent_volume_name = volume
    return found


def test_c080_the_last_detachment_adds_the_volume_that_waits_for_deletion(table):
    """C-080: While one attachment is left, a deletion would only fail again."""
    see(table, make_volume())
    for name in ("a", "b"):
        see(table, attachment(name))
    assert drop(table, attachment("a")) == []
    assert texts(drop(table, attachment("b"))) == [VOLUME]
    see(table, attachment("c", "settled"))
    assert drop(table, attachment("c", "settled")) == []


def test_c080_a_detachment_missed_between_lists_adds_the_volume(table):
    """C-080: The watch was interrupted when the last attachment was deleted.

    Only the list shows it.
    """
    see(table, make_volume())
    see(table, make_volume("pv2"))
    table.begin_list(paths.ATTACHMENTS)
    for name, volume in (("a", "pv1"), ("b", "pv2")):
        see(table, attachment(name, volume), is_listed=True)
    assert table.end_list(paths.ATTACHMENTS) == []
    table.begin_list(paths.ATTACHMENTS)
    see(table, attachment("b", "pv2"), is_listed=True)
    assert texts(table.end_list(paths.ATTACHMENTS)) == [VOLUME]


def test_c080_a_list_that_broke_off_says_nothing_of_attachments(table):
    """C-080: The objects on its pages may be deleted by the time of the next list."""
    see(table, make_volume())
    see(table, attachment("a"))
    table.begin_list(paths.ATTACHMENTS)
    see(table, attachment("a"), is_listed=True)
    table.begin_list(paths.ATTACHMENTS)
    assert texts(table.end_list(paths.ATTACHMENTS)) == [VOLUME]


def test_c082_deleted_volume_is_forgotten(table):
    """C-082, L-011: The key's counters are deleted, and the key is not reconciled."""
    see(table, make_volume())
    (told,) = drop(table, make_volume())
    assert isinstance(told, Forget)
    assert told.key.text == VOLUME
    assert drop(table, make_volume()) == []


def test_volume_that_vanished_between_lists_is_forgotten(table):
    see(table, make_volume())
    table.begin_list(paths.VOLUMES)
    assert [told.key.text for told in table.end_list(paths.VOLUMES)] == [VOLUME]


def deleting_source(**fields):
    return make_claim(
        "src",
        uid="s1",
        volume_name="pv-src",
        phase="Bound",
        deletionTimestamp="t",
        finalizers=[FINALIZER_CLONE_SOURCE],
        **fields,
    )


def clone(uid, **fields):
    return make_claim(f"clone-{uid}", uid=uid, dataSource=SOURCE, **fields)


def test_c120_source_without_clones_is_added_when_deleted(table):
    assert texts(see(table, deleting_source())) == [CLONING]


def test_c123_last_clone_that_leaves_pending_adds_the_source(table):
    """CL-009: The source does not wait for its back-off of up to five minutes."""
    see(table, clone("c1"))
    see(table, clone("c2"))
    assert see(table, deleting_source()) == []
    done = {"volume_name": "pv", "phase": "Bound"}
    assert see(table, clone("c1", **done)) == []
    assert texts(see(table, clone("c2", **done))) == [CLONING]


def test_c118_deleted_clone_frees_the_source(table):
    see(table, clone("c1"))
    see(table, deleting_source())
    assert CLONING in texts(drop(table, clone("c1")))


def test_source_is_forgotten_when_it_is_gone(table):
    see(table, deleting_source())
    drop(table, deleting_source())
    assert table.all_keys() == []


def test_clone_that_vanished_between_lists_frees_the_source(table):
    see(table, clone("c1"))
    see(table, deleting_source())
    table.begin_list(paths.CLAIMS)
    assert see(table, deleting_source(), is_listed=True) == []
    assert CLONING in texts(table.end_list(paths.CLAIMS))


def test_everything_undecided_is_in_all_keys(table):
    """M-016: A resync and an empty Redis need all these keys."""
    see(table, make_claim())
    see(table, make_volume())
    see(table, deleting_source())
    assert sorted(texts(table.all_keys())) == sorted([CLAIM, VOLUME, CLONING])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param({"name": "foo", "queue_name": "foo"}, False, id="CSI provisioner"),
        pytest.param({"name": "foo", "queue_name": "foo@n", "node": "n"}, True, id="on each node"),
        pytest.param({"name": "foo", "queue_name": "foo", "add_finalizer": False}, True, id="own"),
    ],
)
def test_volumes_are_listed_again_for_drivers_whose_rules_filled_the_table_not(record, expected):
    """A volume without a driver is stored by the CSI provisioner's rules, which may not apply."""
    (watch,) = [watch for watch in WATCHES if watch.resource == paths.VOLUMES]
    assert watch.relists([], [record]) is expected
    assert watch.relists([record], [record]) is False
