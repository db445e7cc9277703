"""A call on a unix socket ends with its caller, so its deadline need not be awaited (BUG-16)."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from workers.deadlines import MARGIN_SECONDS, NONE, Deadline
from workers.queue.leases import Session
from workers.queue.lifeline import Lifeline, is_gone

NOW, LIFE = 1_700_000_000.0, 1_699_999_000.0
CHILD = """
import time
from workers.queue.lifeline import Lifeline
line = Lifeline()
print(line.caller, flush=True)
time.sleep(60)
"""


class Local:
    """A local clock: seconds since boot."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def session(local: Local, caller: str = "") -> Session:
    found = Session(epoch=f"e:{round(LIFE * 1000)}:run", clock=local, caller=caller)
    found.hear(round(NOW * 1000), local.now)
    return found


@pytest.fixture
def worker():
    """Start another process; yield it and the caller name that its deadlines carry."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_killed_callers_call_is_waited_for_a_moment_not_for_its_deadline(worker):
    process, caller = worker
    local = Local()
    deadline = session(Local(), caller).deadline(360)
    reader = session(local)
    assert reader.seconds_left(deadline) == 360 + MARGIN_SECONDS, "it is alive"
    process.kill()
    process.wait()
    assert reader.seconds_left(deadline) == MARGIN_SECONDS, "what the driver needs to notice it"
    local.now += MARGIN_SECONDS
    assert reader.seconds_left(deadline) == 0
    assert reader.latest(deadline) == NONE


def test_a_frozen_callers_call_is_waited_for(worker):
    """Its connection to the driver is open, and the call continues."""
    process, caller = worker
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: stat.read_text().split()[2] == "T", 5, "the process is stopped")
    assert not is_gone(caller)
    assert session(Local()).seconds_left(session(Local(), caller).deadline(20)) > 20


def test_the_callers_children_do_not_keep_its_name(worker):
    """A program that a worker started may outlive it, but its calls to the driver do not."""
    line = Lifeline()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        line.close()
        assert is_gone(line.caller)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    "caller",
    [
        pytest.param("", id="a driver over TCP, or an older release"),
        pytest.param("another-boot/4026531840/0123456789abcdef", id="another machine or boot"),
        pytest.param("{boot}/1/0123456789abcdef", id="another pod"),
        pytest.param("{place}/../x", id="no name"),
        pytest.param("{place}/0123456789ABCDEF", id="not as we write it"),
        pytest.param("nonsense", id="nonsense"),
    ],
)
def test_who_cannot_be_looked_for_counts_as_alive(caller):
    line = Lifeline()
    place = line.caller.rpartition("/")[0]
    line.close()
    assert not is_gone(caller.format(place=place, boot=place.partition("/")[0]))


def test_the_death_of_one_caller_ends_no_call_of_another():
    """Two calls of unknown outcome share one deadline; the call of the living caller is awaited."""
    first, second, local = Lifeline(), Lifeline(), Local()
    here = session(local)
    long = session(Local(), first.caller).deadline(100)
    short = session(Local(), second.caller).deadline(50)
    both = here.latest(long, short)
    assert (both.until, both.caller) == (long.until, "")
    first.close()
    assert here.seconds_left(both) == 100 + MARGIN_SECONDS
    assert here.seconds_left(long) == MARGIN_SECONDS
    local.now += MARGIN_SECONDS
    assert here.latest(long, short) == short
    second.close()


def test_two_calls_of_one_caller_end_with_it():
    line = Lifeline()
    here = session(Local())
    one, two = (session(Local(), line.caller).deadline(seconds) for seconds in (50, 100))
    both = here.latest(one, two)
    assert both == two
    line.close()
    assert here.seconds_left(both) == MARGIN_SECONDS


def test_a_deadline_that_a_person_set_does_not_end_with_its_writer():
    """`later` is not a call: it may be a pause between two checks, for example."""
    line = Lifeline()
    rest = session(Local(), line.caller).later(30)
    line.close()
    assert session(Local()).seconds_left(rest) == 30


@pytest.mark.parametrize("caller", ["", "boot/1/0123456789abcdef"])
def test_a_caller_is_kept_in_the_record(caller):
    deadline = Deadline(7.5, 3.0, 2.0, caller)
    assert Deadline.read(deadline.data()) == deadline
    assert len(deadline.data()) == 3 + bool(caller), "an older release reads what has none"


@pytest.mark.parametrize("rest", [[7], [None], ["a", "b"], [["a"]]])
def test_a_caller_that_cannot_be_read_is_none(rest):
    assert Deadline.read([7.5, 3.0, 2.0, *rest]) == Deadline(7.5, 3.0, 2.0)


def test_many_dead_callers_are_not_remembered_for_ever(monkeypatch):
    monkeypatch.setattr("workers.queue.leases.is_gone", lambda _: True)
    here = session(Local())
    plain = here.deadline(60)
    for number in range(2500):
        assert here.seconds_left(replace(plain, caller=f"boot/1/{number:016x}")) <= MARGIN_SECONDS
    assert len(here._ended) <= 1000
