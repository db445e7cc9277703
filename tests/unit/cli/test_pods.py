"""`explain pod`: what it says is the answer about the pod's claims."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli import pods
from workers.errors import ConfigError
from workers.explain.facts import Cause
from workers.kube import paths
from workers.kube.errors import ForbiddenError

BOUND = Cause("bound", "It is bound.", is_problem=False)
CAUSES = {
    "fine": BOUND,
    "also": BOUND,
    "late": Cause("waits-for-consumer", "It waits.", is_problem=False),
    "bad": Cause("class-missing", "No class."),
}


def pod(*claims):
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    return {"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"volumes": volumes}}


def cause_of(monkeypatch, *claims, name="web-0"):
    api = MemoryApi()
    api.add(paths.PODS, pod(*claims))
    told = lambda _tools, _word, _namespace, claim: SimpleNamespace(cause=CAUSES[claim])  # noqa: E731
    monkeypatch.setattr(pods, "explained", told)
    return pods.cause_of(SimpleNamespace(kube=api.kube), "shop", name)


@pytest.mark.parametrize(
    ("claims", "code", "words"),
    [
        (("fine", "bad", "late"), "class-missing", "The pod uses claim bad. No class."),
        (("fine", "late"), "waits-for-consumer", "The pod uses claim late."),
        (("fine", "also"), "nothing-to-do", "nothing is known that keeps the pod"),
        ((), "nothing-to-do", "The pod uses no claim"),
    ],
)
def test_the_first_claim_with_a_problem_is_the_answer(monkeypatch, claims, code, words):
    cause = cause_of(monkeypatch, *claims)
    assert (cause.code, words in cause.text) == (code, True), cause


def test_no_such_pod(monkeypatch):
    assert cause_of(monkeypatch, name="web-1").code == "not-found"


def test_a_pod_that_may_not_be_read():
    def get(*_, **__):
        raise ForbiddenError(403, "Forbidden", "pods is forbidden")

    tools = SimpleNamespace(kube=SimpleNamespace(get=get))
    assert pods.cause_of(tools, "shop", "web-0").code == "no-permission"


@pytest.mark.parametrize(
    ("words", "given", "expected"),
    [
        (("pod", "shop/web-0"), "", ("shop", "web-0")),
        (("pods", "web-0"), "shop", ("shop", "web-0")),
        (("po/shop/web-0",), "", ("shop", "web-0")),
        (("pvc", "shop/data"), "", None),
        ((), "", None),
    ],
)
def test_the_pod_is_named_as_other_objects_are(words, given, expected):
    assert pods.named(tools_of(*words, namespace=given)) == expected


@pytest.mark.parametrize("words", [("pod", "web-0"), ("pod",), ("pod", "a/b/c"), ("pod", "a", "b")])
def test_a_pod_without_namespace_or_name_is_a_mistake(words):
    with pytest.raises(ConfigError, match="explain pod NAMESPACE/NAME"):
        pods.named(tools_of(*words))


def tools_of(*words, namespace=""):
    tool = SimpleNamespace(namespace=namespace)
    return SimpleNamespace(settings=SimpleNamespace(arguments=words, tool=tool))
