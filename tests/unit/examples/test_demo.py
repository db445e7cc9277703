"""make demo reports mistakes before it starts anything, restarts parts that are killed, and
continues a demo that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.demo import __main__ as demo
from examples.demo import place
from examples.demo import stack as stack_module
from examples.demo.stack import PartEndedError, Stack
from tests.support.waiting import wait_until


def test_a_kubeconfig_that_is_not_there_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo.place, "take", lambda _: pytest.fail("a folder"))
    monkeypatch.setattr(sys, "argv", ["demo", "--kubeconfig", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as caught:
        demo.main()
    assert caught.value.code == 2
    assert f"--kubeconfig {tmp_path / 'none'}: no such file" in capsys.readouterr().err


@pytest.fixture
def stack(tmp_path):
    made = Stack(tmp_path, tmp_path / "con fig", "x", print)
    made._redis = SimpleNamespace(url="redis://127.0.0.1:7000/0")
    yield made
    made.stop()


def test_the_environment_is_read_once_and_commands_are_short(stack):
    stack.write_environment()
    asked = 'echo "$KUBECONFIG $CSI_FLEET_REDIS_URL $DEMO_NAMESPACE"; command -v csi-fleet'
    done = subprocess.run(
        ["bash", "-c", f". {stack.env_file}; {asked}"], capture_output=True, text=True, check=True
    )
    first, program = done.stdout.splitlines()
    assert first == f"{stack.kubeconfig} redis://127.0.0.1:7000/0 csi-fleet-demo-x"
    assert program == str(Path(sys.executable).with_name("csi-fleet"))


def test_what_is_killed_is_started_again(stack):
    """The demo's own function kills the process, and the pid that it reads is always current."""
    stack._start("worker-1", ["sleep", "100"])
    stack._start("beat", ["sleep", "100"])
    stack.write_environment()
    for _ in range(2):
        assert stack.revive() == []
        kill = f". {stack.env_file}; demo_kill worker-1"
        subprocess.run(["bash", "-c", kill], check=True)
        wait_until(stack.revive, 10, "the killed part is started again")
    pid = int((stack.directory / "pids" / "worker-1").read_text())
    assert stack.kill_process(pid) == "worker-1"
    wait_until(lambda: stack.revive() == ["worker-1"], 10, "so is one that the demo killed")


def test_kills_in_a_row_are_no_reason_to_give_up(stack):
    stack._start("worker-1", ["sleep", "100"])
    for _ in range(stack_module.MOST_ENDS + 1):
        stack._parts["worker-1"].process.kill()
        assert stack.revive() == ["worker-1"]


def test_a_process_that_has_ended_is_no_part(stack):
    stack._start("worker-1", ["true"])
    process = stack._parts["worker-1"].process
    wait_until(lambda: not process.is_running(), 10, "it has ended")
    assert stack.kill_process(process.pid) == ""


@pytest.fixture
def take(tmp_path, monkeypatch):
    """Takes places in a folder of the test, and gives them back at the end."""
    monkeypatch.setattr(place.tempfile, "tempdir", str(tmp_path))
    taken = []

    def take(kubeconfig=None):
        taken.append(place.take(kubeconfig))
        return taken[-1]

    yield take
    for one in taken:
        one.release()


def test_a_demo_that_was_killed_is_continued_on_its_cluster(take):
    first, other = take(), take()
    assert not first.is_continued
    assert other.directory != first.directory
    first._lock.close()  # as the end of its process does
    assert not take(Path("/other/cluster")).is_continued
    again = take()
    assert (again.directory, again.tag) == (first.directory, first.tag)
    assert again.is_continued


def test_a_demo_that_has_stopped_is_not_continued(take):
    first = take()
    first.release()
    assert take().directory != first.directory


def test_a_part_that_ends_by_itself_again_and_again_ends_the_demo(stack):
    stack._start("worker-1", ["sh", "-c", "echo no such flag; exit 2"])

    said = []

    def is_given_up():
        try:
            stack.revive()
        except PartEndedError as error:
            said.append(str(error))
        return said

    wait_until(is_given_up, 20, "the demo gives it up")
    assert said[0].startswith("worker-1 ends again and again:\nno such flag")
