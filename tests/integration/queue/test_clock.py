"""The clock of the Redis host is set back or forward in each state that a key can have.

The tests use a real Redis whose wall clock steps (tests/support/wallclock.py). Processes wait by
their own clocks. A step must not change when something is due, neither to earlier nor to later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
import redis

from tests.support.redis_server import RedisServer
from tests.support.taking import take
from tests.support.waiting import wait_until
from tests.support.wallclock import WallClock
from workers.kube.pauserecord import Recorded
from workers.queue.clock import read_clock
from workers.queue.connection import connect
from workers.queue.inspect import read_key
from workers.queue.keys import Key, claim_key
from workers.queue.links import Links
from workers.queue.locks import Lock
from workers.queue.names import NAMES
from workers.queue.pauses import Pauses
from workers.queue.periods import Periods
from workers.queue.workqueue import WorkQueue

HOUR, DAY = 3600, 24 * 3600
STEPS = {"back 1 h": -HOUR, "forward 1 h": HOUR, "back 1 d": -DAY, "forward 1 d": DAY}
SLOW = 15.0  # for a loaded machine; every step is longer
LANE = "claims|d"


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    return WallClock(tmp_path_factory.mktemp("clock") / "redis", ahead_seconds=HOUR)


@pytest.fixture(scope="module")
def stepped_redis(redis_binary, tmp_path_factory, clock):
    server = RedisServer(redis_binary, tmp_path_factory.mktemp("redis"), env=clock.env).start()
    yield server
    server.kill()


@dataclass
class Fleet:
    """Two processes that use a Redis whose clock steps: `one` may die, `two` continues to work."""

    client: redis.Redis
    clock: WallClock
    messages: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.one, self.two = self.process(), self.process()

    def process(self) -> WorkQueue:
        queue = WorkQueue(self.client, publish=self.messages.extend)
        queue.register_process()
        queue.set_limits(LANE, 10)
        return queue

    def take(self, queue: WorkQueue, name: str):
        lease = take(queue, claim(name), f"pvc-{name}")
        assert lease is not None
        return lease

    def turn(self) -> None:
        """Do the regular work of the processes; `two` begins every key it can take."""
        self.two.heartbeat()
        self.two.pump()
        while self.messages:
            self.messages.pop(0)
            is_woken = True
            while (lease := self.two.take("d", ["claims"], is_woken=is_woken)) is not None:
                is_woken = False
                name = lease.key.object.partition("/")[2]
                if self.two.enter(lease, [Lock(f"pvc-{name}")]):
                    self.begun.append(name)
                    self.two.done(lease)
        time.sleep(0.02)

    def begins(self, name: str) -> float:
        """Wait until `two` begins the key, and return the seconds this takes."""
        start = time.monotonic()
        while name not in self.begun:
            assert time.monotonic() - start < SLOW, f"{name} is held back"
            self.turn()
        return time.monotonic() - start

    def stays(self, name: str, seconds: float) -> None:
        """Assert that the key is not begun for this time."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            self.turn()
            assert name not in self.begun, f"{name} is begun too early"


@pytest.fixture
def fleet(stepped_redis, clock):
    client = connect(stepped_redis.url)
    client.flushall()
    yield Fleet(client, clock)
    client.close()


@pytest.fixture(params=STEPS.values(), ids=STEPS)
def step(request, clock):
    return lambda: clock.step(request.param)


def test_a_retry_is_due_when_its_back_off_is_over(fleet, step):
    fleet.one.add([claim("fails")])
    fleet.one.fail(fleet.take(fleet.one, "fails"), base_seconds=3, cap_seconds=5)
    step()
    fleet.stays("fails", 1.5)
    fleet.begins("fails")


def test_a_key_that_waits_comes_when_its_time_is_over(fleet, step):
    fleet.one.add([claim("waits")])
    fleet.one.release(fleet.take(fleet.one, "waits"), delay_seconds=3)
    step()
    fleet.stays("waits", 1.5)
    fleet.begins("waits")


