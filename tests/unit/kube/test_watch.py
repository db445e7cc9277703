"""The reflector against a scripted API server: gaps, odd data, silence."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import pytest

from tests.support.fake_api import FakeApi, Reply, events, page, status
from tests.support.kube_objects import claim_json
from tests.support.waiting import wait_until
from workers.backoff import Backoff
from workers.kube.client import KubeClient
from workers.kube.objects import Claim
from workers.kube.watch import SILENCE_SECONDS, Reflector

PATH = "/api/v1/persistentvolumeclaims"


class Recorder:
    """Records each call of the reflector."""

    def __init__(self):
        self.calls = []

    def begin_list(self):
        self.calls.append("begin")

    def listed(self, item):
        self.calls.append(("listed", item.metadata.name))

    def end_list(self, resource_version):
        self.calls.append(("end", resource_version))

    def changed(self, item):
        self.calls.append(("changed", item.metadata.name))

    def deleted(self, item):
        self.calls.append(("deleted", item.metadata.name))


@pytest.fixture
def api():
    with FakeApi() as api:
        yield api


@pytest.fixture
def sink():
    return Recorder()


@pytest.fixture
def reflect(api, sink):
    """Yield a function that starts a reflector; all reflectors are stopped at the end."""
    running = []

    def start(**options):
        client = KubeClient.from_settings(master=api.url)
        options.setdefault("backoff", Backoff(0.01, 0.02))
        item_type = options.pop("item_type", Claim)
        reflector = Reflector(client, PATH, item_type, sink, **options)
        thread = threading.Thread(target=reflector.run)
        thread.start()
        running.append((reflector, thread))
        return reflector

    yield start
    for reflector, thread in running:
        reflector.stop()
        thread.join(5)
        assert not thread.is_alive()


def until(condition, description="reflector"):
    return wait_until(condition, 10, description, interval_seconds=0.005)


def item(name, version="1"):
    return claim_json(name, uid=name, version=version)


def watches(api):
    return [request.query for request in api.requests if "watch" in request.query]


def test_pages_are_one_list_then_the_watch_starts_at_its_version(api, sink, reflect):
    api.lists[PATH] += [page([item("a")], "7", "t1"), page([item("b")], "7")]
    reflect()
    until(lambda: watches(api))
    assert sink.calls == ["begin", ("listed", "a"), ("listed", "b"), ("end", "7")]
    assert [request.query.get("continue") for request in api.requests[:2]] == [None, "t1"]
    query = watches(api)[0]
    assert (query["resourceVersion"], query["allowWatchBookmarks"]) == ("7", "true")
    assert 240 <= int(query["timeoutSeconds"]) <= 300


def test_events_reach_the_sink(api, sink, reflect):
    api.lists[PATH].append(page([], "1"))
    api.watches[PATH].append(
        events(
            ("ADDED", item("a", "2")),
            ("MODIFIED", item("a", "3")),
            ("DELETED", item("a", "4")),
            stays_open=True,
        )
    )
    reflect()
    until(lambda: ("deleted", "a") in sink.calls)
    assert sink.calls[2:] == [("changed", "a"), ("changed", "a"), ("deleted", "a")]


def test_objects_taken_whole_are_told_and_their_versions_count(api, sink, reflect):
    """Storage classes reach the shared cache unchanged."""
    told = []
    sink.changed = told.append
    api.lists[PATH].append(page([], "1"))
    odd = {"metadata": "odd"}
    api.watches[PATH].append(events(("ADDED", item("a", "7")), ("ADDED", odd)))
    reflect(item_type=dict[str, Any])
    until(lambda: len(watches(api)) == 2)
    assert told == [item("a", "7"), odd]
    assert watches(api)[1]["resourceVersion"] == "7"


def test_watch_goes_on_at_the_last_bookmark(api, sink, reflect):
    """Without bookmarks the version of a quiet kind would expire, and it would be listed again."""
    api.lists[PATH].append(page([], "1"))
    api.watches[PATH] += [events(("BOOKMARK", {"metadata": {"resourceVersion": "50"}}))]
    reflect()
    until(lambda: len(watches(api)) == 2)
    assert watches(api)[1]["resourceVersion"] == "50"
    assert api.count(PATH, watch=False) == 1


EXPIRED_EVENT = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(status(410, "Expired", "too old"), id="HTTP status"),
        pytest.param(events(("ERROR", EXPIRED_EVENT)), id="ERROR event"),
    ],
)
def test_expired_watch_leads_to_a_new_list(api, sink, reflect, reply):
    """C-148, pitfalls 4.2: the server may report 410 in two ways."""
    api.lists[PATH] += [page([item("a")], "1"), page([item("b")], "9")]
    api.watches[PATH].append(reply)
    reflect()
    until(lambda: ("end", "9") in sink.calls)
    assert sink.calls[-3:] == ["begin", ("listed", "b"), ("end", "9")]


def test_list_that_expires_between_pages_starts_over_with_larger_pages(api, sink, reflect):
    api.lists[PATH] += [
        page([item("a")], "1", "t1"),
        status(410, "Expired", "token too old"),
        page([item("a")], "2"),
    ]
    reflect()
    until(lambda: ("end", "2") in sink.calls)
    assert sink.calls == ["begin", ("listed", "a"), "begin", ("listed", "a"), ("end", "2")]
    assert [request.query["limit"] for request in api.requests[:3]] == ["500", "500", "2000"]


def test_odd_object_is_skipped_and_its_version_counts(api, sink, reflect):
    """One object of an unexpected form must not stop the others."""
    odd = {"metadata": {"name": "odd", "resourceVersion": "5"}, "spec": {"volumeName": 7}}
    api.lists[PATH].append(page([odd, item("a")], "1"))
    api.watches[PATH].append(events(("ADDED", odd)))
    reflect()
    until(lambda: len(watches(api)) == 2)
    assert sink.calls == ["begin", ("listed", "a"), ("end", "1")]
    assert watches(api)[1]["resourceVersion"] == "5"


def test_broken_line_is_tried_again_then_listed(api, sink, reflect):
    """A line cut by a proxy is requested once more; a line that stays broken needs a list."""
    api.lists[PATH] += [page([], "1"), page([item("a")], "9")]
    api.watches[PATH] += [Reply(lines=[b'{"type":"ADDED","obj']), Reply(lines=[b"{{"])]
    reflect()
    until(lambda: ("end", "9") in sink.calls)
    assert [query["resourceVersion"] for query in watches(api)[:2]] == ["1", "1"]


def test_unreadable_list_is_tried_again(api, sink, reflect):
    api.lists[PATH] += [Reply(body=b"<html>"), page([item("a")], "2")]
    reflect()
    until(lambda: ("end", "2") in sink.calls)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(status(500, "InternalError", "boom"), id="500"),
        pytest.param(status(403, "Forbidden", "no list"), id="403"),
        pytest.param(status(429, "TooManyRequests", "later", Retry_After="0"), id="429"),
    ],
)
def test_refused_list_is_retried_and_health_tells(api, sink, reflect, refusal):
    """RB-003: a missing permission is reported, and the error ends once it is granted."""
    api.lists[PATH].append(refusal)
    reflector = reflect()
    until(lambda: reflector.health.error)
    assert not reflector.health.is_synced
    api.lists[PATH].append(page([], "3"))
    until(lambda: reflector.health.is_synced)
    assert reflector.health.error == ""


def test_a_silent_watch_is_opened_again_from_where_it_was(api, sink, reflect, monkeypatch):
    """COR2-7: half-open connections hang forever without a read timeout (pitfalls 4.2)."""
    assert SILENCE_SECONDS <= 90
    monkeypatch.setattr("workers.kube.watch.SILENCE_SECONDS", 0.2)
    api.lists[PATH].append(page([], "1"))
    api.watches[PATH].append(events(("ADDED", item("a", "7")), stays_open=True))
    reflector = reflect()
    until(lambda: len(watches(api)) >= 3)
    assert [query["resourceVersion"] for query in watches(api)[:3]] == ["1", "7", "7"]
    assert api.count(PATH, watch=False) == 1
    # A kind without bookmarks may be quiet for long and still be healthy.
    assert reflector.health.error == ""


def test_a_watch_that_is_never_answered_is_given_up(api, sink, reflect, monkeypatch):
    """COR2-7: the server froze before it sent the first byte."""
    monkeypatch.setattr("workers.kube.watch.SILENCE_SECONDS", 0.2)
    gate = threading.Event()
    api.lists[PATH].append(page([], "1"))
    api.watches[PATH].append(Reply(lines=[], wait=gate))
    reflector = reflect()
    until(lambda: len(watches(api)) >= 2)
    gate.set()
    until(lambda: reflector.health.is_watching)


def test_bookmarks_keep_a_quiet_watch_open(api, sink, reflect, monkeypatch):
    """COR2-7: a bookmark counts as a sign of life."""
    monkeypatch.setattr("workers.kube.watch.SILENCE_SECONDS", 0.5)
    pause = threading.Event()

    def bookmarks():
        for version in range(5, 10):
            bookmark = {"metadata": {"resourceVersion": str(version)}}
            yield json.dumps({"type": "BOOKMARK", "object": bookmark}).encode()
            pause.wait(0.2)

    api.lists[PATH].append(page([], "1"))
    api.watches[PATH].append(Reply(lines=bookmarks(), stays_open=True))
    reflector = reflect()
    until(lambda: reflector.health.version == "9")
    assert len(watches(api)) == 1
    assert reflector.health.is_watching


def test_what_is_known_is_told_apart_from_the_present(api, sink, reflect):
    """COR2-3: one is the newest received version, the other the server's current version."""
    api.lists[PATH] += [page([], "5"), page([], "3")]
    api.watches[PATH].append(events(("ADDED", item("a", "7")), stays_open=True))
    reflector = reflect()
    until(lambda: reflector.health.version == "7")
    assert reflector.present_version() == "3"
    assert api.requests[-1].query == {"limit": "1"}
    reflector.relist()
    until(lambda: reflector.health.version == "3")


