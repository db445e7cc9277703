"""A process dies during CreateVolume, and the driver runs two calls of one name in parallel.

The worker that continues the attempt reads the deadline of the dead worker's call from the intent.
That call may make its volume at the deadline, and the volume must not outlive the claim and its PV.
"""

from __future__ import annotations

from itertools import count

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.crash_world import CLAIM, UID, VOLUME, CrashWorld
from tests.support.fake_cluster import DRIVER
from workers.engine.steps import Step
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key
from workers.queue.names import NAMES

TIMEOUT_MS = 10_000  # CreateVolume's default timeout


class LateWorld(CrashWorld):
    """A world where the call of the dead process makes its volume 10 s after it began."""

    def __post_init__(self):
        super().__post_init__()
        self.log = []
        self.began_ms = self.ends_ms = None
        create, delete = self.storage.create_volume, self.storage.delete_volume

        def created(request, **options):
            if self.began_ms is None:
                self.began_ms, self.ends_ms = self.now_ms, self.now_ms + TIMEOUT_MS
            self.log.append(("create", self.now_ms - self.began_ms))
            return create(request, **options)

        def deleted(volume_id, secrets, **options):
            self.log.append(("delete", self.now_ms - self.began_ms))
            delete(volume_id, secrets, **options)

        self.storage.create_volume, self.storage.delete_volume = created, deleted

    def cluster(self):
        """Run the cluster, and the driver, which finishes the call of the dead process."""
        if self.ends_ms is not None and self.now_ms >= self.ends_ms:
            self.ends_ms = None
            self.storage.volumes.setdefault(VOLUME, "id-late")
        super().cluster()

    def seconds_of(self, call):
        """Return when the last call of this kind began, in seconds since the first CreateVolume."""
        return max(at for name, at in self.log if name == call) / 1000


@pytest.fixture
def world(redis_client):
    """Return a world whose worker died in CreateVolume after 2 s, before the volume was made."""
    world, effects = LateWorld(redis_client), count()
    while world.died_at is not Step.RECORD_VOLUME:
        redis_client.flushall()
        world = LateWorld(redis_client)
        world.add_claim()
        world.storage.plans = ["slow"]
        world.live(world.owner(dies_before=next(effects)))
    world.storage.volumes.clear()
    world.pass_away()
    return world


def no_volume_is_left(world):
    assert world.storage.volumes == {}
    assert world.kube.kind("persistentvolumes") == {}
    assert world.left_in_redis() == []


def test_redis_was_emptied_and_the_claim_deleted(world):
    """The next worker reads the call from the intent copy and waits for its deadline."""
    world.wipe()
    world.kube.objects.pop(CLAIM)
    world.live(world.owner())
    assert world.log[1][1] / 1000 >= 11
    no_volume_is_left(world)


def test_the_claim_was_deleted(world):
    """No user waits for the volume, so the deadline can be awaited."""
    world.delete_claim()
    world.live(world.owner())
    assert world.log[1][1] / 1000 >= 11
    no_volume_is_left(world)


def test_redis_was_emptied_under_a_claim_that_waits(world):
    """The lease is lost with Redis. Only the deadline shows when the dead worker's call is over."""
    world.wipe()
    world.live(world.owner())
    assert world.log[1][1] / 1000 >= 11
    assert set(world.kube.kind("persistentvolumes")) == {VOLUME}


def test_a_claim_that_waits_gets_its_volume_at_once_and_its_deletion_waits(world):
    """A killed worker delays the volume only by the lease's TTL, but the deletion waits longer.

    If the volume were deleted too early, the dead worker's call could make it again.
    """
    owner = world.owner()
    while not world.kube.kind("persistentvolumes"):
        world.watcher()
        owner.queue.pump(period_seconds=0)
        while world.messages:
            world._work(owner, world.messages.pop(0))
        world.now_ms += 1000
    assert world.seconds_of("create") <= 6
    world.delete_claim()
    world.live(owner)
    assert world.seconds_of("delete") >= 11
    no_volume_is_left(world)


def test_a_bound_claim_keeps_its_volume_and_leaves_no_record(world):
    """The intent is dropped once the dead worker's call is over."""
    world.live(world.owner())
    assert set(world.kube.kind("persistentvolumes")) == {VOLUME}
    assert world.left_in_redis() == []


def test_an_end_that_was_seen_is_waited_for_by_nobody(redis_client):
    """A timeout is a known end, so the next call follows after the back-off, also after a wipe."""
    world = LateWorld(redis_client)
    world.add_claim()
    world.storage.plans = [CsiError(errors.DEADLINE_EXCEEDED, "slow")]
    owner = world.owner()
    owner.queue.add([claim_key(DRIVER, "default", "data", UID)])
    world._work(owner, world.messages.pop(0))
    world.kube.objects.pop(CLAIM)
    world.wipe()
    world.live(world.owner())
    assert world.log[1][1] / 1000 < 5


def test_a_call_that_outlived_its_lease_is_put_back_as_ended(redis_client):
    """No other worker took the lease, so the restored intent has no deadline to wait for."""
    world = LateWorld(redis_client)
    world.add_claim()
    owner = world.owner()

    def lose_lease(_answer):
        redis_client.delete(NAMES["leases"].full, NAMES["intents"].full + DRIVER)
        assert owner.queue.heartbeat()

    world.storage.plans = [lose_lease]
    owner.queue.add([claim_key(DRIVER, "default", "data", UID)])
    world._work(owner, world.messages.pop(0))
    assert IntentStore(redis_client, driver=DRIVER).get(VOLUME)["stage"] == "background"
    world.live(owner)
    assert set(world.kube.kind("persistentvolumes")) == {VOLUME}