def test_a_key_added_with_a_delay_comes_then(fleet, step):
    fleet.one.add([claim("later")], delay_seconds=3)
    step()
    fleet.stays("later", 1.5)
    fleet.begins("later")


def test_the_key_of_a_dead_process_is_taken_over(fleet, step):
    fleet.one.add([claim("dead")])
    fleet.take(fleet.one, "dead")
    step()
    fleet.stays("dead", 1.5)
    fleet.begins("dead")


def test_the_lease_of_the_living_stays(fleet, step):
    fleet.one.add([claim("mine")])
    lease = fleet.take(fleet.one, "mine")
    step()
    start = time.monotonic()
    while time.monotonic() - start < 5:
        assert not fleet.one.heartbeat()
        fleet.stays("mine", 0.1)
    lease.check()
    assert fleet.one.done(lease)


def test_a_lost_message_is_sent_again(fleet, step):
    fleet.one.add([claim("lost")])
    fleet.messages.clear()
    step()
    fleet.begins("lost")


def test_a_key_that_waits_for_a_dead_one_s_lock_comes(fleet, step):
    fleet.one.add([claim("holder"), claim("waiter")])
    fleet.take(fleet.one, "holder")
    assert take(fleet.two, claim("waiter"), "pvc-holder") is None
    step()
    fleet.begins("waiter")


def said(fleet, seconds: float) -> str:
    """Return a pause in the ConfigMap's format: its end by the Redis host's clock, and a reason."""
    return f"{round((read_clock(fleet.client).shown_now + seconds) * 1000)} x"


def test_an_operator_s_pause_lasts_as_long_as_he_said(fleet, step):
    """An operator's pause lasts its time through a step
    of the clock, however often the watcher mirrors it.
    """
    pauses, pause = Pauses(fleet.client, fleet.one), said(fleet, 3)
    assert pauses.mirror(Recorded("5", {"driver d": pause}))
    fleet.one.add([claim("paused")])
    step()
    pauses.mirror(Recorded("5", {"driver d": pause}))
    fleet.stays("paused", 1.5)
    pauses.mirror(Recorded("6", {"driver d": pause, "driver e": "0 y"}))
    fleet.begins("paused")


def test_the_pause_of_a_class_lasts_as_long_as_he_said(fleet, step):
    pauses, pause = Pauses(fleet.client, fleet.one), said(fleet, 3)
    pauses.mirror(Recorded("5", {"class gold": pause}))
    step()
    pauses.mirror(Recorded("5", {"class gold": pause}))
    fleet.stays("", 1.0)
    assert "gold" in pauses.classes()

    def is_over() -> bool:
        fleet.turn()
        return not pauses.classes()

    wait_until(is_over, SLOW, "the pause is over")


def test_a_lost_driver_gets_calls_again(fleet, step):
    """The pause of a lost driver expires when no process reports the loss any longer."""
    Links(fleet.client, publish=fleet.messages.extend).lost("d", "socket is gone")
    fleet.one.add([claim("held")])
    assert fleet.messages == []
    paused = NAMES["paused"].full
    for lane, text in fleet.client.hgetall(paused).items():  # shortens the pause from 15 s
        fleet.client.hset(paused, lane, b"%d gone" % (int(text.split()[0]) - 13_000))
    step()
    fleet.begins("held")


def test_a_lane_with_a_rate_gets_its_tokens(fleet, step):
    fleet.one.set_limits(LANE, 10, rate_per_second=2, burst=1)
    fleet.two.set_limits(LANE, 10, rate_per_second=2, burst=1)
    fleet.one.add([claim(name) for name in ("a", "b", "c")])
    fleet.begins("a")
    step()
    fleet.begins("c")


