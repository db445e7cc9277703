"""The queue's guarantees, one by one, on a real Redis."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.taking import take_all
from workers.errors import LeaseLost
from workers.queue.inspect import read_key
from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.names import NAMES, PREFIX

BACKOFF = {"base_seconds": 1, "cap_seconds": 300}


def claim(name: str, namespace: str = "ns") -> Key:
    return claim_key("d", namespace, name, f"uid-{name}")


def fail_until_ready(bench, queue) -> float | None:
    """Fail one attempt, advance the clock to the retry, and return the delay in seconds."""
    delay = queue.fail(bench.run_next(queue), **BACKOFF).delay_seconds
    bench.advance(delay)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    return delay


def test_c039_backoff_doubles_up_to_the_cap_without_end(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    delays = [fail_until_ready(bench, queue) for _ in range(11)]
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_c040_success_resets_the_backoff(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    for _ in range(3):
        fail_until_ready(bench, queue)
    assert queue.done(bench.run_next(queue))
    queue.add([claim("a")])
    assert fail_until_ready(bench, queue) == 1


def test_c041_add_while_running_runs_exactly_once_more_and_never_in_parallel(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    queue.add([claim("a")])
    queue.add([claim("a")])
    assert bench.due == []
    queue.done(lease)
    assert bench.due == [claim("a")]
    queue.done(bench.run_next(queue))
    assert bench.due == []


def test_c042_hundred_adds_while_waiting_are_one_sync(bench, start_queue):
    queue = start_queue()
    for _ in range(100):
        queue.add([claim("a")])
    assert bench.due == [claim("a")]


def test_c043_update_during_a_long_delay_is_synced_at_once(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    queue.fail(bench.run_next(queue), base_seconds=256, cap_seconds=300)
    queue.add([claim("a")])
    queue.done(bench.run_next(queue))
    bench.advance(300)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert bench.due == [], "take removed the delayed wake-up"


def test_fail_of_a_dirty_key_counts_and_is_ready_at_once(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    queue.add([claim("a")])
    outcome = queue.fail(lease, **BACKOFF)
    assert (outcome.fails, outcome.delay_seconds) == (1, 0)
    assert bench.run_next(queue).fails == 1


def test_slow_set_delay_and_memo_reach_the_next_lease(bench, start_queue):
    """L-063: a minimum delay causes one wake-up, after
    the delay, and the memo reaches the next lease.
    """
    queue = start_queue()
    queue.add([claim("a")])
    outcome = queue.fail(
        bench.run_next(queue), **BACKOFF, min_delay_seconds=300, memo='{"class_uid":"1"}'
    )
    assert outcome.delay_seconds == 300
    bench.advance(300)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert bench.run_next(queue).memo == '{"class_uid":"1"}'


def test_threshold_gives_up_and_keeps_the_counter(bench, start_queue):
    """L-016: threshold 2 means three attempts; each later add gives exactly one more."""
    queue = start_queue()
    queue.add([claim("a")])
    for expected in (1, 2, None):
        outcome = queue.fail(bench.run_next(queue), **BACKOFF, threshold=2)
        assert outcome.delay_seconds == expected
        bench.advance(5)
        queue.heartbeat()
        queue.pump(period_seconds=0)
    assert bench.due == []
    queue.add([claim("a")])
    assert queue.fail(bench.run_next(queue), **BACKOFF, threshold=2).delay_seconds is None
    bench.advance(8 * 24 * 3600)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert bench.client.hlen(NAMES["fails"].full) == 0, "M-015: forgotten after a week"


def test_c149_two_workers_with_the_same_message_one_works(bench, start_queue):
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    lease = bench.take(one, claim("a"), "pvc-a")
    assert lease is not None
    assert bench.take(two, claim("a"), "pvc-a") is None
    lease.check()


def test_c149_after_a_hand_over_only_the_newer_fence_may_write(bench, start_queue):
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    old, new = bench.hand_over(one, two, "pvc-a")
    assert new.fence > old.fence
    with pytest.raises(LeaseLost):
        old.check()
    assert one.heartbeat(), "the process learns that its key was handed over"
    assert not one.heartbeat()
    with pytest.raises(LeaseLost):
        old.check()
    assert not one.done(old)
    new.check()


def test_stopped_process_notices_the_loss_before_it_writes(bench, start_queue):
    """A process that was stopped (SIGSTOP) notices the loss by its own clock before it writes.

    No heartbeat ran, and no error occurred.
    """
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    bench.advance(3.4)
    lease.check()
    bench.advance(0.2)
    with pytest.raises(LeaseLost, match="was lost"):
        lease.check()
    queue.heartbeat()
    lease.check()


def test_claim_and_volume_of_one_name_never_run_together(bench, start_queue):
    queue = start_queue(concurrency=1)
    queue.add([claim("a")])
    queue.add([volume_key("d", "pvc-a"), volume_key("d", "pvc-b")])
    lease = bench.run_next(queue, "pvc-a")
    assert bench.take(queue, volume_key("d", "pvc-a"), "pvc-a") is None
    assert bench.due == [volume_key("d", "pvc-b")], "a blocked key occupies no slot"
    queue.done(bench.run_next(queue, "pvc-b"))
    assert bench.due == []
    queue.done(lease)
    assert bench.due == [volume_key("d", "pvc-a")]


def test_flooding_tenant_does_not_delay_another(bench, start_queue):
    """G12: tenants take turns, and each tenant's keys keep their order."""
    queue = start_queue(concurrency=1)
    queue.add([claim(f"flood{i:03}", "loud") for i in range(100)])
    queue.add([claim("one", "calm"), claim("two", "calm")])
    order = []
    for _ in range(6):
        lease = bench.run_next(queue)
        order.append(lease.key.object)
        queue.done(lease)
    assert order == [
        "loud/flood000", "calm/one", "loud/flood001", "calm/two", "loud/flood002", "loud/flood003",
    ]  # fmt: skip


