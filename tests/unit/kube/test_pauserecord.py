"""The ConfigMap of operators' pauses (COR-14)."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from workers.kube.errors import NotFoundError
from workers.kube.pauserecord import CLASS, DRIVER, NAME, PauseRecord, Recorded


class Kube:
    """An API with a ConfigMap that has `data`; with None the ConfigMap does not exist."""

    def __init__(self, data=None):
        self.data, self.version, self.applied = data, 7, []
        self.client = SimpleNamespace(get=self.list)

    def item(self):
        return {"metadata": {"resourceVersion": str(self.version)}, "data": self.data}

    def get(self, _resource, name, *, namespace):
        assert (name, namespace) == (NAME, "system")
        if self.data is None:
            raise NotFoundError(404, "NotFound", "no")
        return self.item()

    def list(self, path, query):
        assert path == "/api/v1/namespaces/system/configmaps"
        assert query == {"fieldSelector": f"metadata.name={NAME}"}
        items = [] if self.data is None else [self.item()]
        return {"metadata": {"resourceVersion": "99"}, "items": items}

    def apply_config_map(self, body):
        assert body["metadata"] == {"name": NAME, "namespace": "system"}
        merged = {**(self.data or {}), **body["data"]}
        self.data = {name: text for name, text in merged.items() if text is not None}
        self.version += 1
        self.applied.append(body["data"])
        return self.item()


def test_a_pause_is_one_entry_and_others_stay():
    kube = Kube({"class.gold": '{"kind":"class","name":"gold","reason":"audit","until_ms":5}'})
    record = PauseRecord(kube, "system")
    was_there, state = record.apply(record.change(DRIVER, "d", "firmware", 0))
    assert not was_there
    assert state == Recorded("8", {"class gold": "5 audit", "driver d": "0 firmware"})
    assert json.loads(kube.data["driver.d"])["reason"] == "firmware"
    was_there, state = record.apply(record.change(DRIVER, "d", "", None))
    assert was_there
    assert state == Recorded("9", {"class gold": "5 audit"})


def test_the_end_of_no_pause_writes_nothing():
    kube = Kube()
    record = PauseRecord(kube, "system")
    assert record.apply(record.change(CLASS, "gold", "", None)) == (False, Recorded("0"))
    assert kube.applied == []


def test_without_a_config_map_nothing_is_paused():
    """A list still has a resourceVersion, so the pauses of a deleted ConfigMap end."""
    record = PauseRecord(Kube(), "system")
    assert record.get() == Recorded("0")
    assert record.list() == Recorded("99")


def test_both_ways_of_reading_tell_the_object_s_version():
    record = PauseRecord(Kube({}), "system")
    assert record.get() == record.list() == Recorded("7")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind":"driver","name":"d","until_ms":"x"}'])
def test_what_cannot_be_read_is_reported_and_left_out(text, caplog):
    kube = Kube({"driver.broken": text})
    record = PauseRecord(kube, "system")
    _, state = record.apply(record.change(DRIVER, "d@node/1", "x", 0))
    assert state.pauses == {"driver d@node/1": "0 x"}
    assert "driver.d_40node_2f1" in kube.data
    assert "ignoring an unreadable pause in the ConfigMap" in caplog.messages