def test_a_throttled_lane_grows_again(fleet, step):
    Links(fleet.client, publish=fleet.messages.extend).throttle(LANE)
    limits = NAMES["limits"].full + LANE
    fleet.client.hset(limits, mapping={"cap": 1, "cap_step": 1000})
    step()
    fleet.one.add([claim("a"), claim("b")])
    fleet.take(fleet.one, "a")  # takes the only place of the lane

    def has_room() -> bool:
        fleet.one.heartbeat()
        fleet.two.heartbeat()
        fleet.two.pump()
        return take(fleet.two, claim("b")) is not None

    wait_until(has_room, SLOW, "the lane takes more than one")


def test_a_call_of_the_dead_is_waited_for_and_no_longer(fleet, step):
    """A dead worker's call blocks a driver that takes one
    call at a time until the call's deadline, and no longer.
    """
    for queue in (fleet.one, fleet.two):
        queue.set_limits(LANE, 1, hold_seconds=3)
    fleet.one.add([claim("dead"), claim("next")])
    fleet.take(fleet.one, "dead")
    fleet.one.close()
    step()
    fleet.stays("next", 1.5)
    fleet.begins("next")


def test_a_new_life_is_quiet_for_a_lease_and_no_longer(fleet, step):
    fleet.client.delete(NAMES["epoch"].full)
    fleet.two.heartbeat()
    fleet.one.add([claim("a")])
    step()
    fleet.begins("a")


def test_limits_stay_while_their_process_lives(fleet, step):
    step()
    for _ in range(20):
        fleet.turn()
    assert fleet.client.exists(NAMES["limits"].full + LANE)
    fleet.one.add([claim("new")])
    assert fleet.begins("new") < 5


def test_work_for_a_node_is_not_dropped(fleet, step):
    key = claim_key("d@node-1", "ns", "a", "u")
    fleet.one.set_limits(key.lane, 1)
    Pauses(fleet.client, fleet.one).mirror(Recorded("5", {"driver d": "0 x"}))
    fleet.one.add([key])
    step()
    for _ in range(20):
        fleet.turn()
    assert read_key(fleet.client, key).position == 1


def test_a_period_is_over_at_its_end(fleet, step):
    periods = Periods(fleet.client)
    assert periods.is_due("poll", 2)
    step()
    start = time.monotonic()
    while time.monotonic() - start < 1:
        fleet.turn()

    def is_due() -> bool:
        fleet.turn()
        return periods.is_due("poll", 2)

    wait_until(is_due, SLOW, "the next period begins")


@pytest.mark.parametrize("steps", [[-HOUR, HOUR], [HOUR, -HOUR], [-DAY, -DAY], [DAY, HOUR, -DAY]])
def test_several_steps_change_nothing_either(fleet, clock, steps):
    fleet.one.add([claim("fails"), claim("dead")])
    fleet.one.fail(fleet.take(fleet.one, "fails"), base_seconds=3, cap_seconds=5)
    fleet.take(fleet.one, "dead")
    for one in steps:
        clock.step(one)
        fleet.stays("fails", 0.3)
    fleet.begins("dead")
    fleet.begins("fails")


def test_a_step_is_felt_in_no_stamp_and_shown_in_each(fleet, step):
    """Stamps ignore a step, but shown times follow it, so
    that people can compare them with other machines' times.
    """
    stamped = time.monotonic()
    fleet.turn()
    before = read_clock(fleet.client)
    # A step takes back the time that the clock showed since its last stamp, and nothing else.
    lost_ms = (time.monotonic() - stamped) * 1000
    step()
    fleet.turn()
    after = read_clock(fleet.client)
    assert -lost_ms <= after.now_ms - before.now_ms < 10_000
    assert abs(after.shown_now - fleet.clock.ahead_seconds - time.time()) < 10
    fleet.one.add([claim("later")], delay_seconds=600)
    due = read_key(fleet.client, claim("later")).due
    assert abs(due - after.shown_now - 600) < 10


