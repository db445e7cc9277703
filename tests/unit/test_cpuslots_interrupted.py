"""Slots add up: interrupts in the wait, time-outs at the moment of the turn, failing passes."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import pytest

from workers.cpuslots import CpuSlots, _Waiter, waiting


def test_a_slot_is_not_given_to_one_who_left_the_queue(monkeypatch):
    """KeyboardInterrupt or SystemExit in the wait: what is given to nobody is lost for good."""
    slots = CpuSlots(1, 3600.0)

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    made = _Waiter.__init__

    def make(self, number):
        made(self, number, Interrupted())

    with slots.taken("a"), monkeypatch.context() as patch:
        patch.setattr(_Waiter, "__init__", make)
        with pytest.raises(KeyboardInterrupt), slots.taken("b"):
            pass
    assert slots._inside == 0
    assert not slots._waiters
    assert not slots._begun


@pytest.mark.parametrize("patience", [0.0, 0.0005, 0.002, 3600.0])
def test_counts_add_up_whatever_happens(patience):
    slots = CpuSlots(2, patience)
    end = time.monotonic() + 0.5

    def work(seed):
        chance = random.Random(seed)
        while time.monotonic() < end:
            tenant = chance.choice("abc")
            with suppress(ValueError), slots.taken(tenant):
                for _ in range(chance.randrange(1, 4)):
                    with waiting():
                        if chance.random() < 0.3:
                            time.sleep(0.0005)
                    if chance.random() < 0.1:
                        raise ValueError
                    if not slots.may_stay(tenant):
                        break

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert not any(one.is_alive() for one in threads)
    assert (slots._inside, dict(slots._begun), slots._waiters) == (0, {}, {})
