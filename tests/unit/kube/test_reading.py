"""Lists that several reconciles share, with an API server whose pages the test supplies."""

from __future__ import annotations

import queue
import threading
import weakref
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


def name_of(found: Any) -> str:
    return found["metadata"]["name"] if found else ""


class Metadata(dict[str, Any]):
    """Metadata whose objects in memory can be counted."""

    __hash__ = object.__hash__  # type: ignore[assignment]


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
    """Yield a function that starts a search in a thread and waits until it leads or shares one."""
    reader = KubeReader(pages)
    lock: Any = CountingLock()
    reader._lock = lock
    with ThreadPoolExecutor(8) as pool:

        def ask(name: str | None) -> Any:
            def matches(item: Any) -> bool:
                return item["metadata"]["name"] == name if name is not None else 1 / 0 > 0

            before = lock.left
            asked = pool.submit(reader.find_together, paths.VOLUMES, matches)
            wait_until(lambda: lock.left > before, WAIT, "it asks")
            return asked

        yield ask
        for _ in range(8):  # ends whatever a failed test has left
            pages.answers.put([])


def test_who_asks_while_a_list_runs_shares_the_next_one(pages, asking):
    first = asking("old")
    pages.begun.get(timeout=WAIT)
    late = [asking(name) for name in ("new", "newer", "old", "old", "new")]
    pages.answers.put(["old"])
    pages.answers.put(["new", "newer"])
    assert name_of(first.result(WAIT)) == "old"
    found = [name_of(one.result(WAIT)) for one in late]
    assert found == ["new", "newer", "", "", "new"]
    assert pages.begun.qsize() == 1


def test_an_error_reaches_everyone_who_shares_the_list_and_nobody_after(pages, asking):
    first = asking("x")
    pages.begun.get(timeout=WAIT)
    late = [asking("x") for _ in range(2)]
    pages.answers.put([])
    pages.answers.put(AwayError(0, "Timeout", "no answer"))
    assert first.result(WAIT) is None
    for one in late:
        with pytest.raises(AwayError):
            one.result(WAIT)
    pages.answers.put(["again"])
    assert name_of(asking("again").result(WAIT)) == "again"


def test_an_error_in_one_search_reaches_only_its_caller(pages, asking):
    first = asking("x")
    pages.begun.get(timeout=WAIT)
    broken, other = asking(None), asking("b")
    pages.answers.put([])
    pages.answers.put(["a", "b"])
    assert first.result(WAIT) is None
    with pytest.raises(ZeroDivisionError):
        broken.result(WAIT)
    assert name_of(other.result(WAIT)) == "b"


def test_a_search_keeps_one_page_in_memory_and_ends_with_its_object():
    """The worker of a cluster with 25,000 PVs has 256 MiB, and a whole list needs 190 MiB."""
    alive: weakref.WeakSet[Metadata] = weakref.WeakSet()
    most = asked = 0

    class Endless:
        def get(self, _path: str, _query: Any = None) -> Any:
            nonlocal most, asked
            most, asked = max(most, len(alive)), asked + 1
            found = [Metadata(name=f"pv{asked}-{number}") for number in range(100)]
            alive.update(found)
            return {"items": [{"metadata": one} for one in found], "metadata": {"continue": "y"}}

        watch_raw = Pages.watch_raw

    found = KubeReader(Endless()).find_together(
        paths.VOLUMES, lambda item: item["metadata"]["name"] == "pv20-7"
    )
    assert name_of(found) == "pv20-7"
    assert asked == 20
    assert most <= 100
