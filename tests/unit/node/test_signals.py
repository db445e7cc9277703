"""A signal interrupts any line of the main thread, also one that holds a lock."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WAITING = {"set", "acquire", "notify", "notify_all", "wait", "join", "get"}
IN_THE_MIDDLE_OF_WAIT = """
import os, signal, threading
from workers.node.main import set_at_end
stopped = threading.Event()
set_at_end(stopped)
with stopped._cond:  # as `wait()` holds it, just before it sleeps
    os.kill(os.getpid(), signal.SIGTERM)
stopped.wait()
"""


def test_a_signal_that_comes_while_the_event_is_locked_ends_the_process() -> None:
    """LP-030: livenessprobe hung on it once in thousands of ends, on a busy machine."""
    command = [sys.executable, "-c", IN_THE_MIDDLE_OF_WAIT]
    assert subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode == 0


def handlers(tree: ast.Module) -> Iterator[ast.AST]:
    """The functions that the module gives to `signal.signal`."""
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
