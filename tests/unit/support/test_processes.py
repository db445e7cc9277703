"""What `start_process` guarantees to tests that start real processes."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from threading import Thread

from tests.support import processes
from tests.support.processes import Process, start_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


def started_by_a_thread_that_ended(folder: Path, *, detached: bool) -> Process:
    """Return a sleeping process whose starting thread has ended."""
    made: list[Process] = []

    def start() -> None:
        command = ["sh", "-c", "echo up; exec sleep 600"]
        made.append(start_process("sleeper", command, log=folder / "log", detached=detached))
        wait_until(lambda: made[0].log_tail() == "up", 60, "it runs")

    thread = Thread(target=start)
    thread.start()
    thread.join()
    return made[0]


def test_a_process_ends_with_the_thread_that_started_it(tmp_path: Path) -> None:
    process = started_by_a_thread_that_ended(tmp_path, detached=False)
    assert process.popen is not None
    assert process.popen.wait(60) == -signal.SIGKILL


def test_a_detached_process_goes_on(tmp_path: Path) -> None:
    process = started_by_a_thread_that_ended(tmp_path, detached=True)
    try:
        assert process.is_running()
    finally:
        process.kill()


def test_nothing_is_called_between_fork_and_exec_beside_grpc() -> None:
    """gRPC's fork handlers once waited forever on a busy machine; vfork runs none of them."""
    word = "preexec" + "_fn"
    sources = [path for folder in ("tests", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    named = {path.name for path in sources if f"{word}=" in path.read_text()}
    assert named == set()


def test_a_port_is_given_to_one_alone(tmp_path, monkeypatch):
    """By chance, two of 500 ports would be equal, as there are 12,000."""
    monkeypatch.setattr(processes, "GIVEN_OUT", tmp_path / "ports")
    ports = [processes.free_port() for _ in range(500)]
    assert len(set(ports)) == 500


def test_a_port_comes_back_after_a_while(tmp_path, monkeypatch):
    given = tmp_path / "ports"
    monkeypatch.setattr(processes, "GIVEN_OUT", given)
    old = time.time() - processes.GIVEN_SECONDS - 1
    given.write_text("".join(f"{port} {old}\n" for port in processes.PORT_RANGE))
    port = processes.free_port()
    assert [line.split()[0] for line in given.read_text().splitlines()] == [str(port)]
