"""Kept connections: a few are enough, and who waits takes one that comes back."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import wait_until
from workers.kube.kept import ENOUGH, Kept, _Turn

LONG = 60.0


class Connection:
    """One that is fit until somebody says otherwise."""

    def __init__(self):
        self.is_fit, self.is_closed = True, False
        self.opened_at = self.heard_at = 0.0

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


def waiting(kept):
    return len(kept._first) + len(kept._others)


def held(kept, opener, pool, more=0):
    """As many connections as are enough, in use; the askers for further ones wait."""
    opener.may_open.release(ENOUGH)
    first = [kept.in_time(LONG) for _ in range(ENOUGH)]
    asked = [pool.submit(kept.in_time, LONG) for _ in range(more)]
    wait_until(lambda: waiting(kept) == more, LONG, "the others wait")
    return first, asked


def test_the_one_used_last_comes_first_and_one_that_ended_goes(kept, opener, pool):
    (first, second, ended, *_), _ = held(kept, opener, pool)
    for one in (first, second, ended):
        kept.give_back(one)
    ended.is_fit = False
    assert [kept.at_once() for _ in range(3)] == [second, first, None]
    assert ended.is_closed
    assert kept._open == ENOUGH - 1


def test_so_many_are_kept(kept, opener, pool):
    given, _ = held(kept, opener, pool)
    for one in given:
        kept.give_back(one)
    assert [one.is_closed for one in given] == [False] * 3 + [True] * (ENOUGH - 3)
    assert kept._open == 3
    kept.close()
    assert all(one.is_closed for one in given)
    assert kept._open == 0


def test_so_many_are_opened_side_by_side_and_no_more(kept, opener, pool):
    asked = [pool.submit(kept.in_time, LONG) for _ in range(ENOUGH + 10)]
    wait_until(lambda: (opener.inside, waiting(kept)) == (ENOUGH, 10), LONG, "all ask")
    opener.may_open.release(100)
    wait_until(lambda: sum(one.done() for one in asked) == ENOUGH, LONG, "all were opened")
    for one in list(opener.opened):
        kept.give_back(one)
    assert {one.result(LONG) for one in asked} == set(opener.opened)
    assert len(opener.opened) == ENOUGH
    assert not waiting(kept)


def test_who_waits_takes_one_that_comes_back(kept, opener, pool):
    """In the order in which they came, and without a greeting."""
    (back, last, *_), (second, third) = held(kept, opener, pool, more=2)
    kept.give_back(back)
    assert second.result(LONG) is back
    assert not third.done()
    kept.give_back(last)
    assert third.result(LONG) is last
    assert len(opener.opened) == ENOUGH


@pytest.mark.parametrize("end", ["dropped", "given back, but ended", "could not be opened"])
def test_one_that_goes_lets_who_waits_open_another(kept, opener, pool, end):
    if end == "could not be opened":
        opener.may_open.release(ENOUGH - 1)
        first = [kept.in_time(LONG) for _ in range(ENOUGH - 1)]
        failing = pool.submit(kept.in_time, LONG)
        wait_until(lambda: opener.inside == 1, LONG, "it is being opened")
        late = pool.submit(kept.in_time, LONG)
        wait_until(lambda: waiting(kept) == 1, LONG, "the other waits")
        opener.errors = [OSError("refused")]
        opener.may_open.release(1)
        assert str(failing.exception(LONG)) == "refused"
    else:
        (gone, *first), (late,) = held(kept, opener, pool, more=1)
        gone.is_fit = False
        (kept.drop if end == "dropped" else kept.give_back)(gone)
        wait_until(lambda: gone.is_closed, LONG, "it is dropped")
    opener.may_open.release(1)
    assert late.result(LONG) is opener.opened[-1]
    assert opener.opened[-1] not in first
    assert kept._open == ENOUGH


def test_one_that_cannot_be_closed_holds_no_place(kept, opener, pool):
    (odd, *_), (late,) = held(kept, opener, pool, more=1)
    odd.close = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        kept.drop(odd)
    opener.may_open.release(1)
    assert late.result(LONG) in opener.opened


def test_nobody_waits_for_long(kept, opener, pool, monkeypatch):
    """Of a server that answers no greeting each would else wait for all before it.

    One behind a load balancer, say: the next is tried although that one is still being asked.
    """
    held(kept, opener, pool)
    monkeypatch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("workers.kube.kept.PAUSE_SECONDS", 0.01)
    late = [pool.submit(kept.in_time, LONG) for _ in range(10)]
    wait_until(lambda: opener.inside == 10, LONG, "all are at it")
    opener.may_open.release(100)
    assert len({id(one.result(LONG)) for one in late}) == 10
    assert kept._open == ENOUGH + 10
    assert not waiting(kept)


def test_of_those_who_waited_one_opens_at_a_time(kept, opener, pool, monkeypatch):
    """Greetings for all of them are what a busy server needs least."""
    first, _ = held(kept, opener, pool)
    monkeypatch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("workers.kube.kept.PAUSE_SECONDS", LONG)
    late = [pool.submit(kept.in_time, LONG) for _ in range(10)]
    wait_until(lambda: opener.inside == 1 and waiting(kept) == 9, LONG, "one is at it")
    for one in first[:9]:
        kept.give_back(one)
    opener.may_open.release(1)
    got = {id(one.result(LONG)) for one in late}
    assert got == {id(one) for one in [*first[:9], opener.opened[-1]]}
    assert (kept._open, opener.most) == (ENOUGH + 1, 1)


@pytest.mark.parametrize("way", ["a connection", "a turn"])
def test_what_ends_work_goes_before_what_begins_some(kept, opener, pool, way):
    """And each in the order of its own line."""
    first, begin = held(kept, opener, pool, more=2)
    ends = []
    for number in (3, 4):
        ends.append(pool.submit(kept.in_time, LONG, goes_first=True))
        wait_until(lambda number=number: waiting(kept) == number, LONG, "it waits too")
    for number, asker in enumerate([*ends, *begin]):
        if way == "a connection":
            kept.give_back(first[number])
            assert asker.result(LONG) is first[number]
        else:
            kept.drop(first[number])
            opener.may_open.release(1)
            assert asker.result(LONG) is opener.opened[-1]
    assert (kept._open, waiting(kept)) == (ENOUGH, 0)


@pytest.mark.parametrize("goes_first", [False, True])
def test_who_may_open_none_waits_no_longer_than_its_time(
    kept, opener, pool, monkeypatch, goes_first
):
    held(kept, opener, pool)
    monkeypatch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("workers.kube.kept.PAUSE_SECONDS", LONG)
    opener.may_open.release(1)
    kept.in_time(LONG)
    with pytest.raises(TimeoutError, match="no connection was free"):
        kept.in_time(0.05, goes_first=goes_first)
    assert (kept._open, waiting(kept)) == (ENOUGH + 1, 0)


def test_the_first_of_those_who_wait_opens_whoever_finds_that_one_may(
    kept, opener, pool, monkeypatch
):
    """A read that came later looks first: the write that waits for longer is told."""
    held(kept, opener, pool)
    write = pool.submit(kept.in_time, LONG, goes_first=True)
    wait_until(lambda: waiting(kept) == 1, LONG, "the write waits")
    monkeypatch.setattr("workers.kube.kept.PAUSE_SECONDS", LONG)
    monkeypatch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.0)
    read = pool.submit(kept.in_time, LONG)
    opener.may_open.release(1)
    assert write.result(LONG) is opener.opened[-1]
    assert (read.done(), waiting(kept)) == (False, 1)
    kept.give_back(write.result())
    assert read.result(LONG) is opener.opened[-1]


def test_who_ran_out_of_time_holds_nobody_up(kept, opener, pool, monkeypatch):
    """It opens nothing, so the next one may."""
    held(kept, opener, pool)
    monkeypatch.setattr("workers.kube.kept.PAUSE_SECONDS", LONG)
    with pytest.raises(TimeoutError):
        kept.in_time(0.0)
    monkeypatch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.0)
    opener.may_open.release(1)
    assert kept.in_time(LONG) is opener.opened[-1]


def test_one_that_comes_too_late_is_for_others(kept, opener, pool, monkeypatch):
    """A request without time would only break it."""
    (back, *_), _ = held(kept, opener, pool)
    wait = _Turn.wait

    def late(turn, seconds):
        has_come = wait(turn, seconds)
        if not has_come:
            kept.give_back(back)
        return has_come

    monkeypatch.setattr(_Turn, "wait", late)
    with pytest.raises(TimeoutError, match="no connection was free"):
        kept.in_time(0.01)
    assert list(kept.idle) == [back]
    assert (kept._open, waiting(kept)) == (ENOUGH, 0)


@pytest.mark.parametrize("has_served", [False, True])
def test_a_place_of_a_server_that_keeps_none_is_passed_on(
    kept, opener, pool, monkeypatch, has_served
):
    """Else each request of those who wait would have to win it anew, one each 0.1 s."""
    held(kept, opener, pool)
    monkeypatch.setattr("workers.kube.kept.PAUSE_SECONDS", LONG)
    with monkeypatch.context() as patch:
        patch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.0)
        opener.may_open.release(1)
        more = kept.in_time(LONG)
    late = [pool.submit(kept.in_time, LONG) for _ in range(3)]
    wait_until(lambda: waiting(kept) == 3, LONG, "they wait")
    opener.may_open.release(3)
    kept.drop(more, has_served=has_served)
    if has_served:
        while late:
            wait_until(lambda: any(one.done() for one in late), LONG, "one has it")
            (done,) = [one for one in late if one.done()]
            late.remove(done)
            kept.drop(done.result(), has_served=True)
    assert (kept._open, waiting(kept)) == (ENOUGH, len(late))
    assert len(late) == (0 if has_served else 3)
    for _ in late:
        kept.give_back(Connection())


def test_beyond_enough_one_that_goes_is_not_replaced(kept, opener, pool, monkeypatch):
    first, _ = held(kept, opener, pool)
    with monkeypatch.context() as patch:
        patch.setattr("workers.kube.kept.PATIENCE_SECONDS", 0.0)
        patch.setattr("workers.kube.kept.PAUSE_SECONDS", 0.0)
        opener.may_open.release(2)
        more = [kept.in_time(LONG) for _ in range(2)]
    late = pool.submit(kept.in_time, LONG)
    wait_until(lambda: waiting(kept) == 1, LONG, "it waits")
    for one in more:
        kept.drop(one)
    assert (kept._open, waiting(kept)) == (ENOUGH, 1)
    kept.give_back(first[0])
    assert late.result(LONG) is first[0]


def test_who_waited_in_vain_leaves_its_place(kept, opener, pool):
    (back, *_), _ = held(kept, opener, pool)
    with pytest.raises(TimeoutError):
        kept.in_time(0.01)
    assert (kept._open, waiting(kept)) == (ENOUGH, 0)
    kept.give_back(back)
    assert list(kept.idle) == [back]


def test_the_time_to_open_one_is_what_the_wait_left(kept, opener):
    opener.may_open.release(100)
    kept.in_time(7.0)
    assert 0 < opener.seconds[-1] <= 7.0
    with pytest.raises(TimeoutError):
        kept.in_time(0.0)
    assert len(opener.seconds) == 1
    assert kept._open == 1


@pytest.mark.parametrize("gift", ["a connection", "a turn", "nothing"])
def test_an_interrupted_wait_passes_on_what_came_for_it(kept, opener, pool, monkeypatch, gift):
    """A signal of the main thread, say: else a place would be lost for good."""
    (back, *_), _ = held(kept, opener, pool)

    def interrupted(_turn, _seconds):
        if gift == "a connection":
            kept.give_back(back)
        elif gift == "a turn":
            kept.drop(back)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("workers.kube.kept._Turn.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept.in_time(LONG)
    assert (back in kept.idle) == (gift == "a connection")
    assert kept._open == (ENOUGH - 1 if gift == "a turn" else ENOUGH)
    assert not waiting(kept)


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
            (kept.drop if done % 11 == 0 else kept.give_back)(one)
        return done

    assert all(pool.map(work, range(32)))
    assert not waiting(kept)
    assert opener.most <= ENOUGH
    assert kept._open == len(kept.idle) <= 3


def test_one_that_came_back_meanwhile_is_taken(kept, opener, pool):
    """Between `at_once` and `in_time`: nobody else would hand it over."""
    (back, *_), _ = held(kept, opener, pool)
    kept.give_back(back)
    assert kept.in_time(LONG) is back
    assert not kept.idle


def test_turns_go_round_in_order(kept, opener, pool):
    """To open one as well as to take one."""
    (gone, back, *_), (first, second) = held(kept, opener, pool, more=2)
    kept.drop(gone)
    wait_until(lambda: opener.inside == 1, LONG, "one opens")
    kept.give_back(back)
    assert second.result(LONG) is back
    opener.may_open.release(1)
    assert first.result(LONG) is opener.opened[-1]


@pytest.mark.parametrize("can_close", [True, False])
def test_who_is_given_one_that_ended_opens_in_its_place(kept, opener, pool, can_close):
    """It would else go to the end of the line, with all its patience anew."""
    (ended, back, *_), (first, second) = held(kept, opener, pool, more=2)
    ended.is_fit = False
    if not can_close:
        ended.close = lambda: 1 / 0
    kept.give_back(ended)
    if can_close:
        wait_until(lambda: opener.inside == 1, LONG, "one opens")
        opener.may_open.release(1)
        assert first.result(LONG) is opener.opened[-1]
        assert kept._open == ENOUGH
        kept.give_back(back)
    else:
        with pytest.raises(ZeroDivisionError):
            first.result(LONG)
        opener.may_open.release(1)
    assert second.result(LONG) is (back if can_close else opener.opened[-1])
    assert kept._open == ENOUGH


def test_idle_ones_that_nobody_heard_of_since_go(kept, opener, pool):
    """One broke, so the way to the server may be another one."""
    mine, _ = held(kept, opener, pool)
    for number, one in enumerate(mine[:3]):
        one.heard_at = number
        kept.give_back(one)
    kept.drop_older(1)
    assert list(kept.idle) == mine[1:3]
    assert mine[0].is_closed
    assert kept._open == ENOUGH - 1