def test_a_flood_of_retries_does_not_delay_another_tenant(bench, start_queue):
    """G12: however many retries are due, a first attempt waits for one retry at most."""
    queue = start_queue(concurrency=200)
    queue.add([claim(f"flood{i:03}", "loud") for i in range(100)])
    for lease in take_all(queue, "d", "claims"):
        queue.fail(lease, **BACKOFF)
    bench.advance(1)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert queue.take("d", ["claims"]).key.tenant == "loud"
    queue.add([claim("one", "calm")])
    order = [lease.key.tenant for lease in take_all(queue, "d", "claims")]
    assert len(order) == 100
    assert order.index("calm") <= 1


def test_retries_get_a_sixth_and_never_starve_first_attempts(bench, start_queue):
    """G12, SNQ-010: retries get a sixth of the turns.

    A snapshot's deletion does not wait behind checks of uploads that hang.
    """
    queue = start_queue(concurrency=40)
    queue.add([claim(f"bad{i}") for i in range(40)])
    for lease in take_all(queue, "d", "claims"):
        queue.fail(lease, **BACKOFF)
    queue.set_limits("claims|d", 1)
    bench.advance(2)
    queue.heartbeat()
    queue.add([claim(f"new{i}") for i in range(40)])
    queue.pump(period_seconds=0)
    kinds: Counter[str] = Counter()
    for _ in range(24):
        lease = queue.take("d", ["claims"])
        kinds[lease.key.object[3:6]] += 1
        queue.done(lease)
    assert kinds == {"new": 20, "bad": 4}


def test_limit_holds_over_processes_and_through_a_death(bench, start_queue):
    """G11, I-8: a limit holds over all processes.

    Keys of a killed process count until its leases expire.
    """
    one, two = start_queue(concurrency=2), start_queue(concurrency=2)
    one.add([claim(str(i)) for i in range(5)])
    bench.run_next(one), bench.run_next(two)
    bench.advance(3)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert two.take("d", ["claims"]) is None
    bench.advance(1.1)
    two.pump(period_seconds=0)
    assert bench.take(two, claim("0")), "handed over, in front of those never taken"
    assert two.take("d", ["claims"]) is None


def test_clean_exit_hands_over_at_once(bench, start_queue):
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    lease = bench.run_next(one)
    one.close()
    one.close()
    with pytest.raises(LeaseLost):
        lease.check()
    assert bench.run_next(two).key == claim("a")


def test_rate_limit_is_a_bucket_over_all_processes(bench, start_queue):
    one = start_queue(concurrency=100, rate_per_second=2, burst=3)
    two = start_queue(concurrency=100, rate_per_second=2, burst=3)
    started = 0

    def take_more() -> int:
        nonlocal started
        for queue in (one, two):
            queue.heartbeat()
        two.pump(period_seconds=0)
        started += len(take_all(one if started % 2 else two, "d", "claims"))
        return started

    one.add([claim(str(i)) for i in range(20)])
    assert take_more() == 3
    bench.advance(1)
    assert take_more() == 5
    bench.advance(60)
    assert take_more() == 8, "never more than the burst"


