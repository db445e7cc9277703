"""Which tokens may read the metrics: the API server decides, and a minute's cache remembers."""

from __future__ import annotations

import pytest

from workers.kube.errors import ForbiddenError
from workers.kube.reviews import PathReaders


class Client:
    """An API server that knows one token and whether its owner may read the path."""

    def __init__(self, *, is_allowed=True, error=None):
        self.is_allowed, self.error, self.asked = is_allowed, error, []

    def create(self, path, body):
        self.asked.append((path.rpartition("/")[2], body["spec"]))
        if self.error is not None:
            raise self.error
        if "tokenreviews" in path:
            user = {"username": "prometheus", "groups": ["monitoring"]}
            return {"status": {"authenticated": body["spec"]["token"] == "good", "user": user}}
        return {"status": {"allowed": self.is_allowed}}


def test_a_known_token_whose_owner_may():
    client = Client()
    assert PathReaders(client, "/metrics").allows("good")
    attributes = {"path": "/metrics", "verb": "get"}
    assert client.asked[1][1] == {
        "user": "prometheus",
        "groups": ["monitoring"],
        "nonResourceAttributes": attributes,
    }


@pytest.mark.parametrize(
    ("token", "options", "count"),
    [("", {}, 0), ("forged", {}, 1), ("good", {"is_allowed": False}, 2)],
)
def test_nobody_else(token, options, count):
    client = Client(**options)
    assert not PathReaders(client, "/metrics").allows(token)
    assert len(client.asked) == count


def test_an_answer_is_remembered_and_asked_again_after_a_minute():
    """A scrape costs no request, and a revoked token is refused within a minute."""
    client, now = Client(), [0.0]
    readers = PathReaders(client, "/metrics", clock=lambda: now[0])
    assert [readers.allows("good") for _ in range(3)] == [True] * 3
    assert len(client.asked) == 2
    client.is_allowed, now[0] = False, 61.0
    assert not readers.allows("good")


def test_without_an_answer_nothing_is_shown_nor_remembered():
    client = Client(error=ForbiddenError(403, "Forbidden", "no"))
    readers = PathReaders(client, "/metrics")
    assert not readers.allows("good")
    client.error = None
    assert readers.allows("good")
