"""A shadow's writes return what the API server would, and last only for their reconcile."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.support.fake_context import FakeWorld
from tests.support.shadow_world import Predictions, reading
from workers.engine.shadow import recording
from workers.engine.shadow.history import History
from workers.engine.shadow.recording import Views
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from workers.queue.keys import Key
from workers.queue.leases import CURRENT

PV = paths.VOLUMES.path("pv1")
CLAIM = paths.CLAIMS.path("data", namespace="shop")


def enter(name="a", token="t"):
    """Start a reconcile in this thread."""
    CURRENT.set(SimpleNamespace(key=Key("work", "d", name), token=token))


@pytest.fixture(autouse=True)
def _no_pass():
    CURRENT.set(None)
    yield
    CURRENT.set(None)


@pytest.fixture
def world():
    """Return a world with one volume and one claim."""
    world = FakeWorld()
    world.api.add(
        paths.VOLUMES, {"metadata": {"name": "pv1"}, "spec": {}, "status": {"phase": "x"}}
    )
    metadata = {"name": "data", "namespace": "shop"}
    world.api.add(paths.CLAIMS, {"metadata": metadata, "spec": {}, "status": {"phase": "x"}})
    return world


@pytest.fixture
def api(world):
    """The shadow's client inside a reconcile; `api.views.store.found` holds the predictions."""
    with reading(world) as api:
        api.views.store = Predictions()
        enter()
        yield api


def test_what_was_made_is_there_for_the_rest_of_the_pass(api):
    """It has a uid, cannot be created twice, and is predicted as an object that did not exist."""
    body = {"metadata": {"name": "pv2"}, "spec": {"a": 1}}
    made = api.create("/api/v1/persistentvolumes", body)
    assert made["metadata"] == {"name": "pv2", "uid": "shadow-pv2", "resourceVersion": "0"}
    path = paths.VOLUMES.path("pv2")
    assert api.get(path) == made
    assert body == {"metadata": {"name": "pv2"}, "spec": {"a": 1}}, "ours stays as it was"
    with pytest.raises(AlreadyExistsError):
        api.create("/api/v1/persistentvolumes", body)
    (one,) = api.views.store.found.values()
    assert (one.path, one.base, one.wanted) == (path, None, made)
    enter("another")
    with pytest.raises(NotFoundError):
        api.get(path)


def test_a_name_is_made_where_only_its_beginning_is_given(api):
    """The shadow completes `generateName`, as the API server does."""
    made = api.create("/api/v1/persistentvolumes", {"metadata": {"generateName": "pvc-"}})
    assert made["metadata"]["name"] == "pvc-shadow"


def test_what_exists_in_the_cluster_is_not_made_again(api):
    with pytest.raises(AlreadyExistsError):
        api.create("/api/v1/persistentvolumes", {"metadata": {"name": "pv1"}})
    assert api.views.store.found == {}


