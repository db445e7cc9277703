"""One request: texts, retries, credentials, configuration."""

from __future__ import annotations

import json

import pytest

from tests.support.fake_api import FakeApi, Reply, page, status
from workers.errors import ConfigError, LeaseLost
from workers.kube import paths
from workers.kube.client import KubeClient, Throttle
from workers.kube.connection import connect
from workers.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    Unreachable,
    error_from_response,
    error_from_status,
)
from workers.kube.resources import KubeResources
from workers.kube.retry import update_with_retry


@pytest.fixture
def api():
    with FakeApi() as api:
        yield api


@pytest.fixture
def client(api):
    return KubeClient.from_settings(master=api.url)


@pytest.mark.parametrize(
    ("reply", "error_class"),
    [
        (status(401, "Unauthorized", "m"), UnauthorizedError),
        (status(403, "Forbidden", "m"), ForbiddenError),
        (status(404, "NotFound", "m"), NotFoundError),
        (status(409, "AlreadyExists", "m"), AlreadyExistsError),
        (status(409, "Conflict", "m"), ConflictError),
        (status(410, "Expired", "m"), GoneError),
        (status(422, "Invalid", "m"), InvalidError),
        (status(429, "TooManyRequests", "m"), TooManyRequestsError),
        (status(500, "InternalError", "m"), ServerError),
        (status(503, "ServiceUnavailable", "m"), ServerError),
    ],
)
def test_status_body_gives_class_and_message(api, client, reply, error_class):
    api.other = lambda _request: reply
    with pytest.raises(error_class) as caught:
        client.get("/api/v1/persistentvolumes/x")
    assert str(caught.value) == "m"
    assert type(caught.value) is error_class


POLICY = "persistentvolumes \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"
WEBHOOK = 'admission webhook "validate.kyverno.svc" denied the request: no'
BAD_LABEL = {"reason": "FieldValueInvalid", "message": "bad label", "field": "metadata.labels"}


@pytest.mark.parametrize(
    ("code", "message", "causes", "error_class"),
    [
        (422, POLICY, [{"message": "no"}], ForbiddenError),
        (422, WEBHOOK, None, ForbiddenError),
        (400, WEBHOOK, None, ForbiddenError),
        (422, 'PersistentVolume "a" is invalid', [BAD_LABEL], InvalidError),
        (400, "quantities must match the regular expression", None, InvalidError),
        (422, "the server rejected our request due to an error in our request", None, InvalidError),
        (500, "failed calling webhook", [{"message": "failed calling webhook"}], ServerError),
    ],
)
def test_a_refusal_by_admission_says_nothing_about_the_object(code, message, causes, error_class):
    details = {} if causes is None else {"causes": causes}
    found = error_from_status({"code": code, "message": message, "details": details})
    assert (type(found), found.status, str(found)) == (error_class, code, message)


@pytest.mark.parametrize(
    "details", [None, [], "x", {"causes": {}}, {"causes": []}, {"causes": [None]}, {"causes": "x"}]
)
def test_details_of_a_wrong_type_count_as_absent(details):
    found = error_from_status({"code": 422, "message": "bad", "details": details})
    assert isinstance(found, InvalidError)


@pytest.mark.parametrize(
    ("code", "method", "path", "text"),
    [
        pytest.param(
            404,
            "GET",
            "/apis/storage.k8s.io/v1/volumeattributesclasses/gold",
            "the server could not find the requested resource "
            "(get volumeattributesclasses.storage.k8s.io gold)",
            id="kind not served",
        ),
        pytest.param(
            503,
            "POST",
            "/api/v1/namespaces/ns/events",
            "the server is currently unable to handle the request (post events)",
            id="unavailable",
        ),
        pytest.param(
            500,
            "GET",
            "/api/v1/namespaces/ns/secrets/s",
            'an error on the server ("boom") has prevented the request from succeeding '
            "(get secrets s)",
            id="internal error",
        ),
        pytest.param(
            404,
            "GET",
            "/api/v1/namespaces/ns",
            "the server could not find the requested resource (get namespaces ns)",
            id="namespace itself",
        ),
    ],
)
def test_other_bodies_give_client_go_texts(code, method, path, text):
    """The texts are those of apimachinery's NewGenericServerResponse."""
    assert str(error_from_response(code, b"boom", method=method, path=path)) == text


def test_refusal_with_retry_after_is_repeated_for_writes_too(api):
    """client-go retries every verb, because the server said that it did nothing."""
    waits = []
    client = KubeClient(lambda: connect("", api.url), sleep=waits.append)
    replies = [status(429, "TooManyRequests", "m", Retry_After="2"), Reply(body=b'{"a":1}')]
    api.other = lambda _request: replies.pop(0)
    assert client.create("/api/v1/persistentvolumes", {"x": 1}) == {"a": 1}
    assert [request.body for request in api.requests] == [{"x": 1}, {"x": 1}]
    assert waits == [2.0]


def test_repeats_end(api):
    waits = []
    client = KubeClient(lambda: connect("", api.url), sleep=waits.append)
    api.other = lambda _request: status(503, "ServiceUnavailable", "m", Retry_After="60")
    with pytest.raises(ServerError):
        client.get("/api/v1/nodes/x")
    assert len(api.requests) == 4
    assert waits == [5.0] * 3


def test_unanswered_write_is_not_repeated(api, client):
    """Only the caller knows whether a second POST is harmless."""
    api.other = lambda _request: Reply(is_dropped=True)
    with pytest.raises(Unreachable):
        client.create("/api/v1/persistentvolumes", {})
    assert len(api.requests) == 1


class Lease:
    """A lease that is held until it is lost."""

    def __init__(self):
        self.is_held = True

    def guard(self):
        return self.check if self.is_held else None

    def check(self):
        if not self.is_held:
            raise LeaseLost("lost")


