"""Whose Redis is it? The mark in the epoch keeps other shards out, and comes back after a wipe."""

from __future__ import annotations

import itertools

import pytest

from tests.support.redis_server import RedisServer
from workers.config.shard import parse_shard
from workers.errors import WrongShard
from workers.queue.catalog import CatalogWriter
from workers.queue.connection import connect
from workers.queue.keys import claim_key
from workers.queue.workqueue import WorkQueue

MARKS = ["", "0/2", "1/2", "0/3"]
PAIRS = list(itertools.permutations(MARKS, 2))


class Side:
    """A watcher and a worker with one and the same flag, as far as they meet Redis."""

    def __init__(self, server, mark):
        self.shard = parse_shard(mark)
        self.client = connect(server.url, shard=self.shard)
        self.watcher = CatalogWriter(self.client)
        self.tickets = []
        self.worker = WorkQueue(self.client, publish=self.tickets.extend)

    def meet(self, who):
        """What a process does first, and again and again."""
        return self.watcher.epoch() if who == "watcher" else self.worker.heartbeat()

    def state(self):
        keys = sorted(self.client.scan_iter("*"))
        return {key: self.client.dump(key) for key in keys}


@pytest.fixture
def side(redis_server, redis_client):
    """Makes sides of one empty Redis."""
    del redis_client
    made = []

    def make(mark):
        made.append(Side(redis_server, mark))
        return made[-1]

    yield make
    for one in made:
        one.client.close()


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("who", ["watcher", "worker"])
@pytest.mark.parametrize("owner", ["watcher", "worker"])
def test_who_comes_with_another_mark_is_told_and_touches_nothing(side, first, second, who, owner):
    """Another shard, another number of shards, with and without `--shard`, each way round."""
    ours, theirs = side(first), side(second)
    ours.meet(owner)
    before = ours.state()
    for _ in range(2):
        with pytest.raises(WrongShard, match="empty every Redis first") as caught:
            theirs.meet(who)
        shown = str(caught.value)
        whose = f"of shard {first}," if first else "of a system without shards,"
        assert f"this Redis is {whose}" in shown
        who = f"of shard {second}." if second else "without --shard."
        assert f"this process {who}" in shown
        assert "\n" not in shown
    assert ours.state() == before
    ours.meet("watcher")
    ours.meet("worker")


@pytest.mark.parametrize("mark", MARKS)
def test_a_wipe_heals_by_what_healed_it_before(side, mark):
    """The first comer names the new life with the same mark; leases come back as ever."""
    ours = side(mark)
    key = claim_key("d", "ns", "a", "u")
    before = ours.watcher.epoch()
    assert ours.worker.epoch == ""
    ours.worker.register_process()
    assert ours.worker.epoch == before
    ours.worker.set_limits(key.lane, 5)
    ours.worker.add([key])
    lease = ours.worker.take(ours.tickets.pop())
    ours.client.flushall()
    ours.worker.heartbeat()
    after = ours.watcher.epoch()
    assert after != before
    assert ours.worker.epoch == after
    assert lease.is_held()
    assert ours.worker.done(lease)


def test_a_restart_that_keeps_the_data_keeps_the_mark(redis_binary, tmp_path):
    """The run id ends the life, yet the Redis is still the same shard's."""
    server = RedisServer(redis_binary, tmp_path, appendonly=True).start()
    try:
        ours, theirs = Side(server, "0/2"), Side(server, "1/2")
        epoch = ours.watcher.epoch()
        server.kill()
        server.start()
        with pytest.raises(WrongShard):
            theirs.watcher.epoch()
        assert ours.watcher.epoch() != epoch
        ours.client.flushall()
        assert theirs.watcher.epoch(), "an emptied Redis is anybody's"
    finally:
        server.kill()


def test_without_a_shard_the_epoch_is_what_it_was(side):
    """No mark, so that processes of an earlier release still read it."""
    epoch = side("").watcher.epoch()
    assert "@" not in epoch
    assert len(epoch.split(":")) == 3
