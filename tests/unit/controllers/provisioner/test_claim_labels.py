"""A PV gets the selected labels of its claim, and the driver gets the selected metadata."""

from __future__ import annotations

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER, World
from tests.support.kube_objects import make_claim, make_volume
from workers.config.settings import ProvisionSettings, Settings
from workers.controllers.provisioner.rules import WATCHES, ProvisionerRules
from workers.engine.outcome import Action
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError

RECORD = "csi-fleet.io/claim-labels"
KEYS = ("team", "tier")


def a_world(labels, **flags):
    flags = {"claim_labels_to_pv": KEYS, **flags}
    world = World(Settings(provision=ProvisionSettings(**flags)))
    world.add_class()
    world.add_claim()
    world.live_claim()["metadata"]["labels"] = labels
    return world


def bound(labels, **flags):
    """Return a world whose claim is provisioned and bound."""
    world = a_world(labels, **flags)
    world.claim_pass(world.live_claim())
    world.live_claim()["spec"]["volumeName"] = "pvc-u1"
    world.kube.writes.clear()
    return world


def volume_labels(world):
    return world.volumes()["pvc-u1"]["metadata"].get("labels")


def relabel(world, labels):
    world.live_claim()["metadata"]["labels"] = labels
    return world.claim_pass(world.live_claim())


def test_a_new_volume_has_the_labels_and_a_record_of_them():
    world = a_world({"team": "red", "other": "x"})
    world.claim_pass(world.live_claim())
    metadata = world.volumes()["pvc-u1"]["metadata"]
    assert metadata["labels"] == {"team": "red"}
    assert metadata["annotations"][RECORD] == "team"


def test_without_the_flag_a_volume_has_no_labels_and_none_are_changed():
    world = bound({"team": "red"}, claim_labels_to_pv=())
    assert volume_labels(world) is None
    relabel(world, {"team": "blue"})
    assert (volume_labels(world), world.kube.writes) == (None, [])


def test_the_volume_follows_the_claim_through_many_changes():
    world = bound({"team": "red", "tier": "1"})
    world.volumes()["pvc-u1"]["metadata"]["labels"]["owner"] = "somebody"
    for labels in ({"team": "blue", "tier": "1"}, {"tier": "2"}, {}, {"team": "red", "x": "y"}):
        assert relabel(world, labels).action is Action.DONE
        followed = {key: value for key, value in labels.items() if key in KEYS}
        assert volume_labels(world) == followed | {"owner": "somebody"}
    assert len(world.kube.writes) == 4


def test_equal_labels_are_not_written():
    world = bound({"team": "red"})
    relabel(world, {"team": "red", "other": "changed"})
    assert world.kube.writes == []


