"""Intents that exist only in a ConfigMap are restored."""

from __future__ import annotations

import json

import pytest

from watcher.intents import restore_intents
from workers.queue.copies import NAME_PREFIX, copy_name
from workers.queue.keys import Key

KEY = "claims|foo|default/claim1|u1"
DRIVERS = {"foo"}


class FakeResources:
    def __init__(self, *config_maps):
        self.config_maps = config_maps
        self.gone = set()

    def list_config_maps(self, namespace, label_selector):
        assert (namespace, label_selector) == ("system", "csi-fleet.io/intent")
        return iter(self.config_maps)

    def has_config_map(self, namespace, name):
        assert namespace == "system"
        return name not in self.gone


class FakeIntents(dict):
    def of(self, driver):
        return self

    def restore(self, domain, intent):
        return self.setdefault(domain, intent) is intent


def config_map(domain, record):
    return {"metadata": {"name": NAME_PREFIX + domain}, "data": {"record": record}}


def test_c057_lost_intent_is_written_back_and_its_key_added():
    """G7 holds even if Redis loses all its data."""
    intents = FakeIntents()
    record = json.dumps({"key": KEY, "stage": "calling"})
    copy = config_map("pvc-u1", record)
    copy["data"]["seal"] = "0123:default:"
    keys = restore_intents(FakeResources(copy), "system", intents, DRIVERS)
    assert [key.text for key in keys] == [KEY]
    assert intents == {"pvc-u1": b"0123:default:" + record.encode()}, "as the worker wrote it"


def test_a_copy_of_a_release_without_seals_is_brought_back_as_it_is():
    """The worker decides whether an unsigned copy is valid."""
    intents = FakeIntents()
    record = json.dumps({"key": KEY, "stage": "calling"})
    restore_intents(FakeResources(config_map("pvc-u1", record)), "system", intents, DRIVERS)
    assert intents == {"pvc-u1": record.encode()}


def test_intent_that_exists_is_newer_than_its_copy():
    intents = FakeIntents({"pvc-u1": {"stage": "background"}})
    resources = FakeResources(config_map("pvc-u1", json.dumps({"key": KEY})))
    assert restore_intents(resources, "system", intents, DRIVERS) == []
    assert intents["pvc-u1"] == {"stage": "background"}


def test_intent_that_ended_since_the_list_is_not_brought_back():
    """The list may be outdated: the worker removes the copy first and then the intent."""
    intents = FakeIntents()
    resources = FakeResources(config_map("pvc-u1", json.dumps({"key": KEY})))
    resources.gone.add(f"{NAME_PREFIX}pvc-u1")
    assert restore_intents(resources, "system", intents, DRIVERS) == []
    assert intents == {}


def test_unreadable_copy_is_skipped():
    good = config_map("pvc-u1", json.dumps({"key": KEY}))
    resources = FakeResources(
        config_map("a", "{"), config_map("b", "{}"), {"metadata": {"name": "c"}}, good
    )
    assert [key.text for key in restore_intents(resources, "system", FakeIntents(), DRIVERS)] == [
        KEY
    ]


@pytest.mark.parametrize(
    "record",
    [
        '{"key": 5}',
        '{"key": null}',
        '{"key": ["a"]}',
        "[]",
        "{}",
        '{"key": "|||"}',
        '"x"',
        '{"key": {}}',
    ],
)
def test_a_copy_with_an_odd_record_keeps_no_other_back(record):
    good = config_map("pvc-u1", json.dumps({"key": KEY, "stage": "calling"}))
    keys = restore_intents(
        FakeResources(config_map("pvc-u0", record), good), "system", FakeIntents(), DRIVERS
    )
    assert [key.text for key in keys] == [KEY]


@pytest.mark.parametrize("data", [None, {}, {"record": ""}])
def test_a_copy_with_odd_data_keeps_no_other_back(data):
    good = config_map("pvc-u1", json.dumps({"key": KEY, "stage": "calling"}))
    odd = config_map("pvc-u0", "")
    odd["data"] = data
    keys = restore_intents(FakeResources(odd, good), "system", FakeIntents(), DRIVERS)
    assert [key.text for key in keys] == [KEY]


def test_copies_of_another_installation_are_left_alone():
    """Installations can share a namespace; each finishes only the work of its own drivers."""
    intents = FakeIntents()
    resources = FakeResources(config_map("pvc-u1", json.dumps({"key": KEY})))
    assert restore_intents(resources, "system", intents, {"bar"}) == []
    assert intents == {}


def test_a_snapshots_attempt_is_read_by_its_own_controller():
    """Its key is added, and nothing is stored among the intents of volumes."""
    intents = FakeIntents()
    resources = FakeResources(config_map("x", json.dumps({"key": "contents|foo|snapcontent-u1|"})))
    keys = restore_intents(resources, "system", intents, DRIVERS)
    assert [key.text for key in keys] == ["contents|foo|snapcontent-u1|"]
    assert intents == {}


def test_sec_3_a_record_written_by_another_drivers_worker_is_skipped():
    """The admission policy lets a worker write its own drivers' records with any content."""
    forged = config_map("pvc-u1", json.dumps({"key": KEY}))
    forged["metadata"]["annotations"] = {"csi-fleet.io/driver": "bar"}
    mine = config_map("pvc-u2", json.dumps({"key": "claims|foo@node-1|default/claim2|u2"}))
    mine["metadata"]["annotations"] = {"csi-fleet.io/driver": "foo"}
    intents = FakeIntents()
    drivers = {"foo", "foo@node-1"}
    found = restore_intents(FakeResources(forged, mine), "system", intents, drivers)
    assert [key.object for key in found] == ["default/claim2"]
    assert list(intents) == ["pvc-u2@node-1"]


@pytest.mark.parametrize("driver", ["foo", "foo@node-1"])
def test_a_copy_goes_back_under_the_name_of_its_keys_record(driver):
    """Neither the ConfigMap's name nor the volume's name, which depends on flags, matters."""
    key = Key.parse(f"claims|{driver}|default/claim|u1")
    one = config_map("x", json.dumps({"key": key.text, "volume": "vol-u1"}))
    one["metadata"]["name"] = copy_name(key)
    intents = FakeIntents()
    assert restore_intents(FakeResources(one), "system", intents, {key.driver}) == [key]
    assert list(intents) == ["pvc-u1" if driver == "foo" else "pvc-u1@node-1"]
    assert restore_intents(FakeResources(one), "system", intents, {key.driver}) == []
