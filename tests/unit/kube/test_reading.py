"""Objects by name: as they are now, or as the API server remembers them."""

from __future__ import annotations

import pytest

from workers.kube.errors import (
    ForbiddenError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    Unreachable,
)
from workers.kube.reading import KubeReader

PATH = "/api/v1/namespaces/ns/persistentvolumeclaims/data"
CLAIM = {"metadata": {"name": "data"}}
# kube-apiserver after three seconds; with Retry-After.
UNHEARD = ServerError(504, "Timeout", "Too large resource version: 900, current: 7")


class Getter:
    """Answers in turn; an exception is raised."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def get(self, path, query=None, *, final=()):
        self.asked.append((path, query, final))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


LIVE = (PATH, None, ())
REMEMBERED = (PATH, {"resourceVersion": "900"}, (504,))


def test_live_is_without_a_version():
    getter = Getter(CLAIM)
    assert KubeReader(getter).get_claim("ns", "data") == CLAIM
    assert getter.asked == [LIVE]


def test_what_is_no_older_than_a_version_will_do():
    getter = Getter(CLAIM)
    assert KubeReader(getter).get_claim("ns", "data", at_least=900) == CLAIM
    assert getter.asked == [REMEMBERED]


def test_a_server_that_has_not_heard_of_it_is_asked_live_and_at_once():
    """It has waited for three seconds; Retry-After would have us wait as long three times more."""
    getter = Getter(UNHEARD, CLAIM)
    assert KubeReader(getter).get_claim("ns", "data", at_least=900) == CLAIM
    assert getter.asked == [REMEMBERED, LIVE]


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError(404, "NotFound", 'persistentvolumeclaims "data" not found'),
        ForbiddenError(403, "Forbidden", "no"),
        TooManyRequestsError(429, "TooManyRequests", "later"),
        ServerError(500, "InternalError", "etcd"),
        Unreachable("no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_answer_is_final(error):
    getter = Getter(error)
    with pytest.raises(type(error)):
        KubeReader(getter).get_claim("ns", "data", at_least=900)
    assert getter.asked == [REMEMBERED]