def test_slow_list_does_not_hold_up_stop_of_others(api, sink, reflect):
    """Stop while a page is awaited: the sink gets no further calls."""
    gate = threading.Event()
    slow = page([item("a")], "1", "more")
    slow.wait = gate
    api.lists[PATH].append(slow)
    reflector = reflect()
    until(lambda: api.requests)
    reflector.stop()
    gate.set()
    until(lambda: "begin" in sink.calls)
    assert ("end", "1") not in sink.calls


def test_relist_on_demand(api, sink, reflect):
    """The shared cache is filled again this way after Redis lost it."""
    api.lists[PATH].append(page([item("a")], "1"))
    reflector = reflect()
    until(lambda: watches(api))
    reflector.relist()
    until(lambda: sink.calls.count("begin") == 2 and len(watches(api)) == 2)


def test_defect_in_a_sink_leads_to_a_new_list(api, sink, reflect):
    """The list finds the events that the sink missed."""
    api.lists[PATH].append(page([], "1"))
    api.watches[PATH].append(events(("ADDED", item("a", "2"))))
    sink.changed = lambda _item: 1 / 0
    reflect()
    until(lambda: sink.calls.count("begin") == 2)


def test_server_away_then_back(sink):
    """One loop survives an API server that is restarted at the same address."""
    client = KubeClient.from_settings(master="http://127.0.0.1:9")
    reflector = Reflector(client, PATH, Claim, sink, backoff=Backoff(0.01, 0.02))
    thread = threading.Thread(target=reflector.run)
    thread.start()
    until(lambda: "onnect" in reflector.health.error)
    with FakeApi() as api:
        api.lists[PATH].append(page([], "1"))
        reflector._client = KubeClient.from_settings(master=api.url)
        until(lambda: reflector.health.is_synced)
        reflector.stop()
        thread.join(5)
    assert not thread.is_alive()


