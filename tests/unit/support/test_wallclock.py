import os
import subprocess
import sys
import time

import pytest

from tests.support.wallclock import WallClock

HOUR = 3600
TELL = """
import sys, threading, time
for _ in sys.stdin:
    began, start = time.time(), time.monotonic()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=0.05)
    print(began, time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic() - start, flush=True)
"""


@pytest.fixture
def program(tmp_path):
    clock = WallClock(tmp_path / "clock", ahead_seconds=HOUR)
    child = subprocess.Popen(
        [sys.executable, "-c", TELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.env},
    )

    def tell() -> tuple[float, float, float]:
        child.stdin.write("\n")
        child.stdin.flush()
        wall, boot, waited = map(float, child.stdout.readline().split())
        return wall - time.time(), boot - time.clock_gettime(time.CLOCK_BOOTTIME), waited

    yield clock, tell
    child.kill()
    child.communicate()


@pytest.mark.parametrize("seconds", [-HOUR, HOUR, -24 * HOUR, 24 * HOUR])
def test_only_the_wall_clock_steps_while_the_process_runs(program, seconds):
    clock, tell = program
    assert tell()[0] == pytest.approx(HOUR, abs=5)
    clock.step(seconds)
    wall, boot, waited = tell()
    assert wall == pytest.approx(HOUR + seconds, abs=5)
    assert boot == pytest.approx(0, abs=5)
    assert waited < 5  # a wait that ends by the wall clock