def test_the_clock_goes_on_over_the_loss_of_data(fleet, step):
    step()
    fleet.turn()
    before = read_clock(fleet.client)
    fleet.client.flushall()
    fleet.turn()
    assert 0 <= read_clock(fleet.client).now_ms - before.now_ms < 10_000


def test_time_in_which_nobody_called_is_none(fleet, clock):
    """Time without any call does not expire leases.

    After an outage of all processes, the holders have a moment to renew them.
    """
    fleet.one.add([claim("mine")])
    lease = fleet.take(fleet.one, "mine")
    clock.step(60)  # equals a minute in which no script ran
    fleet.stays("mine", 0.5)
    fleet.one.heartbeat()
    assert fleet.one.done(lease)


@pytest.mark.parametrize("keeps_data", [True, False], ids=["with its data", "emptied"])
@pytest.mark.parametrize("seconds", STEPS.values(), ids=STEPS)
def test_redis_starts_again_while_its_host_s_clock_is_set(
    redis_binary, tmp_path, seconds, keeps_data
):
    """Keys and leases survive a restart of Redis with a clock step.

    After a power failure a machine's clock can be wrong, or be corrected.
    """
    clock = WallClock(tmp_path / "clock", ahead_seconds=HOUR)
    (tmp_path / "redis").mkdir()
    server = RedisServer(
        redis_binary, tmp_path / "redis", appendonly=keeps_data, env=clock.env
    ).start()
    client = connect(server.url)
    try:
        fleet = Fleet(client, clock)
        fleet.two.add([claim("mine"), claim("fails"), claim("dead")])
        mine = fleet.take(fleet.two, "mine")
        fleet.two.fail(fleet.take(fleet.two, "fails"), base_seconds=3, cap_seconds=5)
        fleet.take(fleet.one, "dead")
        server.kill()
        clock.step(seconds)
        server.start()
        fleet.two.set_limits(LANE, 10)
        fleet.two.add([claim("new")])
        fleet.begins("new")
        for name in ("fails", "dead") if keeps_data else ():
            fleet.begins(name)
        mine.check()
        assert fleet.two.done(mine)
    finally:
        client.close()
        server.kill()


def test_a_clock_that_two_services_set_in_turns_ends_no_lease_and_no_back_off(fleet, clock):
    """Repeated steps expire no lease and no back-off.

    Each step forward counts as one second at most, as does time without any call.
    """
    fleet.one.add([claim("mine"), claim("fails")])
    lease = fleet.take(fleet.one, "mine")
    fleet.one.fail(fleet.take(fleet.one, "fails"), base_seconds=30, cap_seconds=30)
    for number in range(20):
        clock.step(HOUR if number % 2 else -HOUR)
        assert not fleet.one.heartbeat()
        fleet.stays("fails", 0.1)
    lease.check()
    assert fleet.one.done(lease)


def test_a_replica_on_another_host_goes_on_with_its_master_s_time(
    redis_binary, tmp_path, stepped_redis, fleet
):
    other = WallClock(tmp_path / "clock", ahead_seconds=fleet.clock.ahead_seconds - HOUR)
    (tmp_path / "replica").mkdir()
    replica = RedisServer(redis_binary, tmp_path / "replica", env=other.env).start()
    try:
        promoted = connect(replica.url)
        fleet.one.add([claim("fails"), claim("dead")])
        fleet.one.fail(fleet.take(fleet.one, "fails"), base_seconds=3, cap_seconds=5)
        fleet.take(fleet.one, "dead")
        fleet.turn()
        promoted.replicaof("127.0.0.1", stepped_redis.port)

        def is_there() -> bool:
            return promoted.info("replication").get("master_link_status") == "up"

        wait_until(is_there, SLOW, "the replica has all data")
        promoted.replicaof("no", "one")
        before = read_clock(fleet.client)
        after = Fleet(promoted, other)
        after.turn()
        assert abs(read_clock(promoted).now_ms - before.now_ms) < 10_000
        after.begins("dead")
        after.begins("fails")
    finally:
        replica.kill()