def test_time_in_which_nobody_took_is_no_burst(bench, start_queue):
    """Workers that were busy or absent start no more
    calls at once than the burst and the rate allow.
    """
    queue = start_queue(concurrency=100, rate_per_second=10, burst=2)
    queue.add([claim(str(i)) for i in range(50)])
    for _ in range(5):
        bench.advance(1)
        queue.heartbeat()
        queue.pump(period_seconds=0)
    assert len(take_all(queue, "d", "claims")) <= 2 + 10 * 0.25


def test_one_call_at_a_time_holds_over_the_death_of_its_worker(bench, start_queue):
    """A dead worker's call blocks a serial driver until the
    call's deadline, because the driver may still process it.
    """
    one, two = start_queue(concurrency=1), start_queue(concurrency=1)
    two.set_limits("claims|d", 1, hold_seconds=10)
    one.add([claim("a"), claim("b")])
    bench.run_next(one)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert two.take("d", ["claims"]) is None
    assert read_key(bench.client, claim("a")).in_use == 1
    bench.advance(9.8)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert two.take("d", ["claims"]) is None
    bench.advance(0.3)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert bench.take(two, claim("a"))


def test_larger_limits_are_handed_over_at_once(bench, start_queue):
    one, two = start_queue(concurrency=2), start_queue(concurrency=2)
    two.set_limits("claims|d", 2, hold_seconds=10)
    one.add([claim("a")])
    bench.run_next(one)
    bench.advance(4.1)
    two.pump(period_seconds=0)
    assert bench.due == [claim("a")]