def test_watches_that_end_at_once_are_not_repeated_in_a_tight_loop(api, sink, reflect):
    """The official informer sends requests in a tight loop here (pitfalls 4.2)."""
    api.lists[PATH].append(page([], "1"))
    api.watches[PATH] += [Reply(lines=[]) for _ in range(3)]
    waits = []

    class Counting(Backoff):
        def next_seconds(self):
            waits.append(1)
            return 0.001

    reflect(backoff=Counting())
    until(lambda: len(watches(api)) == 4)
    assert len(waits) == 3


NOT_SERVED = status(404, "NotFound", "the server could not find the requested resource")


def test_a_kind_that_is_not_served_is_no_failure_and_starts_when_it_appears(api, sink, reflect):
    """Snapshot CRDs may be installed later or never: no error, no loop, and still ready."""
    api.lists[PATH] += [NOT_SERVED, NOT_SERVED, page([item("a")], "5")]
    reflector = reflect(look_again_seconds=0.01)
    until(lambda: ("end", "5") in sink.calls)
    assert sink.calls == ["begin", "begin", "begin", ("listed", "a"), ("end", "5")]
    assert reflector.health.is_served


def test_a_kind_that_is_not_served_is_looked_for_rarely(api, reflect):
    """Each check is a request; a caller that needs it earlier has to request a list."""
    api.lists[PATH] += [NOT_SERVED, page([], "5")]
    reflector = reflect(look_again_seconds=3600)
    until(lambda: not reflector.health.is_served)
    assert (reflector.health.is_synced, reflector.health.error) == (True, "")
    assert api.count(PATH, watch=False) == 1
    reflector.relist()
    until(lambda: reflector.health.is_served and reflector.health.lists)


def test_objects_of_a_kind_that_is_served_no_more_are_gone(api, sink, reflect):
    """A deleted CRD removes its objects without an event for each."""
    api.lists[PATH] += [page([item("a")], "5"), NOT_SERVED]
    api.watches[PATH] += [NOT_SERVED]
    reflector = reflect(look_again_seconds=3600)
    until(lambda: not reflector.health.is_served)
    assert sink.calls == ["begin", ("listed", "a"), ("end", "5"), "begin", ("end", "0")]


def test_unknown_fields_and_nulls_decode():
    """The API server really sends objects with null maps and unknown fields."""
    raw = b'{"metadata":{"name":"a","annotations":null,"managedFields":[{}]},"status":{}}'
    assert msgspec.json.decode(raw, type=Claim).metadata.annotation("x") is None
