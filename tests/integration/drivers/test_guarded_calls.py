"""A call begins only while its lease is held, and is cancelled when other workers may start."""

from __future__ import annotations

import threading
import time

import pytest

from csi_client.errors import CsiError
from tests.support.csi_driver import DirectoryDriver, create_request
from tests.support.waiting import wait_until
from workers.drivers.pace import Pace, WatchedClient
from workers.errors import LeaseLost
from workers.queue.keys import claim_key
from workers.queue.leases import CURRENT, CatalogState, Lease, Session

REQUEST = create_request("pvc-u1")


class SlowTurn(Pace):
    """Makes each call wait for its turn, and runs a hook of the test meanwhile."""

    def __init__(self):
        self.meanwhile = lambda: None

    def wait_turn(self, operation):
        self.meanwhile()


@pytest.fixture(scope="module")
def driver():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture
def health():
    return SlowTurn()


@pytest.fixture
def client(driver, health):
    client = WatchedClient(driver.address, health)
    assert client.wait_connected(10)
    yield client
    client.close()
    driver.set_rules()


@pytest.fixture
def lease():
    """Set a lease around the test as the frame does around a pass."""
    lease = Lease(
        key=claim_key("d", "ns", "a", "u1"),
        locks=(),
        token="t",
        fence=1,
        fails=0,
        memo="",
        waited_seconds=0.0,
        catalog=CatalogState("e", {}, frozenset()),
        session=Session(epoch="e", clock=time.monotonic),
        valid_until=float("inf"),
    )
    token = CURRENT.set(lease)
    yield lease
    CURRENT.reset(token)


def calls(driver):
    return len(driver.calls("CreateVolume"))


def test_a_lease_lost_while_the_call_waited_for_its_turn_sends_nothing(
    driver, client, health, lease
):
    """No call is sent if the lease is lost while the call waits.

    The check before the call is older than the end of the wait.
    """
    before = calls(driver)

    def lose():
        lease.is_lost = True

    health.meanwhile = lose
    with pytest.raises(LeaseLost):
        client.create_volume(REQUEST)
    assert calls(driver) == before


def test_a_permit_lost_while_the_call_waited_sends_nothing(driver, client, health, lease):
    """No call is sent if the Go sidecar's Lease is lost while the call waits for its turn."""
    before, permitted = calls(driver), ["yes"]
    lease.permit = lambda: bool(permitted)
    health.meanwhile = permitted.clear
    with pytest.raises(LeaseLost):
        client.create_volume(REQUEST)
    assert calls(driver) == before


@pytest.mark.parametrize("on_slow", [None, lambda: None], ids=["plain", "with copy"])
def test_a_running_call_is_cancelled_when_others_may_work(driver, client, lease, on_slow):
    """Neither an event nor a back-off follows: the key waits for the next permitted worker."""
    driver.set_rules({"method": "CreateVolume", "hang": True})
    before, permitted, raised = calls(driver), [True], []
    lease.permit = lambda: permitted[0]

    def create():
        token = CURRENT.set(lease)
        try:
            client.create_volume(REQUEST, on_slow=on_slow, slow_after_seconds=0.01)
        except LeaseLost as error:
            raised.append(error)
        finally:
            CURRENT.reset(token)

    thread = threading.Thread(target=create)
    thread.start()
    wait_until(lambda: calls(driver) == before + 1, 10, "the call is at the driver")
    client.recheck()
    assert thread.is_alive()
    permitted[0] = False
    client.recheck()
    thread.join(10)
    assert len(raised) == 1


def test_a_call_outside_of_any_pass_is_free(driver, client):
    """A call without a lease is sent: command line tools and the handshake have no lease."""
    driver.set_rules({"method": "CreateVolume", "error": {"code": 13, "message": "no"}})
    with pytest.raises(CsiError):
        client.create_volume(REQUEST)