@pytest.mark.parametrize(
    ("metadata", "spec"),
    [
        pytest.param({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, id="being deleted"),
        pytest.param({}, {"claimRef": {"uid": "u2"}}, id="of another claim"),
        pytest.param(
            {"annotations": {}}, {"csi": {"driver": "x", "volumeHandle": "h"}}, id="other driver"
        ),
    ],
)
def test_a_volume_that_is_not_the_claims_own_stays_as_it_is(metadata, spec):
    world = bound({"team": "red"})
    volume = world.volumes()["pvc-u1"]
    volume["metadata"].update(metadata)
    volume["spec"].update(spec)
    assert relabel(world, {"team": "blue"}).action is Action.DONE
    assert (volume_labels(world), world.kube.writes) == ({"team": "red"}, [])


def test_a_volume_with_another_name_follows_too():
    """Such a volume was created before --volume-name-prefix was changed."""
    world = bound({"team": "red"})
    volume = world.kube.objects.pop(("persistentvolumes", "", "pvc-u1"))
    volume["metadata"]["name"] = "old-u1"
    world.kube.add("persistentvolumes", volume)
    world.live_claim()["spec"]["volumeName"] = "old-u1"
    relabel(world, {"team": "blue"})
    assert world.volumes()["old-u1"]["metadata"]["labels"] == {"team": "blue"}


def test_a_volume_that_goes_in_between_is_nobodys_error():
    world = bound({"team": "red"})
    world.kube.fail["merge"] = [NotFoundError(404, "NotFound", "gone")]
    assert relabel(world, {"team": "blue"}).action is Action.DONE


def test_a_refused_patch_is_raised_and_the_next_pass_makes_it():
    world = bound({"team": "red"})
    world.kube.fail["merge"] = [ForbiddenError(403, "Forbidden", "denied by a policy")]
    with pytest.raises(ForbiddenError):
        relabel(world, {"team": "blue"})
    relabel(world, {"team": "blue"})
    assert volume_labels(world) == {"team": "blue"}


def test_a_refused_patch_does_not_keep_the_record_of_an_attempt():
    """Somebody saved the PV while the outcome of the call was unknown."""
    world = a_world({"team": "red"})
    world.client.answers = [CsiError(errors.DEADLINE_EXCEEDED, "late")]
    world.claim_pass(world.live_claim())
    reference = {"namespace": "default", "name": "data", "uid": "u1"}
    source = {"driver": DRIVER, "volumeHandle": "h"}
    world.kube.add(
        "persistentvolumes",
        {"metadata": {"name": "pvc-u1"}, "spec": {"csi": source, "claimRef": reference}},
    )
    world.live_claim()["spec"]["volumeName"] = "pvc-u1"
    world.kube.fail["merge"] = [ForbiddenError(403, "Forbidden", "denied by a policy")]
    assert relabel(world, {"team": "blue"}).action is Action.DONE
    assert (world.intents.intents, world.kube.kind("configmaps")) == ({}, {})
    relabel(world, {"team": "blue"})
    assert volume_labels(world) == {"team": "blue"}


def test_the_driver_is_sent_the_chosen_metadata_and_a_repeat_the_same():
    flags = {"claim_labels_to_driver": ("team",), "claim_annotations_to_driver": ("backup",)}
    world = a_world({"team": "red", "other": "x"}, **flags)
    world.live_claim()["metadata"]["annotations"]["backup"] = "daily"
    world.client.answers = [CsiError(errors.DEADLINE_EXCEEDED, "late")]
    world.claim_pass(world.live_claim())
    world.live_claim()["metadata"]["annotations"]["backup"] = "never"
    relabel(world, {"team": "blue"})
    sent = [dict(one.parameters) for one in world.client.created]
    assert (
        sent
        == [
            {
                "csi.storage.k8s.io/pvc/label/team": "red",
                "csi.storage.k8s.io/pvc/annotation/backup": "daily",
            }
        ]
        * 2
    )
    assert volume_labels(world) == {"team": "blue"}  # the PV has the claim's present labels


def test_too_much_metadata_is_told_and_nothing_is_sent():
    world = a_world({}, claim_annotations_to_driver=("note",))
    world.live_claim()["metadata"]["annotations"]["note"] = "x" * 5000
    assert world.claim_pass(world.live_claim()).action is Action.RETRY
    assert "Shorten the values of pvc/annotation/note" in world.events.warnings()[0]
    assert (world.client.created, world.intents.intents) == ([], {})


def test_a_class_cannot_pose_as_the_claim():
    world = a_world({"team": "red"}, claim_labels_to_driver=("team",))
    world.add_class(parameters={"csi.storage.k8s.io/pvc/label/team": "blue"})
    assert world.claim_pass(world.live_claim()).action is Action.RETRY
    assert "unknown parameter key" in world.events.warnings()[0]
    assert world.client.created == []


# The keys that the watcher derives from events.

PLAIN = {"name": "foo", "queue_name": "foo"}
FOO = {**PLAIN, "rules": {"claim_labels_to_pv": list(KEYS)}}
CLAIM = "claims|foo|default/claim1|u1"
RESOURCES = {watch.item_type: watch.resource for watch in WATCHES}


@pytest.fixture
def rules():
    rules = ProvisionerRules()
    rules.set_drivers([FOO])
    rules.begin_list(paths.STORAGE_CLASSES)
    rules.end_list(paths.STORAGE_CLASSES)
    return rules


def claim(labels, **fields):
    return make_claim(volume_name="pv1", phase="Bound", labels=labels, **fields)


def volume(labels, record=None, **fields):
    fields = {"claimRef": {"namespace": "default", "name": "claim1", "uid": "u1"}, **fields}
    made = make_volume(phase="Bound", csi_driver="foo", **fields)
    made.metadata.labels = labels
    if record:
        made.metadata.annotations[RECORD] = record
    return made


def see(rules, *items, is_listed=False):
    keys = [key for one in items for key in rules.seen(RESOURCES[type(one)], one,
                                                       is_listed=is_listed)]  # fmt: skip
    return [key.text for key in keys]


SAME = (claim({"team": "red"}), volume({"team": "red"}, "team"))


@pytest.mark.parametrize("is_listed", [False, True], ids=["event", "list"])
@pytest.mark.parametrize("is_reversed", [False, True], ids=["claim first", "volume first"])
@pytest.mark.parametrize(
    ("claims", "volumes", "record", "keys"),
    [
        ({"team": "red"}, {"team": "red"}, "team", []),
        ({"team": "red", "x": "1"}, {"team": "red", "y": "2"}, "team", []),
        ({"team": "red"}, {"team": "blue"}, "team", [CLAIM]),
        ({"team": "red"}, {}, None, [CLAIM]),
        ({}, {"team": "red"}, "team", [CLAIM]),
        ({}, {"team": "red"}, None, []),
        (None, None, None, []),
    ],
)
def test_a_claim_gets_a_key_once_it_and_its_volume_differ(
    rules, claims, volumes, record, keys, is_reversed, is_listed
):
    items = [claim(claims), volume(volumes, record)]
    assert see(rules, *(items[::-1] if is_reversed else items), is_listed=is_listed) == keys
    assert [key.text for key in rules.all_keys()] == keys


def test_a_change_of_either_makes_a_key_until_they_agree(rules):
    assert see(rules, *SAME) == []
    assert see(rules, claim({"team": "blue"}, version="2")) == [CLAIM]
    assert see(rules, volume({"team": "blue"}, "team", version="2")) == []
    assert see(rules, volume({}, "team", version="3")) == [CLAIM]
    assert see(rules, claim({}, version="3")) == [CLAIM]  # the annotation still has to be removed
    assert see(rules, volume({}, version="4")) == []


def test_a_list_makes_no_second_key_for_what_is_known(rules):
    assert see(rules, *SAME[1:], claim({"team": "blue"})) == [CLAIM]
    for resource in (paths.CLAIMS, paths.VOLUMES):
        rules.begin_list(resource)
    assert see(rules, *SAME[1:], claim({"team": "blue"}), is_listed=True) == []
    for resource in (paths.CLAIMS, paths.VOLUMES):
        assert list(rules.end_list(resource)) == []
    assert [key.text for key in rules.all_keys()] == [CLAIM]


@pytest.mark.parametrize("index", [0, 1], ids=["claim", "volume"])
@pytest.mark.parametrize("is_listed", [False, True], ids=["event", "list"])
def test_what_is_deleted_has_no_key(rules, index, is_listed):
    items = [claim({"team": "blue"}), SAME[1]]
    see(rules, *items)
    resource = RESOURCES[type(items[index])]
    if is_listed:
        rules.begin_list(resource)
        rules.end_list(resource)
    else:
        rules.gone(resource, items[index])
    assert rules.all_keys() == []


@pytest.mark.parametrize("is_listed", [False, True], ids=["event", "list"])
def test_a_claim_that_names_somebodys_volume_does_not_hide_the_volumes_claim(rules, is_listed):
    """Anybody may create a claim with a foreign spec.volumeName."""
    other = claim({"team": "x"}, namespace="other", uid="u2")
    items = [claim({"team": "blue"}), other, SAME[1]]
    assert see(rules, *items, is_listed=is_listed) == [CLAIM]
    assert see(rules, volume({}, "team", version="2")) == [CLAIM]
    rules.gone(paths.CLAIMS, other)
    assert see(rules, volume({"team": "red"}, version="3")) == [CLAIM]


def test_a_claim_whose_volume_is_anothers_or_being_deleted_has_no_key(rules):
    assert see(rules, claim({"team": "blue"}, uid="u2"), SAME[1]) == []
    assert see(rules, claim({"team": "blue"})) == [CLAIM]
    assert see(rules, volume({"team": "red"}, "team", deleting=True)) == []
    assert rules.all_keys() == []


def test_a_claim_that_was_bound_without_a_provisioner_is_not_compared(rules):
    """An administrator made its PV."""
    assert see(rules, claim({"team": "blue"}, provisioner=None), SAME[1]) == []


def test_an_unbound_claim_and_a_driver_without_the_flag_are_not_compared(rules):
    assert see(rules, make_claim(labels={"team": "red"}, provisioner="bar"), SAME[1]) == []
    rules.set_drivers([PLAIN])
    assert see(rules, claim({"team": "blue"})) == []


def test_a_driver_with_new_keys_is_listed_again():
    relists = {watch.resource: watch.relists for watch in WATCHES}
    more = {**FOO, "rules": {"claim_labels_to_pv": [*KEYS, "new"]}}
    for resource in (paths.CLAIMS, paths.VOLUMES):
        assert relists[resource]([PLAIN], [FOO])
        assert relists[resource]([], [FOO])
        assert relists[resource]([FOO], [more])
        assert not relists[resource]([FOO], [FOO])
        assert not relists[resource]([more], [FOO])
        assert not relists[resource]([], [PLAIN])


def test_a_new_node_is_no_reason_to_list_again_while_the_nodes_flags_differ():
    """As during a rollout of a DaemonSet."""
    old = {"claim_labels_to_pv": list(KEYS[:1])}
    nodes = [{**FOO, "queue_name": f"foo@{node}", "node": node} for node in "abc"]
    nodes[1]["rules"] = old
    relists = {watch.resource: watch.relists for watch in WATCHES}
    assert not relists[paths.CLAIMS](nodes[:2], nodes)
    assert relists[paths.CLAIMS](nodes[1:2], nodes)
