"""The state of a group of many volumes fits; a group of too many volumes gets an error."""

from __future__ import annotations

import pytest

from tests.unit.controllers.snapshotter import test_group_contents as groups
from workers.errors import RecordTooLarge
from workers.kube import paths
from workers.queue.marks import LONGEST_MARK
from workers.queue.records import encode

# Names as of disk.csi.azure.com: 166 characters.
AZURE = (
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/mc_production_westeurope"
    "/providers/Microsoft.Compute/disks/pvc-00000000-0000-0000-0000-{:012d}"
)
# Names as of rbd.csi.ceph.com: 79 characters.
CEPH = (
    "0001-0024-00000000-0000-0000-0000-000000000000-000000000000000a"
    "-00000000-0000-0000-0000-{:012d}"
)


@pytest.mark.parametrize(("handle", "volumes"), [(AZURE, 100), (CEPH, 170)], ids=["azure", "ceph"])
def test_a_group_of_many_volumes_is_cut(handle, volumes):
    world = new_world(handle, volumes)
    assert groups.run(world).reason == "ready"


def test_a_group_of_too_many_volumes_is_told_so():
    world = new_world(AZURE, 500)
    assert groups.run(world).action.value == "retry"
    assert "may have 64 KiB" in str(groups.content(world)["status"]["error"])
    assert world.client.methods == []


def new_world(handle, volumes):
    handles = [handle.format(number) for number in range(volumes)]
    members = [{"snapshot_id": f"s{n}", "source_volume_id": one} for n, one in enumerate(handles)]
    ready = {"group_snapshot_id": "gh", "ready_to_use": True, "snapshots": members}
    world = groups.dynamic_world({"group_snapshot": ready})
    source = {"volumeHandles": handles}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", {"spec": {"source": source}})
    real = world.queue.mark

    def mark(lease, record):
        """Apply production's limit (workers.queue.marks)."""
        if (size := len(encode(record))) > LONGEST_MARK:
            raise RecordTooLarge(f"{size // 1024} KiB, and may have {LONGEST_MARK // 1024} KiB")
        real(lease, record)

    world.queue.mark = mark
    return world
