"""A callback runs while a call takes long, over a real socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from csi_client.client import CsiClient
from csi_client.errors import CsiError
from tests.support.csi_driver import DirectoryDriver, create_request
from tests.support.waiting import let_pass, wait_until

PASS: ContextVar[str] = ContextVar("pass", default="")


@pytest.fixture(scope="module")
def driver() -> Iterator[DirectoryDriver]:
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture
def client(driver: DirectoryDriver) -> Iterator[CsiClient]:
    driver.set_rules()
    client = driver.client()
    assert client.wait_connected(10)
    yield client
    client.close()


def test_p411_deadline_with_on_slow(driver: DirectoryDriver, client: CsiClient) -> None:
    """The error text is the same, and the callback has run."""
    driver.set_rules({"method": "CreateVolume", "hang": True})
    slow: list[int] = []
    with pytest.raises(CsiError, match="context deadline exceeded"):
        client.create_volume(
            create_request("pvc-hang"),
            timeout_seconds=0.4,
            on_slow=lambda: slow.append(1),
            slow_after_seconds=0.1,
        )
    assert slow == [1]


def test_on_slow_runs_once_while_the_call_runs(driver: DirectoryDriver, client: CsiClient) -> None:
    """The callback runs in the caller's context, with its lease, trail and log fields."""
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 1.0})
    seen: list[tuple[str, float]] = []
    token = PASS.set("mine")
    started = time.monotonic()
    answer = client.create_volume(
        create_request("pvc-slow"),
        on_slow=lambda: seen.append((PASS.get(), time.monotonic() - started)),
        slow_after_seconds=0.1,
    )
    PASS.reset(token)
    assert answer.volume.volume_id
    ((context, after_seconds),) = seen
    assert context == "mine"
    assert 0.1 <= after_seconds < 1.0


def test_the_call_ends_after_its_on_slow(driver: DirectoryDriver, client: CsiClient) -> None:
    """The call returns after its callback.

    Both change the record of the attempt, so they must not overlap.
    """
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 0.2})
    order: list[str] = []

    def on_slow() -> None:
        wait_until(
            lambda: any(c.request["name"] == "pvc-late" for c in driver.calls("CreateVolume")),
            10,
            "the call is in the driver",
        )
        let_pass(0.5)
        order.append("told")

    client.create_volume(create_request("pvc-late"), on_slow=on_slow, slow_after_seconds=0.05)
    order.append("answered")
    assert order == ["told", "answered"]


def test_on_slow_stays_silent_for_a_quick_call(client: CsiClient) -> None:
    slow: list[int] = []
    client.create_volume(create_request("pvc-quick"), on_slow=lambda: slow.append(1))
    assert slow == []


def test_failing_on_slow_does_not_lose_the_answer(
    driver: DirectoryDriver, client: CsiClient, caplog: pytest.LogCaptureFixture
) -> None:
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 0.4})

    def fail() -> None:
        raise RuntimeError("no API server")

    answer = client.create_volume(create_request("pvc-s2"), on_slow=fail, slow_after_seconds=0.1)
    assert answer.volume.volume_id
    assert "slow-call callback failed" in caplog.text
