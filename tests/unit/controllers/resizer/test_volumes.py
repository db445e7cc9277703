"""The annotation of the former size, block volumes, capabilities, migration (section 11.4)."""

from __future__ import annotations

import pytest

from tests.support.resizer_world import HANDLE, NODE_PENDING, VOLUME, ResizerWorld
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.observability import trail

NOTE = "volume.alpha.kubernetes.io/pre-resize-capacity"
NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
RESIZER = "volume.kubernetes.io/storage-resizer"
EBS = "ebs.csi.aws.com"


def request_of(world):
    return world.client.requests("ControllerExpandVolume")[0]


def test_tr080_the_size_before_is_noted_for_the_binder():
    """R-060, R-073: An annotation on the volume has the former size."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.run()
    assert world.annotation(NOTE, world.stored) == "1Gi"


def test_tr081_an_older_note_stays():
    world = ResizerWorld()
    world.volume(2, annotations={NOTE: "500Mi"})
    world.claim(3, 1)
    world.run()
    assert world.annotation(NOTE, world.stored) == "500Mi"


@pytest.mark.parametrize("spec", [2, 1], ids=["as wanted", "lowered"])
def test_tr082_the_note_goes_when_the_node_caught_up(spec):
    """R-020/4, R-070: This happens even if no other work is left."""
    world = ResizerWorld()
    world.volume(2, annotations={NOTE: "1Gi"})
    world.claim(spec, 2)
    world.run()
    assert world.annotation(NOTE, world.stored) is None
    assert world.sizes() == []


def test_dr035_a_chained_expansion_gets_a_note_of_its_own():
    """DR-035: csi-resizer continues with the volume as it was before the annotation was removed."""
    world = ResizerWorld()
    world.volume(3, annotations={NOTE: "1Gi"})
    world.claim(10, 3, 3)
    world.run()
    assert world.annotation(NOTE, world.stored) == "3Gi"
    assert world.sizes() == [10]


def test_a_note_that_cannot_be_removed_is_tried_again():
    """R-020/4: No event is emitted, so only `explain` shows the cause."""
    world = ResizerWorld()
    world.volume(2, annotations={NOTE: "1Gi"})
    world.claim(2, 2)
    world.api.fail("patch", VOLUME, ForbiddenError(403, "Forbidden", "no"))
    with trail.collect():
        assert world.run().action.value == "retry"
        notes = trail.collected()
    text = f'error failed removing annotation {NOTE} from pv "{VOLUME}": no'
    assert any(note.endswith(text) for note in notes)


def test_tr083_without_the_gate_nothing_is_noted():
    """R-121: An existing annotation stays too."""
    world = ResizerWorld(annotates=False)
    world.claim(2, 1)
    world.run()
    assert world.annotation(NOTE, world.stored) is None
    world = ResizerWorld(annotates=False)
    world.volume(2, annotations={NOTE: "1Gi"})
    world.claim(2, 2)
    world.run()
    assert world.annotation(NOTE, world.stored) == "1Gi"


def test_tr084_a_foreign_volume_keeps_its_note():
    """DR-015: The annotation of another driver's volume is not removed."""
    world = ResizerWorld()
    source = {"driver": "other", "volumeHandle": "h"}
    world.volume(2, annotations={NOTE: "1Gi"}, csi=source)
    world.claim(2, 2)
    world.run()
    assert world.annotation(NOTE, world.stored) == "1Gi"


def test_tr085_a_block_volume():
    """R-041: The capability in the request is of type block."""
    world = ResizerWorld()
    world.volume(1, volumeMode="Block")
    world.claim(2, 1)
    world.run()
    assert request_of(world).volume_capability.HasField("block")


@pytest.mark.parametrize(("default", "expected"), [("ext4", "ext4"), ("", "")])
def test_tr086_the_file_system_is_that_of_publish(default, expected):
    """DR-004: The request has the same file system as ControllerPublishVolume."""
    world = ResizerWorld(default_fs_type=default)
    world.claim(2, 1)
    world.run()
    assert request_of(world).volume_capability.mount.fs_type == expected


def test_tr087_the_word_of_an_earlier_expansion_goes_before_the_call():
    """R-035: Otherwise kubelet would not expand the file system."""
    world = ResizerWorld()
    seen = []
    world.answers(lambda _: seen.append(world.annotation(NOT_REQUIRED)) or {"code": "INTERNAL"})
    world.claim(2, 1, annotations={NOT_REQUIRED: "true"})
    world.run()
    assert seen == [None]


def in_tree(world):
    world.volume(
        1,
        csi=None,
        awsElasticBlockStore={"volumeID": "aws://us-east-1a/vol-0123", "fsType": "ext4"},
    )


def test_tr088_a_migrated_volume():
    """R-021, R-040, R-041: The request has the CSI driver's handle."""
    world = ResizerWorld(driver_name=EBS)
    in_tree(world)
    world.claim(2, 1, annotations={RESIZER: EBS})
    world.run()
    assert request_of(world).volume_id == "vol-0123"
    assert request_of(world).volume_capability.mount.fs_type == "ext4"
    assert world.state().part == NODE_PENDING


