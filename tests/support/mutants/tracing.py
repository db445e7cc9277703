"""A pytest plug-in (`-p`) that writes to $MUTANTS_TRACE which test runs which line.

A Lua script counts as run by each test that sends it to Redis. Code that runs in other processes is
not traced.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

WATCHED = ("workers/", "watcher/", "csi_client/")
LUA = "workers/queue/lua/{}.lua"
RUNS_LUA = ("workers/queue/scripts.py", {"run", "run_each"})


class Tracing:
    """Collects lines, in a set for each test."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = f"{root}/", out
        self.names: dict[str, str] = {}
        self.now: set[tuple[str, int]] = set()
        self.order: list[str] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.lines: dict[str, list[int]] = defaultdict(list)

    def on_call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        file = frame.f_code.co_filename
        name = self.names.get(file)
        if name is None:
            inside = file.removeprefix(self.root)
            name = self.names[file] = inside if inside.startswith(WATCHED) else ""
        if not name:
            return None
        if name == RUNS_LUA[0] and frame.f_code.co_name in RUNS_LUA[1]:
            self.now.add((LUA.format(frame.f_locals["name"]), 0))
        self.now.add((name, frame.f_lineno))
        return self.on_line

    def on_line(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        self.now.add((self.names[frame.f_code.co_filename], frame.f_lineno))
        return self.on_line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.now.clear()
        threading.settrace(self.on_call)
        sys.settrace(self.on_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            for name, line in list(self.now):
                self.lines[f"{name}:{line}" if line else name].append(len(self.order))
            self.order.append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        tests = [(test, self.seconds[test]) for test in self.order]
        found = {"tests": tests, "failed": sorted(self.failed), "lines": self.lines}
        self.out.write_text(json.dumps(found), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Start tracing if the environment asks for it."""
    if out := os.environ.get("MUTANTS_TRACE"):
        config.pluginmanager.register(Tracing(config.rootpath, Path(out)))
