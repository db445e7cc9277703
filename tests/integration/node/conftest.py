"""Processes of the node helpers, started as the container of a pod starts them."""

from __future__ import annotations

import itertools
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.identity_driver import IdentityDriver
from tests.support.processes import Process, start_process

PROGRAM = Path(sys.executable).with_name("csi-fleet")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path: a unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="n-") as scratch:
        yield Path(scratch)


@pytest.fixture
def driver(folder: Path) -> Iterator[IdentityDriver]:
    """Return a running driver; the test can `stop` and `start` it."""
    one = IdentityDriver(folder / "csi.sock").start()
    yield one
    one.stop()


@pytest.fixture
def launch(folder: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts a program. All programs end with the test."""
    started: list[Process] = []
    numbers = itertools.count()

    def start(*arguments: str) -> Process:
        log = folder / f"log-{next(numbers)}"
        started.append(start_process(arguments[0], [PROGRAM, *arguments], log=log))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def get(port: int, path: str = "/healthz", *, host: str = "127.0.0.1") -> tuple[int, str]:
    """Return status and body. Raise OSError if no process listens on the port."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