@pytest.mark.parametrize("annotations", [{}, {RESIZER: "kubernetes.io/aws-ebs"}])
def test_tr089_without_the_annotation_it_is_in_trees(annotations):
    world = ResizerWorld(driver_name=EBS)
    in_tree(world)
    world.claim(2, 1, annotations=annotations)
    world.run()
    assert world.client.methods == []


def test_tr090_an_annotation_does_not_make_a_foreign_csi_volume_ours():
    """DR-016: Otherwise its handle would be sent to the wrong storage."""
    world = ResizerWorld(driver_name=EBS)
    world.volume(1, csi={"driver": "other", "volumeHandle": "h"})
    world.claim(2, 1, annotations={RESIZER: EBS})
    world.run()
    assert world.client.methods == []
    assert world.api.writes == []


def test_tr091_the_trivial_resizer_asks_nobody():
    """R-003, R-042: No call is made; the node expands the volume."""
    world = ResizerWorld(capabilities=())
    world.claim(2, 1)
    world.run()
    assert world.client.methods == []
    assert (world.state().pvcap, world.state().part) == (2, NODE_PENDING)


@pytest.mark.parametrize("answer", [{"node_expansion_required": True}, {}, {"code": "INTERNAL"}])
def test_tr092_other_conditions_are_preserved(answer):
    """R-061: Conditions that the expansion does not own are kept."""
    world = ResizerWorld()
    world.answers(answer)
    world.claim(2, 1, conditions={"ModifyingVolume": "text", "Unused": "text"})
    world.run()
    assert {"ModifyingVolume", "Unused"} <= world.conditions().keys()


@pytest.mark.parametrize("annotated", [True, False])
def test_a_volume_without_a_csi_form_is_reported_or_left(annotated):
    """R-040: The driver replaces an in-tree plug-in, but the volume belongs to none."""
    world = ResizerWorld(driver_name=EBS)
    world.volume(1, csi=None, nfs={"server": "s", "path": "/"})
    world.claim(2, 1, annotations={RESIZER: EBS} if annotated else {})
    world.run()
    missing = f'could not find in-tree plugin translation logic for "{VOLUME}"'
    expected = [f"failed to translate persistent volume: {missing}"] if annotated else []
    assert [one.partition("failed: ")[2] for one in world.messages()[1:]] == expected


def test_what_the_driver_said_last_counts():
    """MR-041, BUG-3: Another program wrote a larger size during the call."""
    world = ResizerWorld()

    def grown(request):
        world.api.change(paths.VOLUMES, VOLUME, {"spec": {"capacity": {"storage": "5Gi"}}})
        return {"capacity_bytes": request.capacity_range.required_bytes}

    world.answers(grown)
    world.claim(2, 1)
    world.run()
    assert world.state().pvcap == 2


def test_a_volume_that_was_made_again_during_the_call_gets_a_call_of_its_own():
    """The size belongs to the first volume and must not be written to the second."""
    world = ResizerWorld()

    def replaced(_request):
        world.api.drop(paths.VOLUMES, VOLUME)
        world.volume(1, csi={"driver": world.driver_name, "volumeHandle": "new"})
        world.api.change(paths.VOLUMES, VOLUME, {"metadata": {"uid": "another"}})
        return {"capacity_bytes": 5 << 30}

    world.answers(replaced, {})
    world.claim(2, 1)
    assert world.run().reason == "volume not saved"
    assert (world.state().cap, world.state().pvcap) == (1, 1)
    world.run()
    handles = [one.volume_id for one in world.client.requests("ControllerExpandVolume")]
    assert handles == [HANDLE, "new"]
    assert (world.state().cap, world.state().pvcap) == (2, 2)


class TestLegacy:
    """R-090: The gate RecoverVolumeExpansionFailure is off."""

    def test_the_states_are_not_used(self):
        world = ResizerWorld(recovers=False)
        world.claim(2, 1)
        world.run()
        assert world.sizes() == [2]
        assert list(world.conditions()) == ["FileSystemResizePending"]
        assert "allocatedResources" not in world.seen["status"]

    def test_without_node_part(self):
        world = ResizerWorld(recovers=False)
        world.answers({})
        world.claim(2, 1)
        world.run()
        assert (world.state().cap, world.conditions()) == (2, {})
        assert world.annotation(NOT_REQUIRED) is None

    def test_the_node_is_waited_for(self):
        world = ResizerWorld(recovers=False)
        world.claim(2, 1, pvcap=2, conditions={"FileSystemResizePending": "waits"})
        world.run()
        assert world.sizes() == []

    @pytest.mark.parametrize("code", ["OUT_OF_RANGE", "INTERNAL", "UNAVAILABLE"])
    def test_errors_change_no_state(self, code):
        world = ResizerWorld(recovers=False)
        world.answers({"code": code}, {})
        world.claim(5, 1)
        assert world.run().delay_seconds == 0
        assert list(world.conditions()) == ["Resizing"]
        world.resize(3)
        world.run()
        assert world.sizes() == [5, 3]
