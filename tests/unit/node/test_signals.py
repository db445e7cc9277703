"""A signal handler works at whichever line of the main thread it runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WAITING = {"set", "acquire", "notify", "notify_all", "wait", "join", "get"}
# In this state the main thread holds the lock of `wait()`, just before it sleeps.
LOCKED = """
with stopped._cond:
    os.kill(os.getpid(), signal.SIGTERM)
"""
# The main thread sleeps, and another thread receives the signal.
ELSEWHERE = """
def get_it():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()
threading.Thread(target=get_it, daemon=True).start()
"""
PROGRAM = """
import os, signal, threading, time
from workers.node.main import set_at_end
stopped = threading.Event()
set_at_end(stopped)
{}
stopped.wait()
"""


@pytest.mark.parametrize("between", [LOCKED, ELSEWHERE], ids=["locked", "elsewhere"])
def test_a_signal_ends_the_process_wherever_it_arrives(between: str) -> None:
    """LP-030: livenessprobe once kept waiting after SIGTERM, in 5 of 85 runs on a busy machine."""
    command = [sys.executable, "-c", PROGRAM.format(between)]
    assert subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode == 0


AGAIN = """
import os, signal, socket, threading
from workers.node.main import set_at_end
stopped = threading.Event()
set_at_end(stopped)
os.kill(os.getpid(), signal.SIGTERM)
stopped.wait()
for thread in threading.enumerate():
    if thread.name == "signals":
        thread.join(0.2)  # if it ends at all
ends = [socket.socketpair() for _ in range(8)]
for _ in range(3):
    os.kill(os.getpid(), signal.SIGINT)
for pair in ends:
    for end in pair:
        end.setblocking(False)
        try:
            raise SystemExit(f"another's socket was given {end.recv(1)!r}")
        except BlockingIOError:
            pass
"""


def test_the_next_signal_is_told_to_nobody_else() -> None:
    """Once its wake-up socket is closed, another socket may get the number, but not the signal."""
    ended = subprocess.run(
        [sys.executable, "-c", AGAIN], cwd=ROOT, timeout=120, check=False, stderr=subprocess.PIPE
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def handlers(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the functions that the module passes to `signal.signal`."""
    named = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "signal.signal":
            handler = call.args[1]
            yield named[handler.id] if isinstance(handler, ast.Name) else handler


def test_no_handler_of_a_signal_waits_for_a_lock() -> None:
    seen = 0
    for folder in ("csi_client", "workers", "watcher", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for handler in handlers(ast.parse(path.read_text())):
                seen += 1
                calls = [one.func for one in ast.walk(handler) if isinstance(one, ast.Call)]
                names = {one.attr for one in calls if isinstance(one, ast.Attribute)}
                assert not names & WAITING, f"{path.name}: {ast.unparse(handler)}"
    assert seen >= 8