@pytest.mark.parametrize("is_old", [True, False])
def test_a_write_on_an_older_version_is_a_conflict(api, is_old):
    """Without this check a shadow would predict a write that the API server refuses the sidecar."""
    version = "1" if is_old else api.get(PV)["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}}
    if is_old:
        with pytest.raises(ConflictError):
            api.patch(PV, patch, MERGE_PATCH)
    else:
        assert api.patch(PV, patch, MERGE_PATCH)["metadata"]["labels"] == {"a": "b"}
    assert (PV in api.views.store.found) is not is_old


@pytest.mark.parametrize(("path", "labels"), [(PV, None), (CLAIM, {"a": "b"})], ids=["pv", "claim"])
def test_r035_a_status_write_changes_metadata_of_a_claim_alone(api, path, labels):
    """R-035: a status write never changes the spec, and no other write changes the status."""
    change = {"metadata": {"labels": {"a": "b"}}, "spec": {"n": 1}, "status": {"phase": "y"}}
    after = api.patch(f"{path}/status", change, MERGE_PATCH)
    assert (after["spec"], after["status"]) == ({}, {"phase": "y"})
    assert after["metadata"].get("labels") == labels
    after = api.patch(path, {"spec": {"n": 2}, "status": {"phase": "z"}}, MERGE_PATCH)
    assert (after["spec"], after["status"]) == ({"n": 2}, {"phase": "y"})


def test_a_replaced_object_keeps_its_identity(api):
    """A PUT replaces everything except the uid and the status."""
    before = api.get(PV)
    metadata = {"name": "pv1", "labels": {"a": "b"}}
    after = api.update(PV, {"metadata": metadata, "spec": {"n": 1}})
    assert after["metadata"] == {**metadata, "uid": before["metadata"]["uid"]}
    assert (after["spec"], after["status"]) == ({"n": 1}, {"phase": "x"})


@pytest.mark.parametrize("finalizers", [[], ["held"]], ids=["free", "held"])
def test_a_deletion_answers_with_the_object(api, finalizers):
    """It returns the old object, or the marked one if it has a finalizer, and marks it once."""
    api.patch(PV, {"metadata": {"finalizers": finalizers}}, MERGE_PATCH)
    before = api.get(PV)
    answer = json.loads(api.request("DELETE", PV))
    if not finalizers:
        assert answer == before
        with pytest.raises(NotFoundError):
            api.get(PV)
        return
    marked = api.get(PV)
    mark = marked["metadata"]["deletionTimestamp"]
    assert answer == marked
    assert marked == {**before, "metadata": {**before["metadata"], "deletionTimestamp": mark}}
    api.request("DELETE", PV)
    assert api.get(PV) == marked


def test_a_change_that_changes_nothing_is_not_foreseen(api):
    """Writes outside a reconcile, or in a process without a prediction store, do not count."""
    api.patch(PV, {"spec": {}}, MERGE_PATCH)
    assert api.views.store.found == {}
    api.views.store = None
    assert api.patch(PV, {"spec": {"n": 1}}, MERGE_PATCH)["spec"] == {"n": 1}
    CURRENT.set(None)
    assert api.patch(PV, {"spec": {"n": 1}}, MERGE_PATCH) == {"spec": {"n": 1}}
    assert api.get(PV)["spec"] == {}


def test_a_view_ends_with_its_lease():
    """The next reconcile of the key reads the real state of the cluster."""
    views = Views()
    enter()
    view = views.current()
    views.called("Method", {"a": 1})
    assert views.current() is view
    assert view.calls == [{"method": "Method", "request": {"a": 1}}]
    enter(token="u")
    assert views.current() is not view
    CURRENT.set(None)
    assert views.current() is None
    views.called("Method", {})


def test_of_too_many_views_the_one_unused_for_longest_goes(monkeypatch):
    """Reconciles that have ended leave their views behind, so the number of views is bounded."""
    monkeypatch.setattr(recording, "_MOST_VIEWS", 2)
    views, kept = Views(), {}
    for name in ("a", "b", "a", "c"):
        enter(name)
        kept[name] = views.current()
    for name, is_kept in (("a", True), ("c", True), ("b", False)):
        enter(name)
        assert (views.current() is kept[name]) is is_kept


class Client:
    """An API server that answers a watch with these lines, and a list with a version."""

    def __init__(self, lines=b""):
        self.lines, self.asked = lines, []

    def request(self, method, path, *, query):
        self.asked.append((method, path, query))
        return self.lines

    def get(self, path, query):
        self.asked.append(("GET", path, query))
        if not self.lines:
            raise NotFoundError(404, "NotFound", "no")
        return {"metadata": {"resourceVersion": "7"}}


def test_an_object_s_states_are_those_it_was_written_in():
    """Deletions and bookmarks are not states. A watch starts at the version and lasts 1 s."""
    lines = b"\n".join(
        b'{"type": "%s", "object": {"n": %d}}' % (word, number)
        for number, word in enumerate((b"ADDED", b"MODIFIED", b"DELETED", b"BOOKMARK"))
    )
    client = Client(lines + b"\n\n")
    history = History(client)
    assert history.states(PV, "5") == [{"n": 0}, {"n": 1}]
    assert history.version(PV) == "7"
    collection = "/api/v1/persistentvolumes"
    query = {
        "watch": "1",
        "resourceVersion": "5",
        "fieldSelector": "metadata.name=pv1",
        "timeoutSeconds": "1",
    }
    assert client.asked == [("GET", collection, query), ("GET", collection, {"limit": "1"})]


def test_what_the_api_server_does_not_know_any_more_is_nothing():
    assert History(Client()).version(PV) == ""
    assert History(Client(b"no JSON")).states(PV, "5") == []
