"""A few passes of a process run side by side; who waits for others does not count."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

import pytest

from tests.support.waiting import wait_until
from workers.cpuslots import CpuSlots, waiting

LONG = 3600.0
SOON = 60.0


class Passes:
    """Threads that take a slot and stay in it until told to go."""

    def __init__(self, slots: CpuSlots) -> None:
        self.slots = slots
        self.arrived: list[int] = []
        self.changed = threading.Condition()
        self.go_on = threading.Event()
        self.pool = ThreadPoolExecutor(8)

    def begin(self, number: int, tenant: str = "", *, away: bool = False) -> Future[None]:
        """A pass; with `away` it waits for somebody else's answer."""
        return self.pool.submit(self._run, number, tenant, away)

    def _run(self, number: int, tenant: str, away: bool) -> None:
        with self.slots.taken(tenant):
            if away:
                with waiting():
                    self._stay(number)
            else:
                self._stay(number)

    def _stay(self, number: int) -> None:
        with self.changed:
            self.arrived.append(number)
            self.changed.notify_all()
        self.go_on.wait(SOON)

    def wait_for(self, count: int) -> None:
        """Until so many have come in."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.arrived) >= count, SOON)

    def end(self, *futures: Future[None]) -> None:
        """All may go."""
        self.go_on.set()
        for one in futures:
            one.result(SOON)
        self.pool.shutdown()


def test_no_more_are_let_in_than_there_are_slots():
    passes = Passes(CpuSlots(2, LONG))
    begun = [passes.begin(number) for number in range(5)]
    passes.wait_for(2)
    assert len(passes.arrived) == 2
    passes.end(*begun)
    assert sorted(passes.arrived) == [0, 1, 2, 3, 4]


def test_the_tenant_with_the_fewest_passes_comes_next():
    """SEC-4: whoever came first among equals."""
    slots = CpuSlots(1, LONG)
    passes = Passes(slots)
    begun = [passes.begin(0, "loud")]
    passes.wait_for(1)
    for number, tenant in enumerate(("loud", "loud", "calm", "loud"), start=1):
        begun.append(passes.begin(number, tenant))
        wait_until(lambda: sum(map(len, slots._waiters.values())) >= number, SOON, "it waits")  # noqa: B023
    passes.end(*begun)
    assert passes.arrived == [0, 3, 1, 2, 4]


def test_who_waits_for_others_gives_the_slot_away():
    passes = Passes(CpuSlots(1, LONG))
    begun = [passes.begin(number, away=True) for number in range(5)]
    passes.wait_for(5)
    passes.end(*begun)


def test_after_the_wait_the_slot_counts_again_and_a_failure_gives_it_back():
    slots = CpuSlots(1, LONG)
    with pytest.raises(ValueError, match="driver"), slots.taken(), waiting():
        raise ValueError("driver")
    passes = Passes(slots)
    first = passes.begin(0)
    passes.wait_for(1)
    second = passes.begin(1)
    assert passes.arrived == [0]
    passes.end(first, second)


def test_slots_that_are_never_given_back_stop_nobody():
    """A pass that hangs outside of `waiting` costs the others their patience, no more."""
    passes = Passes(CpuSlots(1, 0.01))
    begun = [passes.begin(number) for number in range(3)]
    passes.wait_for(3)
    passes.end(*begun)


def test_threads_of_a_pass_that_waits_for_them_take_and_give_nothing():
    """MR-011: the resizer asks for size and class side by side."""
    slots = CpuSlots(1, LONG)
    with slots.taken():
        with waiting():
            inner = copy_context()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(inner.run, _ask).result(SOON)
            with slots.taken():
                pass
        late = threading.Thread(target=_take, args=(slots,), daemon=True)
        late.start()
        late.join(0.05)
        assert late.is_alive(), "the slot is taken again"
    late.join(SOON)
    assert not late.is_alive()


def _ask() -> None:
    with waiting():
        pass


def _take(slots: CpuSlots) -> None:
    with slots.taken():
        pass


def test_without_a_slot_waiting_means_nothing():
    with waiting(), waiting():
        pass


@pytest.mark.parametrize(
    ("waiting_tenant", "may_stay"), [("mine", True), ("calm", False)], ids=["own", "another"]
)
def test_who_ended_a_pass_stays_unless_another_has_a_better_right(waiting_tenant, may_stay):
    """SEC-4: to let in one of the same tenant would cost a wake-up and help nobody."""
    slots = CpuSlots(1, LONG)
    passes = Passes(slots)
    assert slots.may_stay("mine")
    with slots.taken("mine"):
        waits = passes.begin(1, waiting_tenant)
        wait_until(lambda: slots._waiters, SOON, "it waits")
        assert slots.may_stay("mine") == may_stay
    passes.end(waits)
