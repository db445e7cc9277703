"""The objects that can be explained, their names, and answers that only the queue can give."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.dummy.echo.rules import EchoRules
from workers.cli.tools import named_object
from workers.errors import ConfigError
from workers.explain import generic, nouns
from workers.explain.nouns import Noun
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.queue.inspect import KeyState, Note, Pause
from workers.queue.keys import Key
from workers.queue.workqueue import WorkQueue
from workers.spec import Kind, Spec

KIND = Kind("things", "things.sync", "things", subject=paths.ATTACHMENTS, noun="thing")
SPEC = Spec("maker", "csi-maker", (KIND,), (), EchoRules)
NOUN = Noun("thing", paths.ATTACHMENTS, ((SPEC, KIND),))
RECORDS = {"d": {"name": "d", "controllers": ["maker"]}, "e": {"name": "e", "controllers": ["x"]}}
OBJECT = {"metadata": {"name": "one", "uid": "u1"}}


class Kube:
    """An API with a single object."""

    serves = True

    def get(self, resource, name, *, namespace=""):
        if (resource, name, namespace) != (paths.ATTACHMENTS, "one", ""):
            raise NotFoundError(404, "NotFound", "no such object")
        return OBJECT

    def is_served(self, resource):
        del resource
        return self.serves


def explain(redis_client, records=RECORDS, name="one"):
    registry = SimpleNamespace(alive=lambda: records)
    tools = SimpleNamespace(kube=Kube(), registry=registry, redis=redis_client)
    return generic.explain(tools, NOUN, namespace="", name=name)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("pvc", "a/b"), ("pvc", "a", "b")),
        (("claim", "a/b"), ("pvc", "a", "b")),
        (("persistentvolumeclaims/a/b",), ("pvc", "a", "b")),
        (("pvc/a/b",), ("pvc", "a", "b")),
        (("PersistentVolume", "x"), ("pv", "", "x")),
        (("pv/x",), ("pv", "", "x")),
    ],
)
def test_an_object_has_the_names_that_people_use(arguments, expected):
    assert named_object(arguments, "explain") == expected


@pytest.mark.parametrize("arguments", [(), ("pod", "a/b"), ("pvc", "b"), ("pv", "a/b"), ("pvc",)])
def test_a_mistake_is_answered_with_an_example(arguments):
    with pytest.raises(ConfigError, match="explain pv"):
        named_object(arguments, "explain")


def test_every_noun_has_a_resource_and_its_kinds():
    for word, noun in nouns.nouns().items():
        assert nouns.find(word) is noun or nouns.find(word) == noun
        assert {kind.noun for _, kind in noun.kinds} == {word}


def test_a_queued_key_is_found_under_any_driver_of_its_controller(redis_client):
    """The key waits because no limits are declared; the driver is found among the registrations."""
    WorkQueue(redis_client, publish=lambda keys: None).add([Key("things", "d", "one", "u1")])
    found = explain(redis_client)
    assert found.cause.code == "no-limits"
    assert found.state.key.driver == "d"


def test_nothing_waits(redis_client):
    found = explain(redis_client)
    assert (found.cause.code, found.cause.is_problem) == ("nothing-to-do", False)


@pytest.mark.parametrize(
    ("state", "code"), [({}, "nothing-to-do"), ({"due": 9.0}, "paused"), ({"fails": 1}, "paused")]
)
def test_a_pause_holds_only_what_waits(monkeypatch, redis_client, state, code):
    """A settled object is not a problem while its driver is paused."""
    key = Key("things", "d", "one", "u1")
    trail, pauses = (Note(1.0, "done", ""),), (Pause("operator", "upgrade", 0.0),)
    found = KeyState(key, 5.0, trail=trail, pauses=pauses, **state)
    monkeypatch.setattr(generic, "known_states", lambda *_: [found])
    assert explain(redis_client).cause.code == code


def test_nobody_runs_its_controller(redis_client):
    assert explain(redis_client, {"e": RECORDS["e"]}).cause.code == "no-controller"


def test_no_such_object(redis_client):
    assert explain(redis_client, name="two").cause.code == "not-found"


def test_no_such_kind(redis_client, monkeypatch):
    monkeypatch.setattr(Kube, "serves", False)
    cause = explain(redis_client, name="two").cause
    assert cause.code == "crd-missing"
    assert "the CRD volumeattachments.storage.k8s.io is not installed" in cause.text
