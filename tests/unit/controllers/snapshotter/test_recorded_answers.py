"""G8 for snapshots: A handle that the driver answered is kept until its snapshot is deleted.

Some drivers check the source volume first: ceph-csi answers NOT_FOUND before it looks for the name.
Once the volume is gone, a repeated call therefore cannot find the snapshot.
"""

from __future__ import annotations

from typing import Any

from csi_client import errors
from csi_client.errors import CsiError
from tests.unit.controllers.snapshotter import test_group_contents as groups
from tests.unit.controllers.snapshotter.test_crash_points import TIMEOUT, Life
from workers.kube import paths
from workers.kube.errors import InvalidError

GONE = CsiError(errors.NOT_FOUND, "no such volume")
BUSY = CsiError(errors.UNAVAILABLE, "not now")


def source_first(life: Life) -> Any:
    """Make the driver check the source volume first; return a function that removes the volume."""
    create, is_there = life.storage.create, [True]

    def asked(request: Any) -> Any:
        if not is_there:
            raise GONE
        return create(request)

    life.world.client.respond({"CreateSnapshot": [asked]})
    return is_there.clear


def delete_fails_once(life: Life) -> None:
    life.world.client.respond({"DeleteSnapshot": [BUSY, life.storage.delete]})


def test_an_orphan_whose_first_deletion_failed_leaks_when_its_volume_goes():
    """The object is removed by force during the call, and the next reconcile gets the handle."""
    life = Life([("after", TIMEOUT)])
    volume_goes = source_first(life)
    life.world.run_content()
    life.somebody_forces()
    delete_fails_once(life)
    life.world.run_content()  # finds the handle, but its DeleteSnapshot gets no answer
    volume_goes()
    life.live()
    assert life.storage.snapshots == {}, "the driver told its handle, and nothing remembers it"


def test_what_a_last_call_found_leaks_when_its_volume_goes():
    """The last call of the deletion finds the snapshot, but DeleteSnapshot gets no answer.

    The first call ended with INTERNAL.
    """
    life = Life([("after", CsiError(errors.INTERNAL, "told to fail"))])
    volume_goes = source_first(life)
    life.world.run_content()
    life.user_deletes()
    delete_fails_once(life)
    life.world.run_content()
    volume_goes()
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "the driver told its handle, and nothing remembers it"


def test_an_answer_whose_status_is_refused_leaks_when_its_volume_goes():
    """G8 of volumes: The answer is stored in Redis before the first attempt to save it."""
    life = Life([])
    volume_goes = source_first(life)
    refused = InvalidError(422, "Invalid", "a webhook says no")
    life.world.api.fail("patch", "snapcontent-u1/status", refused)
    life.world.run_content()
    assert life.storage.snapshots
    volume_goes()
    life.user_deletes()
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "the driver told its handle, and nothing remembers it"


def test_a_group_whose_first_deletion_failed_leaks_when_a_volume_goes():
    world = groups.dynamic_world(groups.NO_ANSWER, groups.MADE, GONE)
    groups.run(world)
    world.api.drop(paths.GROUP_SNAPSHOT_CONTENTS, "gc")
    world.client.respond({"DeleteVolumeGroupSnapshot": [BUSY, {}]})
    for _ in range(5):
        groups.run(world)
    deleted = world.client.requests("DeleteVolumeGroupSnapshot")
    assert len(deleted) == 2, "asked once, not answered, forgotten"
