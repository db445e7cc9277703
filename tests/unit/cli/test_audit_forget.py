"""`csi-fleet audit --forget`: which intent copies are deleted together with a stranded attempt."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli import audit
from workers.config.settings import NodeSettings
from workers.constants import LABEL_INTENT
from workers.errors import ConfigError
from workers.explain.audit import Report
from workers.kube import paths
from workers.queue.copies import copy_name
from workers.queue.keys import claim_key

DRIVER = "a.example.com"
STRANDED, CALLING = "stranded", "calling"
PLACES = ("", "@n1", "@n2")
RECORDED = [f"pvc-{one}{place}" for one in "13" for place in PLACES]


@pytest.fixture
def finished(monkeypatch):
    """Return the names of the intents that were dropped from Redis."""
    names = []
    store = SimpleNamespace(finish=names.append, all=lambda: {key: {} for key in RECORDED})
    everywhere = SimpleNamespace(everywhere=lambda: [store])
    monkeypatch.setattr(audit, "IntentStore", lambda _redis: everywhere)
    return names


def world(*, forget="pvc-1"):
    api = MemoryApi()
    tool = SimpleNamespace(forget=forget)
    settings = SimpleNamespace(tool=tool, kube=SimpleNamespace(namespace="fleet"))
    return api, SimpleNamespace(settings=settings, kube=api.kube, redis=None)


def add_copy(api, name, place, stage, *, key=None):
    uid = name.removeprefix("csi-fleet-intent-pvc-").partition(".")[0]
    text = claim_key(f"{DRIVER}{place}", "ns", "data", uid).text if key is None else key
    record = {"key": text, "stage": stage}
    metadata = {"name": name, "namespace": "fleet", "labels": {LABEL_INTENT: "true"}}
    data = {"record": json.dumps(record)}
    api.add(paths.CONFIG_MAPS, {"metadata": metadata, "data": data})


def named(volume, place):
    uid = volume.removeprefix("pvc-")
    return copy_name(claim_key(f"{DRIVER}{place}", "ns", "data", uid))


def report(*volumes):
    return Report({}, {}, 0, dict.fromkeys(volumes, ("ns/data", "no secret")))


@pytest.mark.parametrize("place", PLACES)
def test_its_copy_goes_and_those_of_other_nodes_stay(finished, place):
    """A remaining copy would restore the intent; the attempt of each node has its own copy."""
    api, tools = world(forget=f"pvc-1{place}")
    for one in PLACES:
        add_copy(api, named("pvc-1", one), one, STRANDED)
    assert audit.forget(tools, report(f"pvc-1{place}")) == 0
    kept = {one for one in PLACES if api.of(paths.CONFIG_MAPS, named("pvc-1", one), "fleet")}
    assert kept == set(PLACES) - {place}
    assert finished == [f"pvc-1{place}"]


@pytest.mark.parametrize(
    ("key", "is_counted"),
    [
        (claim_key(f"{DRIVER}@n1", "ns", "data", "1").text, True),
        (claim_key(f"{DRIVER}@n2", "ns", "data", "1").text, False),
        (claim_key(DRIVER, "ns", "data", "1").text, True),
        ("no key", True),
    ],
)
def test_attempts_of_other_nodes_own_no_volume_here(key, is_counted):
    """This is the case when one Redis serves all nodes."""
    node = NodeSettings(enabled=True, node_name="n1")
    tools = SimpleNamespace(settings=SimpleNamespace(node=node))
    assert audit._is_here(tools, {"key": key}) is is_counted
    tools.settings.node = NodeSettings()
    assert audit._is_here(tools, {"key": key})


@pytest.mark.parametrize("other", ["pvc-12", "pvc-2"])
@pytest.mark.parametrize("place", PLACES)
def test_copies_of_other_volumes_stay(finished, place, other):
    """Stranded attempts are kept too, because each is forgotten only under its own name."""
    api, tools = world()
    add_copy(api, named(other, place), place, STRANDED)
    audit.forget(tools, report("pvc-1"))
    assert api.of(paths.CONFIG_MAPS, named(other, place), "fleet")
    assert finished == ["pvc-1"]


@pytest.mark.parametrize("key", ["", "no key", "a|b"])
def test_a_copy_without_a_key_is_nobody_s(finished, key):
    """It restores nothing, and the watcher reports it."""
    api, tools = world()
    add_copy(api, f"{named('pvc-1', '')}.x", "", STRANDED, key=key)
    audit.forget(tools, report("pvc-1"))
    assert api.of(paths.CONFIG_MAPS, f"{named('pvc-1', '')}.x", "fleet")
    assert finished == ["pvc-1"]


@pytest.mark.parametrize("key", ["", "no key", "a|b"])
def test_a_copy_without_a_key_is_an_attempt_all_the_same(key):
    """Its volume must not be reported as a volume without an owner."""
    api, tools = world()
    name = "csi-fleet-intent-pvc-1"
    add_copy(api, name, "", CALLING, key=key)
    ((domain, record),) = audit._copies(tools).values()
    assert (domain, record["stage"]) == ("pvc-1", CALLING)


def test_what_is_not_stranded_is_not_forgotten(finished):
    """Such an attempt still ends on its own."""
    api, tools = world(forget="pvc-2")
    add_copy(api, named("pvc-2", ""), "", CALLING)
    with pytest.raises(ConfigError, match=r"--forget pvc-2: .* nothing was forgotten"):
        audit.forget(tools, report("pvc-1"))
    assert api.of(paths.CONFIG_MAPS, named("pvc-2", ""), "fleet")
    assert finished == []


def test_a_volume_of_another_name_is_forgotten_by_it(finished, monkeypatch):
    """A flag changed since the call; the intent holds the name that the driver was asked for."""
    _, tools = world(forget="vol-1")
    record = {"volume": "vol-1", "stage": STRANDED}
    store = SimpleNamespace(finish=finished.append, all=lambda: {"pvc-1": record, "pvc-2": {}})
    everywhere = SimpleNamespace(everywhere=lambda: [store])
    monkeypatch.setattr(audit, "IntentStore", lambda _redis: everywhere)
    assert audit.forget(tools, report("vol-1")) == 0
    assert finished == ["pvc-1"]
