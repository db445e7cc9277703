"""Which processes a scene waits for when it is cleaned up."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event, Thread

from tests.support.fleet import is_running_here
from tests.support.processes import start_process
from tests.support.waiting import wait_until


def test_a_part_of_ours_is_seen_until_it_ends_whichever_thread_started_it(tmp_path: Path) -> None:
    """Other programs are not waited for."""
    runs, done = Event(), Event()

    def run(word: str) -> None:
        waiting = [sys.executable, "-c", "import time; time.sleep(600)", word]
        part = start_process("part", waiting, log=tmp_path / "log")
        runs.set()
        done.wait(60)
        part.kill()

    for word, is_ours in (("watcher", False), ("workers", True)):
        thread = Thread(target=run, args=(word,))
        thread.start()
        assert runs.wait(60)
        if is_ours:  # while exec replaces the program, the process briefly has no arguments
            wait_until(is_running_here, 60, "the part is seen")
        else:
            assert not is_running_here()
        done.set()
        thread.join()
        assert not is_running_here()
        runs.clear()
        done.clear()