def test_paused_lane_starts_nothing_and_parked_keys_keep_their_counter(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    lease = bench.run_next(queue)
    queue.pause("claims|d", "socket is gone", kind="driver", seconds=30)
    assert queue.release(lease)
    assert queue.take("d", ["claims"]) is None
    queue.add([claim("c")])
    queue.resume("claims|d", kind="lease")
    assert queue.take("d", ["claims"]) is None, (
        "the end of another pause is not that of a lost driver"
    )
    bench.advance(29.999)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert queue.stats()["claims|d"].paused == {"driver": "socket is gone"}
    assert queue.take("d", ["claims"]) is None
    bench.advance(0.001)
    assert queue.stats()["claims|d"].paused == {}, "over for the eyes as for the scripts"
    queue.pump(period_seconds=0)
    leases = take_all(queue, "d", "claims")
    assert sorted(lease.key.object for lease in leases) == ["ns/a", "ns/b", "ns/c"]
    assert {lease.fails for lease in leases} == {0}


def test_lane_without_declared_limits_waits_in_redis(bench):
    queue = bench.process()
    queue.add([claim("a")])
    assert bench.woken == []
    assert queue.take("d", ["claims"]) is None
    queue.set_limits("claims|d", 1)
    assert bench.woken == ["drv.d"]
    assert bench.take(queue, claim("a"))


def forget_wake_up(bench) -> None:
    """Simulate the time after which an unanswered wake-up is no longer awaited."""
    bench.client.delete(NAMES["woken"].full + "drv.d")
    bench.woken.clear()


def test_one_message_announces_all_work_of_a_list(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    queue.add([claim("c"), volume_key("d", "pvc-a")])
    assert bench.woken == ["drv.d"]
    assert queue.take("d", ["claims", "volumes"], is_woken=True)
    assert bench.woken == ["drv.d"] * 2, "an idle thread joins as long as there is work"
    assert queue.take("d", ["claims", "volumes"])
    assert bench.woken == ["drv.d"] * 2, "one is on its way"
    assert queue.take("d", ["claims", "volumes"], is_woken=True)
    assert queue.take("d", ["claims", "volumes"], is_woken=True)
    assert bench.woken == ["drv.d"] * 3, "nothing is left to announce"


def test_lost_message_is_sent_again_and_a_waiting_one_is_not(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    queue.pump(period_seconds=0)
    assert bench.woken == ["drv.d"]
    forget_wake_up(bench)
    bench.client.lpush("drv.d", "one that nobody fetches")
    queue.pump(period_seconds=0)
    assert bench.woken == []
    bench.client.rpop("drv.d")
    forget_wake_up(bench)
    queue.pump(period_seconds=0)
    assert bench.woken == ["drv.d"]
    assert 0 < bench.client.pttl(NAMES["woken"].full + "drv.d") <= 2000


def test_a_thread_that_takes_the_next_key_itself_wakes_nobody(bench, start_queue):
    queue = start_queue(concurrency=1)
    queue.add([claim("a"), claim("b"), claim("c")])
    for takes_next, woken in ((True, []), (False, ["drv.d"])):
        lease = queue.take("d", ["claims"], is_woken=True)
        forget_wake_up(bench)
        lease.takes_next = takes_next
        queue.done(lease)
        assert bench.woken == woken


def test_keys_that_an_older_release_had_chosen_are_taken(bench, start_queue):
    """After an upgrade, the keys in the older release's sets of admitted keys are taken."""
    queue = start_queue()
    queue.add([claim("b")])
    bench.client.zadd(NAMES["ticketed"].full + "claims|d", {claim("a").text: bench.now_ms})
    queue.add([claim("a")])
    bench.client.zrem(NAMES["ready"].full + "claims|d", claim("a").text)
    bench.advance(6)
    queue.heartbeat()
    queue.pump()
    assert bench.client.keys(NAMES["ticketed"].full + "*") == []
    assert {lease.key for lease in take_all(queue, "d", "claims")} == {claim("a"), claim("b")}


def test_one_sweep_per_period_over_all_processes(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    queue.pump(period_seconds=30)
    forget_wake_up(bench)
    bench.advance(20)
    queue.heartbeat()
    queue.pump(period_seconds=30)
    assert bench.woken == []
    queue.pump(period_seconds=0)
    assert bench.woken == ["drv.d"]


def test_a_retry_starts_when_it_is_due_not_with_the_next_sweep(bench, start_queue):
    """A retry starts when it is due. Only leases and lost messages are checked once per period."""
    queue = start_queue()
    assert queue.pump(period_seconds=30) == 30
    queue.add([claim("a")], delay_seconds=1)
    queue.add([claim("b")], delay_seconds=1.2)
    assert queue.pump(period_seconds=30) == 1
    assert bench.due == []
    bench.advance(1)
    assert queue.pump(period_seconds=30) == pytest.approx(0.2)
    assert bench.due == [claim("a")]
    bench.advance(0.199)
    assert queue.pump(period_seconds=30) == 0.02, "not one round trip per key"


def test_forget_drops_counter_and_delayed_entry(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    queue.fail(bench.run_next(queue), **BACKOFF, memo="x")
    queue.forget([claim("a")])
    left = {name.decode() for name in bench.client.keys(PREFIX + "*")}
    assert not left & {NAMES["fails"].full, NAMES["delayed"].full, NAMES["memos"].full + "d"}


def test_stats_count_and_age_what_waits(bench, start_queue):
    queue = start_queue(concurrency=2)
    queue.add([claim(str(i)) for i in range(5)])
    queue.add([claim("later")], delay_seconds=60)
    bench.run_next(queue)
    bench.advance(1.5)
    stats = queue.stats()["claims|d"]
    assert (stats.ready, stats.running, stats.delayed) == (4, 1, 1)
    assert stats.head_age_seconds == stats.untaken_seconds == 1.5
    assert stats.limits is not None
    assert stats.limits.concurrency == 2


def test_deletions_take_turns_by_the_claims_namespaces(bench, start_queue):
    """G12: a namespace that deletes a hundred volumes does not delay the one volume of another."""
    queue = start_queue(concurrency=1)
    queue.add([volume_key("d", f"pvc-{i:03}", "loud") for i in range(100)])
    queue.add([volume_key("d", "pvc-calm", "calm")])
    order = []
    for _ in range(3):
        lease = bench.run_next(queue)
        order.append(lease.key.tenant)
        queue.done(lease)
    assert order == ["loud", "calm", "loud"]


def test_a_counted_release_is_a_failure_without_a_back_off_step(bench, start_queue):
    """A counted release makes the next pass a retry, without a step of the back-off.

    A pass that could not end properly is no first attempt.
    """
    queue = start_queue()
    queue.add([claim("a")])
    for fails in range(3):
        lease = bench.run_next(queue)
        assert lease.fails == fails
        assert queue.release(lease, delay_seconds=2, count=True)
        bench.advance(2)
        queue.heartbeat()
        queue.pump(period_seconds=0)