def test_a_write_that_waited_asks_again_whether_the_lease_is_held(api):
    """COR2-9: this applies to waits for Retry-After and for --kube-api-qps."""
    lease = Lease()

    def wait(_seconds):
        lease.is_held = False

    api.other = lambda _request: status(429, "TooManyRequests", "m", Retry_After="1")
    client = KubeClient(lambda: connect("", api.url), sleep=wait, guard=lease.guard)
    with pytest.raises(LeaseLost):
        client.create("/api/v1/persistentvolumes", {})
    assert len(api.requests) == 1
    lease.is_held = True
    client._throttle = Throttle(1.0, 1, sleep=wait)
    client._throttle.wait()
    with pytest.raises(LeaseLost):
        client.create("/api/v1/persistentvolumes", {})
    assert len(api.requests) == 1


def test_a_write_that_needs_no_lease_goes_out_without_one(api):
    """An intent copy is saved even after the lease was lost; reads need no lease either."""
    lease = Lease()
    lease.is_held = False
    api.other = lambda _request: Reply(body=b"{}")
    client = KubeClient(lambda: connect("", api.url), guard=lease.guard)
    client.create("/api/v1/namespaces/n/configmaps", {})
    client.get("/api/v1/namespaces/n/configmaps/c")
    assert len(api.requests) == 2


def test_no_server_is_unreachable():
    with pytest.raises(Unreachable, match=r'^Get "http://127.0.0.1:9/x": '):
        KubeClient.from_settings(master="http://127.0.0.1:9").get("/x")


def test_answer_that_is_no_json_is_our_error(api, client):
    api.other = lambda _request: Reply(body=b"<html>")
    with pytest.raises(ApiError):
        client.get("/x")


def test_delete_sends_preconditions_only_if_given(api, client):
    """M-006: a delete never affects another object of the same name."""
    api.other = lambda _request: Reply()
    client.delete("/api/v1/persistentvolumes/pv", uid="u")
    client.delete("/api/v1/persistentvolumes/pv")
    assert api.requests[0].body["preconditions"] == {"uid": "u"}
    assert api.requests[1].body["preconditions"] == {}


def kubeconfig(tmp_path, url, token, name="config"):
    path = tmp_path / name
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return str(path)


def test_refused_credentials_are_loaded_once_more(api, tmp_path, monkeypatch):
    """The official client caches tokens from files forever (pitfalls 4.3)."""
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def other(request):
        good = request.headers.get("Authorization", "").endswith("new")
        return Reply(body=b'{"ok":1}') if good else status(401, "Unauthorized", "Unauthorized")

    api.other = other
    client = KubeClient.from_settings(kubeconfig(tmp_path, api.url, "old"))
    kubeconfig(tmp_path, api.url, "new")
    assert client.get("/x") == {"ok": 1}
    kubeconfig(tmp_path, api.url, "bad")
    client._connection = client._load()
    with pytest.raises(UnauthorizedError):
        client.get("/x")
    assert len(api.requests) == 3


def test_f010_master_overrides_the_address(tmp_path, monkeypatch):
    """KUBECONFIG is read together with the flags, and not again here."""
    flag = kubeconfig(tmp_path, "http://flag:1", "t", "flag")
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, "http://env:1", "t", "env"))
    assert connect(flag, "").base_url == "http://flag:1"
    assert connect(flag, "http://m:2/").base_url == "http://m:2"
    assert connect("", "m:2").base_url == "http://m:2"


@pytest.mark.parametrize("path", ["/does/not/exist", ""])
def test_f014_unusable_configuration_is_one_line_and_exit_code_255(path):
    with pytest.raises(ConfigError) as caught:
        connect(path, "")
    assert caught.value.exit_code == 255
    assert "--kubeconfig" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_c122_conflicting_update_is_repeated_with_a_fresh_read():
    """S-015: each attempt applies the change to a fresh object."""
    versions = iter([1, 2])
    seen = []

    def update(item):
        seen.append(item["v"])
        if item["v"] == 1:
            raise ConflictError(409, "Conflict", "changed")
        return item

    result = update_with_retry(lambda: {"v": next(versions)}, lambda item: {**item, "x": 1}, update)
    assert (result, seen) == ({"v": 2, "x": 1}, [1, 2])


def test_conflicts_end_after_three_updates():
    updates = []

    def update(item):
        updates.append(item)
        raise ConflictError(409, "Conflict", "changed")

    with pytest.raises(ConflictError):
        update_with_retry(dict, lambda item: item, update)
    assert len(updates) == 3


def test_nothing_to_change_is_no_update():
    def update(_item):
        raise AssertionError("no update is due")

    assert update_with_retry(lambda: {"a": 1}, lambda _item: None, update) == {"a": 1}


def test_list_follows_pages_and_names_the_kind(api, client):
    path = "/api/v1/namespaces/ns/configmaps"
    api.lists[path] += [page([{"a": 1}], "1", "t"), page([{"a": 2}], "1")]
    found = list(KubeResources(client).list_config_maps("ns", "k=v"))
    assert [item["a"] for item in found] == [1, 2]
    assert found[0]["kind"] == "ConfigMap"
    assert api.requests[1].query == {"limit": "500", "labelSelector": "k=v", "continue": "t"}


def test_paths_are_quoted():
    assert paths.SECRETS.path("a/b", namespace="n s") == "/api/v1/namespaces/n%20s/secrets/a%2Fb"


def test_throttle_lets_a_burst_pass_then_keeps_the_rate():
    now, slept = [0.0], []
    throttle = Throttle(2.0, 3, clock=lambda: now[0], sleep=slept.append)
    for _ in range(5):
        throttle.wait()
    assert slept == [0.5, 1.0]
