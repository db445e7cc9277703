"""The real scripts against a model: random steps, deaths, repetitions, losses and clock jumps."""

# ruff: noqa: FBT003 - rules are called with their arguments in place

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.queue_ends import ENDS
from tests.support.queue_keys import (
    DRIVER,
    KEYS,
    KINDS_OF,
    LANES,
    LISTS,
    LOCKS,
    NAMES_OF_LOCKS,
    list_of,
)
from tests.support.queue_model import TTL_MS, Held, LossyScripts, QueueModel, modes
from tests.support.queue_state import check
from workers.errors import LeaseLost
from workers.queue.keys import Key
from workers.queue.leases import Lease
from workers.queue.locks import Lock, Mode
from workers.queue.names import NAMES
from workers.queue.records import peek
from workers.queue.workqueue import WorkQueue

ANY_LOCK = st.builds(Lock, st.sampled_from(NAMES_OF_LOCKS), st.sampled_from(Mode))


def written_mark(lease: Lease) -> str:
    """Return the text of the mark that a lease has written, or ""."""
    _, raw = lease.written.get("marks", ("", b"{}"))
    return str((peek(raw) or {}).get("text", ""))


class QueueMachine(RuleBasedStateMachine):
    """Each rule applies one action to Redis and to the model, which must then be equal."""

    client: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.now = 1_700_000_000_000
        self.model = QueueModel()
        self.is_swept = True  # whether a sweep ran since the wake-up flags expired
        self.leases: list[Lease] = []
        self.replica: tuple[QueueModel, dict[bytes, bytes], set[str]] | None = None
        # True if the present epoch began before any process that knew an earlier epoch returned.
        self.began_blind = True
        self.owed: set[str] = set()  # added and not finished since
        self.queues = [self._start_process() for _ in range(3)]
        for lane in LANES:
            for queue in self.queues:
                queue.set_limits(lane, 2)
            self.model.limits[lane] = 2
        self.add(KEYS[::2], 0, False)  # random steps alone rarely reach the end of a lease
        for process in range(4):
            self.deliver_message(process % 3, "run", False)

    def _start_process(self) -> WorkQueue:
        queue = WorkQueue(
            self.client,
            publish=self._publish,
            lease_ttl_seconds=TTL_MS / 1000,
            clock=lambda: self.now / 1000,
            now_ms=lambda: self.now,
        )
        lossy = LossyScripts(self.client, lambda: self.now)
        queue.scripts = queue._heartbeats = lossy
        queue._leases._scripts = queue._leases._heartbeats = lossy
        self._expect_heartbeat(queue)
        queue.register_process()
        return queue

    def _expect_heartbeat(self, queue: WorkQueue) -> set[str]:
        session = queue._leases.session
        if not self.model.is_alive:
            self.began_blind = not session.epoch and not self.model.has_epoch
        held = [
            (
                lease.key.text,
                Held(
                    session.process_id,
                    modes(lease.locks),
                    lease.token,
                    lease.fence,
                    mark=written_mark(lease),
                ),
            )
            for lease in queue._leases.held.values()
        ]
        epoch = (self.client.get(NAMES["epoch"].full) or b"").decode()
        return self.model.heartbeat(
            session.process_id,
            held,
            self.now,
            known=bool(session.epoch),
            is_same=session.epoch == epoch,
        )

    def _publish(self, lists: list[str]) -> None:
        for name in lists:
            self.client.lpush(name, "work is due")

    # -- rules ---------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True),
        delay=st.sampled_from([0, 0, 0, 2500]),
        replay=st.booleans(),
    )
    def add(self, keys: list[Key], delay: int, replay: bool) -> None:
        for key in keys:
            self.model.add(key.text, self.now, delay)
            self.owed.add(key.text)
        self._do(0, replay, lambda queue: queue.add(keys, delay_seconds=delay / 1000))

    @rule(
        process=st.integers(0, 2),
        fate=st.sampled_from(["run", "run", "run", "doubled", "lost", "unlocked"]),
        replay=st.booleans(),
    )
    def deliver_message(self, process: int, fate: str, replay: bool) -> None:
        lists = LISTS[process % 2 :] + LISTS[: process % 2]
        name = next((name for name in lists if self.client.rpop(name)), None)
        if name is None or fate == "lost":
            return
        if fate == "doubled":
            self.client.lpush(name, "work is due")
        self._take(process, name, replay, is_woken=True, is_locked=fate != "unlocked")

    def _take(
        self,
        process: int,
        name: str,
        replay: bool,
        *,
        is_woken: bool = False,
        is_locked: bool = True,
    ) -> None:
        queue = self.queues[process]
        open_lanes = [
            lane for lane in LANES if list_of(lane) == name and self.model.may_take(lane, self.now)
        ]
        lease = self._do(
            process, replay, lambda queue: queue.take(DRIVER, KINDS_OF[name], is_woken=is_woken)
        )
        assert (lease is not None) == bool(open_lanes), f"{open_lanes} are open"
        if lease is None:
            self._is_announced()
            return
        key = lease.key.text
        self.model.taken(queue._leases.session.process_id, key, self.now)
        self.model.leases[key].token = lease.token
        self.model.leases[key].fence = lease.fence
        self._is_announced()
        if is_locked:  # otherwise the process hangs here
            expected = self.model.enter(key, modes(LOCKS[key]))
            entered = self._do(process, replay, lambda queue: queue.enter(lease, LOCKS[key]))
            assert entered == expected
            self._is_announced()
            if not entered:
                return
        self._work_on(lease)

    def _work_on(self, lease: Any) -> None:
        if lease is None:
            return
        key = lease.key.text
        self._nobody_else_works_on(lease)
        assert lease.fails == self.model.fails.get(key, 0)
        assert lease.mark.get("text", "") == self.model.marks.get(key, "")
        self.leases.append(lease)
        self.owed.discard(key)

    @rule(
        which=st.integers(0, 99),
        how=st.sampled_from(["done", *ENDS]),
        replay=st.booleans(),
        lock=ANY_LOCK,
        goes_on=st.booleans(),
    )
    def end_lease(
        self, which: int, how: str, replay: bool, lock: Lock | None, goes_on: bool = False
    ) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(which % len(self.leases))
        key = lease.key.text
        is_owner = self._is_owner(lease)
        # A repetition in another epoch than the first call would count as a lost lease: one pass
        # more.
        epoch = self.client.get(NAMES["epoch"].full)
        replay = replay and lease.session.epoch.encode() == epoch
        if not is_owner:
            self.model.end_lost(key, written_mark(lease))
        process = [one._leases.session for one in self.queues].index(lease.session)
        lease.takes_next = goes_on
        in_model, for_real = ENDS[how]
        if is_owner:
            in_model(self.model, key, self.now, lock or Lock(""))
        ended = self._do(
            process,
            replay,
            lambda queue: for_real(queue, lease, lock or Lock("")),
        )
        assert ended == is_owner
        if not is_owner or how != "done":
            self.owed.add(key)
        if goes_on:
            self._take(process, list_of(key), replay)
        self._is_announced()

    @rule(
        which=st.integers(0, 99),
        locks=st.lists(ANY_LOCK, min_size=1, max_size=2, unique_by=lambda lock: lock.name),
        replay=st.booleans(),
    )
    def acquire_more(self, which: int, locks: list[Lock], replay: bool) -> None:
        """A pass finds out which other locks it needs, and gets all of them or none."""
        lease = self._held(which)
        if lease is None:
            return
        alone = {name: mode for name, mode in modes(lease.locks).items() if mode == "x"}
        wanted = {name: alone.get(name, mode) for name, mode in modes(locks).items()}
        expected = self.model.acquire(lease.key.text, wanted)
        busy = self._do(0, replay, lambda queue: queue.acquire(lease, *locks))
        assert (busy and busy.name) == expected
        self._has_its_locks(lease)

    @rule(which=st.integers(0, 99), name=st.sampled_from(NAMES_OF_LOCKS), replay=st.booleans())
    def give_one_back(self, which: int, name: str, replay: bool) -> None:
        lease = self._held(which)
        if lease is None:
            return
        self.model.unlock(lease.key.text, name)
        self._do(0, replay, lambda queue: queue.unlock(lease, name))
        self._has_its_locks(lease)

    @rule(which=st.integers(0, 99), text=st.sampled_from(["", "a", "b"]), replay=st.booleans())
    def mark(self, which: int, text: str, replay: bool) -> None:
        """Only the owner can write the mark, and the next owner reads it."""
        if not self.leases:
            return
        lease = self.leases[which % len(self.leases)]
        is_owner = lease.is_held() and self._is_owner(lease)
        try:
            self._do(0, replay, lambda queue: queue.mark(lease, {"text": text} if text else {}))
        except LeaseLost:
            assert not is_owner
        else:
            assert is_owner
            self.model.marks.pop(lease.key.text, None)
            if text:
                self.model.marks[lease.key.text] = text

    def _has_its_locks(self, lease: Lease) -> None:
        """A replica that lagged may still have a released lock, or may not have a new lock yet."""
        if lease.session.epoch.encode() == self.client.get(NAMES["epoch"].full):
            assert modes(lease.locks).items() <= self.model.leases[lease.key.text].locks.items()

    def _is_owner(self, lease: Lease) -> bool:
        held = self.model.leases.get(lease.key.text)
        return held is not None and held.token == lease.token

    def _held(self, which: int) -> Lease | None:
        held = [lease for lease in self.leases if lease.is_held() and self._is_owner(lease)]
        return held[which % len(held)] if held else None

    @rule(step=st.sampled_from([50, 700, 2100, 5000]))
    def time_passes(self, step: int) -> None:
        self.now += step
        if step > 2000:  # the flag of an unanswered wake-up expires
            for name in LISTS:
                self.client.delete(NAMES["woken"].full + name)
            self.is_swept = False

    @rule(process=st.integers(0, 2), replay=st.booleans())
    def heartbeat(self, process: int, replay: bool) -> None:
        queue = self.queues[process]
        for _ in range(1 + replay):
            expected = self._expect_heartbeat(queue)
        self.model.limits |= dict.fromkeys(LANES, 2)
        # This also sends the messages that the heartbeat leaves to the next pump.
        lost, _ = self._do(process, replay, lambda q: (q.heartbeat(), q._wakeups.publish([])))
        assert lost == bool(expected)
        assert {lease.token for lease in self.leases if lease.is_lost} >= expected

    @rule()
    def pump(self) -> None:
        self.model.sweep(self.now)
        self._do(0, False, lambda queue: queue.pump(period_seconds=0))
        self.is_swept = True
        self._is_announced()

    @rule(process=st.integers(0, 2), is_killed=st.booleans())
    def process_ends(self, process: int, is_killed: bool) -> None:
        """The leases of a killed process expire; a closed process hands its leases over at once."""
        old = self.queues[process]
        ours = [lease for lease in self.leases if lease.session is old._leases.session]
        self.leases = [lease for lease in self.leases if lease not in ours]
        self.owed |= {lease.key.text for lease in ours}
        if not is_killed:
            self.model.close(old._leases.session.process_id, self.now)
            self._do(process, False, lambda queue: queue.close())
        self.queues[process] = self._start_process()
        for lane in LANES:
            self.model.limits[lane] = 2
            self._do(process, False, lambda queue, lane=lane: queue.set_limits(lane, 2))

    @rule(lane=st.sampled_from(LANES), is_paused=st.booleans(), replay=st.booleans())
    def pause_or_resume(self, lane: str, is_paused: bool, replay: bool) -> None:
        if is_paused:
            self.model.paused.add(lane)
            self._do(0, replay, lambda queue: queue.pause(lane, "operator said so"))
        else:
            self.model.paused.discard(lane)
            self._do(0, replay, lambda queue: queue.resume(lane))

    @rule(key=st.sampled_from(KEYS), replay=st.booleans())
    def forget(self, key: Key, replay: bool) -> None:
        """The object was deleted; a waiting key may run and find nothing."""
        self.model.forget(key.text)
        is_running = any(one.key == key and self._is_owner(one) for one in self.leases)
        comes_back = self.model.dirty if is_running else self.model.leases
        if not (self.model.is_waiting(key.text) or key.text in comes_back):
            self.owed.discard(key.text)
        self._do(0, replay, lambda queue: queue.forget([key]))

    @rule()
    def redis_loses_everything(self) -> None:
        """The watcher notices the new epoch and adds every undecided object again."""
        self.client.flushall()
        # fencing numbers start at the time, and no Redis loses its data within a millisecond
        self.now += 1
        self.model = QueueModel()
        self._add_again()

    @rule()
    def replica_is_in_step(self) -> None:
        """From now on the replica lags, until it is promoted."""
        data = {name: self.client.dump(name) for name in self.client.scan_iter()}
        self.replica = deepcopy(self.model), data, set(self.owed)

    @rule(is_in_step=st.booleans())
    def redis_begins_a_new_run(self, is_in_step: bool) -> None:
        """Redis restarts with all data, or a replica without the last writes is promoted."""
        if self.replica is not None and not is_in_step:
            self.model, data, owed = self.replica
            self.client.flushall()
            for name, value in data.items():
                self.client.restore(name, 0, value)
            self.owed |= owed
        self.replica = None
        self.now += 1
        epoch = NAMES["epoch"].full
        life = (self.client.get(epoch) or b"").decode().rpartition(":")[0]
        if life:
            self.client.set(epoch, f"{life}:otherrun{self.now}")
        self.model.is_alive = False
        self._add_again()

    def _add_again(self) -> None:
        self.owed |= {lease.key.text for lease in self.leases}
        again = [key for key in KEYS if key.text in self.owed]
        for key in again:
            self.model.add(key.text, self.now, 0)
        self._do(0, False, lambda queue: queue.add(again))

    def _do(self, process: int, replay: bool, action: Callable[[WorkQueue], Any]) -> Any:
        queue = self.queues[process]
        scripts = queue.scripts
        assert isinstance(scripts, LossyScripts)
        scripts.loses_reply = replay
        result = action(queue)
        scripts.loses_reply = False
        for name in LISTS:  # the flag must follow the test's clock, not the machine's
            self.client.persist(NAMES["woken"].full + name)
        return result

    def _is_announced(self) -> None:
        """Assert that work that can be taken is announced, unless the next sweep will do it."""
        if self.model.may_idle or not self.is_swept:
            return
        for lane in LANES:
            name = list_of(lane)
            is_told = self.client.exists(NAMES["woken"].full + name, name)
            assert is_told or not self.model.may_take(lane, self.now), f"{lane} idles"

    def _nobody_else_works_on(self, lease: Lease) -> None:
        """I-1, G1: assert one holder per volume, as the holders see it, and that newer fences are
        higher.

        This holds through restarts, losses of all data and promotions of replicas that lag. Only if
        all data is lost and a new process connects first, holders count from their next heartbeat.
        """
        epoch = self.client.get(NAMES["epoch"].full)
        wanted = modes(lease.locks)
        for other in self.leases:
            for name in wanted.keys() & modes(other.locks).keys():
                if "x" not in (wanted[name], modes(other.locks)[name]):
                    continue
                assert other.fence < lease.fence
                counts = not self.began_blind or other.session.epoch.encode() == epoch
                assert not (other.is_held() and counts), f"two holders of {name}"

    @invariant()
    def redis_matches_the_model(self) -> None:
        check(self.client, self.model, LANES)

    @invariant()
    def work_is_announced(self) -> None:
        self._is_announced()

    def teardown(self) -> None:
        """G4, I-6: after any history, every owed key is worked on and all sets become empty."""
        for lane in LANES:
            self.pause_or_resume(lane, False, False)
        self.heartbeat(0, False)
        for _ in range(60):
            if not self.owed and not self.leases and not self._is_anything_left():
                return
            for process in range(3):
                self.heartbeat(process, False)
            while self.leases:
                self.end_lease(0, "done", False, None)
            for process in range(3):
                for name in LISTS:
                    self._take(process, name, False)
            self.now += 1000
            self.pump()
            self.redis_matches_the_model()
        raise AssertionError(f"never finished: {self.owed} {self.model}")

    def _is_anything_left(self) -> bool:
        one = self.model
        return any((one.ready, one.blocked, one.leases, one.delayed))


def test_scripts_behave_like_the_model(redis_client: redis.Redis) -> None:
    """G1-G4, G10-G12, I-1..I-4 and I-8 hold over random histories, and nothing is lost."""
    machine = type("Machine", (QueueMachine,), {"client": redis_client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
