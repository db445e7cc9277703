"""Events have the form of client-go's and never delay work."""

from __future__ import annotations

import threading

import pytest

from tests.support.fake_api import FakeApi, Reply, status
from tests.support.waiting import wait_until
from workers.kube.client import KubeClient
from workers.kube.events import EventPlan, EventRecorder, event_name, make_event

CLAIM = {
    "kind": "PersistentVolumeClaim",
    "apiVersion": "v1",
    "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "5"},
}


def test_event_has_client_gos_form():
    """The form is that of client-go's makeEvent; `kubectl describe` and event exporters read it."""
    event = make_event(CLAIM, "Warning", "ProvisioningFailed", "no", "comp", now=1_700_000_000.5)
    assert event == {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": f"c.{1_700_000_000_500_000_000:x}", "namespace": "ns"},
        "involvedObject": {
            "kind": "PersistentVolumeClaim",
            "namespace": "ns",
            "name": "c",
            "uid": "u",
            "apiVersion": "v1",
            "resourceVersion": "5",
        },
        "reason": "ProvisioningFailed",
        "message": "no",
        "source": {"component": "comp"},
        "firstTimestamp": "2023-11-14T22:13:20Z",
        "lastTimestamp": "2023-11-14T22:13:20Z",
        "count": 1,
        "type": "Warning",
        "eventTime": None,
        "reportingComponent": "comp",
        "reportingInstance": "",
    }


def test_events_of_volumes_go_to_the_default_namespace():
    volume = {"kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": "pv"}}
    event = make_event(volume, "Normal", "R", "m", "c", now=1.0)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


@pytest.mark.parametrize("name", ["x" * 250, "UPPER", ""])
def test_name_that_does_not_fit_is_replaced(name):
    made = event_name(name, 1.0)
    assert len(made) <= 253
    assert not made.startswith(name or ".")


class Budget:
    def __init__(self, plan):
        self._plan = plan

    def plan(self, _event):
        if isinstance(self._plan, Exception):
            raise self._plan
        return self._plan


@pytest.fixture
def api():
    with FakeApi() as api:
        api.other = lambda _request: Reply(status=201)
        yield api


def recorder(api, **options):
    return EventRecorder(KubeClient.from_settings(master=api.url), **options)


def test_queued_events_are_written_in_order_before_stop_returns(api):
    events = recorder(api)
    events.start()
    for number in range(5):
        events.event(CLAIM, "Normal", "R", str(number), component="c")
    events.stop(timeout_seconds=10)
    assert [request.body["message"] for request in api.requests] == list("01234")
    assert {request.path for request in api.requests} == {"/api/v1/namespaces/ns/events"}


def test_what_the_server_answers_to_an_event_is_nobodys_concern(api):
    """The server accepted the event, so an answer cut by a proxy must not cause a second one."""
    api.other = lambda _request: Reply(status=201, body=b"<html>")
    drops = []
    events = recorder(api, on_drop=drops.append)
    events.start()
    events.event(CLAIM, "Normal", "R", "m", component="c")
    events.stop(timeout_seconds=10)
    assert (len(api.requests), drops) == (1, [])


def test_repeats_patch_the_count(api):
    """L-006: identical events become one event with a count."""
    events = recorder(api, correlator=Budget(EventPlan("patch", "c.1", 7, "again")))
    events.start()
    events.event(CLAIM, "Normal", "R", "again", component="c")
    events.stop(timeout_seconds=10)
    (request,) = api.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/ns/events/c.1")
    assert (request.body["count"], request.body["message"]) == (7, "again")
    assert request.headers["Content-Type"] == "application/strategic-merge-patch+json"


def test_patch_of_an_expired_event_creates_it_again(api):
    api.other = lambda request: (
        status(404, "NotFound", "gone") if request.method == "PATCH" else Reply(status=201)
    )
    events = recorder(api, correlator=Budget(EventPlan("patch", "c.1", 7, "again")))
    events.start()
    events.event(CLAIM, "Normal", "R", "again", component="c")
    events.stop(timeout_seconds=10)
    created = api.requests[1]
    assert (created.method, created.body["metadata"]["name"], created.body["count"]) == (
        "POST",
        "c.1",
        7,
    )


def test_c086_events_over_budget_are_dropped(api):
    drops = []
    events = recorder(api, correlator=Budget(EventPlan("drop", "", 0, "")), on_drop=drops.append)
    events.start()
    events.event(CLAIM, "Normal", "R", "m", component="c")
    events.stop(timeout_seconds=10)
    assert (api.requests, drops) == ([], ["budget"])


def test_a_defect_of_the_budget_costs_one_event_and_no_thread(api):
    drops = []
    events = recorder(api, correlator=Budget(ValueError("a defect")), on_drop=drops.append)
    events.start()
    events.event(CLAIM, "Normal", "R", "m", component="c")
    events.stop(timeout_seconds=10)
    assert (api.requests, drops) == ([], ["refused"])


def test_full_queue_drops_and_returns_at_once(api):
    """An event never delays an attempt."""
    gate, drops = threading.Event(), []
    api.other = lambda _request: Reply(status=201, wait=gate)
    events = recorder(api, threads=1, queue_size=1, on_drop=drops.append)
    events.start()
    events.event(CLAIM, "Normal", "R", "first", component="c")
    wait_until(lambda: api.requests, 5, "first event is on its way", interval_seconds=0.005)
    events.event(CLAIM, "Normal", "R", "second", component="c")
    events.event(CLAIM, "Normal", "R", "third", component="c")
    assert drops == ["full"]
    gate.set()
    events.stop(timeout_seconds=10)


def test_refused_event_is_dropped_and_the_writer_goes_on(api):
    drops = []
    replies = [status(403, "Forbidden", "namespace is terminating"), Reply(status=201)]
    api.other = lambda _request: replies.pop(0)
    events = recorder(api, on_drop=drops.append)
    events.start()
    events.event(CLAIM, "Normal", "R", "one", component="c")
    events.event(CLAIM, "Normal", "R", "two", component="c")
    events.stop(timeout_seconds=10)
    assert (drops, len(api.requests)) == (["refused"], 2)
