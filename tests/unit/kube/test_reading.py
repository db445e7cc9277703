"""Lists that several reconciles share, with an API server whose pages the test supplies."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.waiting import wait_until
from workers.kube import paths
from workers.kube.errors import AwayError
from workers.kube.reading import KubeReader

WAIT = 30.0


class Pages:
    """Answers each list with what the test supplies, and reports when a list has begun."""

    def __init__(self) -> None:
        self.begun: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()

    def get(self, path: str, query: Any = None) -> Any:
        self.begun.put(path)
        answer = self.answers.get(timeout=WAIT)
        if isinstance(answer, Exception):
            raise answer
        return {"items": [{"metadata": {"name": name}} for name in answer]}

    def watch_raw(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing watches")


def names(found: Any) -> list[str]:
    return [item["metadata"]["name"] for item in found]


class CountingLock:
    """A lock that counts how often it is released."""

    def __init__(self) -> None:
        self.left = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.left += 1
        self._lock.release()


@pytest.fixture
def pages():
    return Pages()


@pytest.fixture
def asking(pages):
    """Yield a function that starts a list in a thread and waits until it leads or shares one."""
    reader = KubeReader(pages)
    lock: Any = CountingLock()
    reader._lock = lock
    with ThreadPoolExecutor(8) as pool:

        def ask() -> Any:
            before = lock.left
            asked = pool.submit(reader.list_together, paths.VOLUMES)
            wait_until(lambda: lock.left > before, WAIT, "it asks")
            return asked

        yield ask
        for _ in range(8):  # ends whatever a failed test has left
            pages.answers.put([])


def test_who_asks_while_a_list_runs_shares_the_next_one(pages, asking):
    first = asking()
    pages.begun.get(timeout=WAIT)
    late = [asking() for _ in range(5)]
    pages.answers.put(["old"])
    pages.answers.put(["new"])
    assert names(first.result(WAIT)) == ["old"]
    assert [names(one.result(WAIT)) for one in late] == [["new"]] * 5
    assert pages.begun.qsize() == 1


def test_an_error_reaches_everyone_who_shares_the_list_and_nobody_after(pages, asking):
    first = asking()
    pages.begun.get(timeout=WAIT)
    late = [asking() for _ in range(2)]
    pages.answers.put([])
    pages.answers.put(AwayError(0, "Timeout", "no answer"))
    assert names(first.result(WAIT)) == []
    for one in late:
        with pytest.raises(AwayError):
            one.result(WAIT)
    pages.answers.put(["again"])
    assert names(asking().result(WAIT)) == ["again"]
