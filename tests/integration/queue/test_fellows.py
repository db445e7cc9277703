"""Which fellows share a Lease, and lanes that stay paused through a loss of data."""

from __future__ import annotations

import pytest

from tests.support.taking import take
from workers.queue.fellows import LeaseFellows
from workers.queue.keys import claim_key
from workers.queue.limits import read_stats

KEY = claim_key("d", "ns", "a", "u1")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def fellows(redis_client, clock):
    return LeaseFellows(redis_client, settle_seconds=10, clock=clock)


def test_a_redis_has_one_name_and_gets_it_back(redis_client):
    one, two = fellows(redis_client, Clock()), fellows(redis_client, Clock())
    name = one.installation("")
    assert two.installation("") == name
    redis_client.flushall()
    assert two.installation(name) == name
    assert fellows(redis_client, Clock()).installation("") == name


def test_a_redis_that_was_named_anew_keeps_that_name(redis_client):
    one, two = fellows(redis_client, Clock()), fellows(redis_client, Clock())
    old = one.installation("")
    redis_client.flushall()
    new = two.installation("")
    assert new != old
    assert one.installation(old) == new


@pytest.mark.parametrize("written", [b"a", b"NX", b"0" * 17, b"_csi-fleet-", b"\xff" * 16])
def test_a_name_that_is_none_is_replaced(redis_client, written, caplog):
    """An invalid name of the installation is replaced.

    The name goes into Leases and into every search for fellows, and every text contains "".
    """
    one = fellows(redis_client, Clock())
    name = one.installation("")
    redis_client.set("csifleet:installation", written)
    assert one.installation(name) == name
    assert redis_client.get("csifleet:installation") == name.encode()
    assert "replaced the name of the installation in Redis, which was not valid" in caplog.messages


def test_two_that_replace_it_at_once_agree(redis_client, monkeypatch):
    """Two processes that replace an invalid name at the same time use the same new name."""
    one, two = fellows(redis_client, Clock()), fellows(redis_client, Clock())
    redis_client.set("csifleet:installation", "NX")
    give, others = one._give, []

    def later(name, instead_of):
        others.append(two.installation(""))
        give(name, instead_of)

    monkeypatch.setattr(one, "_give", later)
    assert [one.installation("")] == others


@pytest.mark.parametrize(("given", "is_taken"), [("0" * 16, True), ("x", False), ("", False)])
def test_a_redis_without_a_name_gets_the_given_one(redis_client, given, is_taken):
    """A Redis without a name gets the name that `csi-fleet run` gives, unless it is invalid."""
    one = LeaseFellows(redis_client, settle_seconds=1, given=given)
    assert (one.installation("") == given) is is_taken
    assert one.installation("f" * 16) == one.installation("")


def test_a_full_redis_says_its_name(redis_client):
    """A full Redis returns its name.

    Otherwise lanes could no longer be paused there for another holder of the Lease.
    """
    one = fellows(redis_client, Clock())
    name = one.installation("")
    redis_client.config_set("maxmemory", "1mb")
    try:
        assert one.installation(name) == name
    finally:
        redis_client.config_set("maxmemory", 0)


def test_only_the_last_one_is_the_last(redis_client):
    clock = Clock()
    one, two = fellows(redis_client, clock), fellows(redis_client, clock)
    one.works("lease", "w1", 13)
    two.works("lease", "w2", 13)
    one.works("another", "w1", 13)
    clock.now += 11
    assert not one.is_last("lease", "w1")
    assert two.is_last("lease", "w2")
    assert one.is_last("another", "w1")


def test_one_that_died_counts_until_its_time_is_over(redis_client):
    clock = Clock()
    one, dead = fellows(redis_client, clock), fellows(redis_client, clock)
    one.works("lease", "w1", 60)
    dead.works("lease", "w2", 60)
    clock.now += 11
    assert not one.is_last("lease", "w1")
    one.works("lease", "w1", 60)
    dead.works("lease", "w2", 0)
    clock.now += 11
    assert one.is_last("lease", "w1")


def test_after_a_loss_of_data_nobody_is_certain_for_a_while(redis_client):
    """After a loss of data no worker counts as the last one for some time: the entries of both are
    lost, and the fellow still works.
    """
    clock = Clock()
    one = fellows(redis_client, clock)
    one.works("lease", "w1", 60)
    clock.now += 60
    redis_client.flushall()
    assert not one.is_last("lease", "w1")
    one.works("lease", "w1", 60)
    clock.now += 5
    one.works("lease", "w1", 60)
    assert not one.is_last("lease", "w1")
    one.works("lease", "w1", 60)
    clock.now += 11
    one.works("lease", "w1", 60)
    assert one.is_last("lease", "w1")


def test_a_pause_for_a_lease_is_there_again_before_anything_is_admitted(bench, start_queue):
    """After FLUSHALL the pause for a Lease is restored before any key can be taken.

    The next check of the Lease can be seconds away.
    """
    queue = start_queue()
    queue.pause("claims|d", "lease held by go", seconds=15, kind="lease")
    bench.client.flushall()
    queue.heartbeat()
    queue.add([KEY])
    assert take(queue, KEY) is None
    stats = read_stats(bench.client, bench.now_ms)["claims|d"]
    assert stats.paused == {"lease": "lease held by go"}
    bench.advance(16)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert bench.due == [KEY]


def test_a_pause_that_ended_does_not_come_back(bench, start_queue):
    queue = start_queue()
    queue.pause("claims|d", "lease held by go", seconds=15, kind="lease")
    queue.resume("claims|d", kind="lease")
    bench.client.flushall()
    queue.heartbeat()
    queue.add([KEY])
    bench.advance(4.1)  # the quiet period of the new epoch
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert bench.due == [KEY]
