"""Kept connections: few are opened at a time, and who waits takes one that comes back."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import wait_until
from workers.kube.kept import MOST_OPENED_AT_ONCE, Kept

LONG = 60.0


class Connection:
    """One that is fit until somebody says otherwise."""

    def __init__(self):
        self.is_fit, self.is_closed = True, False

    def close(self):
        self.is_closed = True


class Opener:
    """Opens one when it is allowed to; `may_open` is given once for each."""

    def __init__(self):
        self.may_open = threading.Semaphore(0)
        self.errors = []
        self.inside, self.most, self.opened = 0, 0, []
        self.seconds = []
        self._lock = threading.Lock()

    def __call__(self, seconds):
        with self._lock:
            self.seconds.append(seconds)
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            assert self.may_open.acquire(timeout=LONG)
            with self._lock:
                if self.errors:
                    raise self.errors.pop(0)
                self.opened.append(Connection())
                return self.opened[-1]
        finally:
            with self._lock:
                self.inside -= 1


@pytest.fixture
def opener():
    return Opener()


@pytest.fixture
def kept(opener, monkeypatch):
    monkeypatch.setattr("workers.kube.kept.PATIENCE_SECONDS", LONG)
    return Kept(opener, most=3)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(32) as threads:
        yield threads


def opening(kept, opener, pool, more=0):
    """As many as may be opened at a time are being opened; further ones wait."""
    asked = [pool.submit(kept.in_time, LONG) for _ in range(MOST_OPENED_AT_ONCE)]
    wait_until(lambda: opener.inside == MOST_OPENED_AT_ONCE, LONG, "all are at it")
    asked += [pool.submit(kept.in_time, LONG) for _ in range(more)]
    wait_until(lambda: len(kept._waiting) == more, LONG, "the others wait")
    return asked


def test_the_one_used_last_comes_first_and_one_that_ended_goes(kept):
    first, second, ended = Connection(), Connection(), Connection()
    for one in (first, second, ended):
        kept.give_back(one)
    ended.is_fit = False
    assert [kept.at_once() for _ in range(3)] == [second, first, None]
    assert ended.is_closed


def test_so_many_are_kept(kept):
    given = [Connection() for _ in range(5)]
    for one in given:
        kept.give_back(one)
    assert [one.is_closed for one in given] == [False, False, False, True, True]


def test_few_are_opened_at_a_time(kept, opener, pool):
    asked = opening(kept, opener, pool, more=10)
    opener.may_open.release(100)
    assert len({id(one.result(LONG)) for one in asked}) == len(asked)
    assert opener.most == MOST_OPENED_AT_ONCE
    assert (kept._opening, len(kept._waiting)) == (0, 0)


def test_who_waits_takes_one_that_comes_back(kept, opener, pool):
    """In the order in which they came, and without a greeting."""
    *first, second, third = opening(kept, opener, pool, more=2)
    back = Connection()
    kept.give_back(back)
    assert second.result(LONG) is back
    assert not third.done()
    opener.may_open.release(100)
    assert third.result(LONG) in opener.opened
    assert len({one.result(LONG) for one in first}) == len(opener.opened) - 1


def test_one_that_came_back_ended_is_no_use_to_who_waited(kept, opener, pool):
    *_, waiting = opening(kept, opener, pool, more=1)
    ended = Connection()
    ended.is_fit = False
    kept.give_back(ended)
    wait_until(lambda: ended.is_closed, LONG, "it is dropped")
    opener.may_open.release(100)
    assert waiting.result(LONG) in opener.opened


def test_one_that_failed_gives_its_turn_on(kept, opener, pool):
    asked = opening(kept, opener, pool, more=10)
    opener.errors = [OSError("refused"), OSError("refused")]
    opener.may_open.release(100)
    ends = [one.exception(LONG) for one in asked]
    assert [str(error) for error in ends if error] == ["refused"] * 2
    assert opener.most == MOST_OPENED_AT_ONCE
    assert (kept._opening, len(kept._waiting)) == (0, 0)


def test_nobody_waits_for_long(kept, opener, pool, monkeypatch):
    """Of a server that answers no greeting each would else wait for all before it."""
    opening(kept, opener, pool)
    monkeypatch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.01)
    late = [pool.submit(kept.in_time, LONG) for _ in range(10)]
    wait_until(lambda: opener.inside == MOST_OPENED_AT_ONCE + 10, LONG, "all are at it")
    opener.may_open.release(100)
    assert len({id(one.result(LONG)) for one in late}) == 10
    wait_until(lambda: kept._opening == 0, LONG, "all were opened")
    assert not kept._waiting


def test_who_waited_in_vain_leaves_its_place(kept, opener, pool):
    *first, last = opening(kept, opener, pool, more=1)
    with pytest.raises(TimeoutError):
        kept.in_time(0.01)
    opener.may_open.release(100)
    assert last.result(LONG) in opener.opened
    assert len([one.result(LONG) for one in first]) == MOST_OPENED_AT_ONCE
    assert (kept._opening, len(kept._waiting)) == (0, 0)


def test_the_time_to_open_one_is_what_the_wait_left(kept, opener, pool):
    opener.may_open.release(100)
    kept.in_time(7.0)
    assert 0 < opener.seconds[-1] <= 7.0
    with pytest.raises(TimeoutError):
        kept.in_time(0.0)
    assert len(opener.seconds) == 1
    assert kept._opening == 0


@pytest.mark.parametrize("gift", ["a connection", "a turn", "nothing"])
def test_an_interrupted_wait_passes_on_what_came_for_it(kept, opener, pool, monkeypatch, gift):
    """A signal of the main thread, say: else a place would be lost for good."""
    opening(kept, opener, pool)
    back = Connection()

    def interrupted(turn, _seconds):
        if gift == "a connection":
            kept.give_back(back)
        elif gift == "a turn":
            opener.may_open.release(1)
            wait_until(lambda: turn not in kept._waiting, LONG, "its turn has come")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("workers.kube.kept._Turn.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept.in_time(LONG)
    assert (back in kept.idle) == (gift == "a connection")
    opener.may_open.release(100)
    wait_until(lambda: kept._opening == 0, LONG, "all were opened")
    assert not kept._waiting


def test_many_threads_lose_no_place(kept, opener, pool):
    """Random: takes, failures and returns, until everything was given back."""
    opener.may_open.release(10_000)
    opener.errors = [OSError("refused") for _ in range(20)]
    ends = time.monotonic() + 2.0

    def work(_number):
        done = 0
        while time.monotonic() < ends and done < 300:
            try:
                one = kept.at_once() or kept.in_time(LONG)
            except OSError:
                continue
            done += 1
            one.is_fit = done % 7 > 0
            kept.give_back(one)
        return done

    assert all(pool.map(work, range(32)))
    assert (kept._opening, len(kept._waiting)) == (0, 0)
    assert len(kept.idle) <= 3
