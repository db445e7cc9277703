"""Who is told of a slow call, when, in which context, and what the end of the call waits for."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import pytest

from csi_client.slowcalls import SlowCalls
from tests.support.waiting import wait_until

RPC = "/csi.v1.Controller/CreateVolume"
PASS: ContextVar[str] = ContextVar("pass", default="")


class Watched(SlowCalls):
    """The clock is the test's, and so is the watcher: `wakes` counts who would have woken it."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now, self.wakes = 100.0, 0

    def _wake(self) -> None:
        self.wakes += 1

    def let_pass(self, seconds: float) -> None:
        self.now += seconds
        self.tell_due()


@pytest.fixture
def calls() -> Watched:
    return Watched()


@pytest.fixture
def real() -> Iterator[SlowCalls]:
    """With its thread, which waits for nothing in the end."""
    calls = SlowCalls()
    yield calls
    assert calls._entries == []


def ended(told: list[Any], count: int = 1) -> None:
    wait_until(lambda: len(told) >= count, 10, "all are told", interval_seconds=0.001)


def test_a_call_is_told_once_when_its_time_is_over(calls: Watched) -> None:
    """Not before, and not again."""
    told: list[float] = []
    with calls.told(lambda: told.append(calls.now), 2, RPC):
        calls.let_pass(1.9)
        assert calls._entries
        calls.let_pass(0.1)
        ended(told)
        calls.let_pass(100)
    calls.let_pass(100)
    assert told == [102]


def test_a_call_that_ended_is_not_told(calls: Watched) -> None:
    """Also one that failed; its entry goes when the watcher comes by."""
    told: list[int] = []
    with pytest.raises(ValueError, match="no"), calls.told(lambda: told.append(1), 2, RPC):
        raise ValueError("no")
    calls.let_pass(1)
    assert (told, calls._entries) == ([], [])


def test_each_is_told_at_its_own_time(calls: Watched) -> None:
    """The order of the calls says nothing."""
    told: list[str] = []
    with ExitStack() as stack:
        for name, seconds in (("c", 3), ("a", 1), ("d", 4), ("b", 2)):
            stack.enter_context(calls.told(lambda name=name: told.append(name), seconds, RPC))
        for count in (1, 2, 3, 4):
            calls.let_pass(1)
            ended(told, count)
    assert told == ["a", "b", "c", "d"]


def test_the_end_waits_for_who_is_told(calls: Watched) -> None:
    """Both change the record of the attempt: one after the other."""
    may_end, order = threading.Event(), list[str]()

    def on_slow() -> None:
        may_end.wait(10)
        order.append("told")

    def call() -> None:
        with calls.told(on_slow, 2, RPC):
            calls.let_pass(2)
            order.append("answered")
        order.append("over")

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: order == ["answered"], 10, "the driver answered", interval_seconds=0.001)
    assert thread.is_alive()
    may_end.set()
    thread.join(10)
    assert order == ["answered", "told", "over"]


def test_who_takes_long_holds_up_no_other(calls: Watched) -> None:
    """A hanging API server for one copy must not keep the others back."""
    may_end, told = threading.Event(), list[int]()
    quick = calls.told(lambda: told.append(1), 2, RPC)
    with quick, calls.told(lambda: may_end.wait(10) and None, 1, RPC):
        calls.let_pass(1)
        calls.let_pass(1)
        ended(told)
        may_end.set()


def test_it_runs_in_a_thread_of_its_own_within_the_context_of_the_call(calls: Watched) -> None:
    """Leases, trails and log fields are context variables; what it sets there stays there."""
    seen: list[tuple[str, bool]] = []

    def on_slow() -> None:
        seen.append((PASS.get(), threading.current_thread() is threading.main_thread()))
        PASS.set("changed")

    token = PASS.set("before")
    with calls.told(on_slow, 2, RPC):
        calls.let_pass(2)
        ended(seen)
    assert seen == [("before", False)]
    assert PASS.get() == "before"
    PASS.reset(token)


def test_an_error_is_logged_and_ends_the_wait(
    calls: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's answer counts more."""

    def fail() -> None:
        raise RuntimeError("no API server")

    with calls.told(fail, 2, RPC):
        calls.let_pass(2)
    (record,) = caplog.records
    assert record.getMessage() == "slow-call callback failed"
    assert vars(record)["method"] == RPC
    assert "no API server" in caplog.text


def test_without_a_thread_to_be_had_it_is_told_all_the_same(
    calls: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is late for others beats none, and the call's end must not wait for ever."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    told: list[int] = []
    with calls.told(lambda: told.append(1), 2, RPC):
        calls.let_pass(2)
    assert told == [1]


def test_a_watcher_that_cannot_start_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is not made then; the next one tries again, and only that is told."""
    calls, begun = SlowCalls(), list[str]()

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError), calls.told(lambda: begun.append("first"), 0, RPC):
            begun.append("call")
    with calls.told(lambda: begun.append("second"), 0, RPC):
        ended(begun)
    assert begun == ["second"]


def test_quick_calls_wake_nobody(calls: Watched) -> None:
    """The watcher sleeps until the earliest deadline: later ones are no news."""
    for _ in range(100):
        with calls.told(lambda: None, 2, RPC):
            calls.now += 0.01
    assert calls.wakes == 1


def test_an_earlier_deadline_wakes_the_watcher(calls: Watched) -> None:
    """Else it would be told when the later one is due."""
    with calls.told(lambda: None, 10, RPC), calls.told(lambda: None, 2, RPC):
        assert calls.wakes == 2
        with calls.told(lambda: None, 5, RPC):
            assert calls.wakes == 2


def test_an_ended_call_keeps_nothing(calls: Watched) -> None:
    """Its entry stays until the watcher comes by; request and secrets must not."""

    class Request:
        def keep_copy(self) -> None:
            """As an attempt has it."""

    request = Request()
    gone = weakref.ref(request)
    with calls.told(request.keep_copy, 2, RPC):
        del request
    gc.collect()
    assert calls._entries
    assert gone() is None


def test_the_watcher_tells_by_itself(real: SlowCalls) -> None:
    """One thread for all calls, which sleeps between them and may be woken."""
    told: list[str] = []

    def tell(name: str) -> Callable[[], None]:
        return lambda: told.append(name)

    for number in (1, 2):
        with real.told(tell("late"), 0.02, RPC), real.told(tell("early"), 0.01, RPC):
            ended(told, 2 * number)
    assert told == ["early", "late"] * 2
    wait_until(lambda: real._sleeps_until == math.inf, 10, "nothing is left to wait for")
    names = [one.name for one in threading.enumerate()]
    assert "csi-slow-call" not in names
    assert real._thread is not None
    assert real._thread.daemon


def test_nothing_starts_before_the_first_call() -> None:
    """Workers are forked after the import; a thread would be missing in the fork."""
    script = (
        "import threading; from csi_client import client, slowcalls; "
        "print(threading.active_count(), slowcalls.SLOW_CALLS._thread)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert found.stdout.split() == [b"1", b"None"]
