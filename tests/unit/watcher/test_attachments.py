"""The attachments in the shared cache, which delay the deletion of a volume (P-510)."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from watcher.sinks import AttachmentSink
from workers.kube.objects import Attachment


def make_attachment(volume: str = "v", **metadata: Any) -> Attachment:
    source = {"persistentVolumeName": volume} if volume else {"inlineVolumeSpec": {}}
    body = {
        "metadata": {"name": "a", "resourceVersion": "7", **metadata},
        "spec": {"nodeName": "n1", "attacher": "d", "source": source},
        "status": {"attached": metadata.pop("attached", True)},
    }
    return msgspec.convert(body, Attachment)


class Catalog:
    """What the sink writes: the node of each attachment of each volume."""

    def __init__(self) -> None:
        self.volumes: dict[str, Any] = {}
        outbox: Any = SimpleNamespace(put=self.put, replace=self.replace)
        self.sink = AttachmentSink(outbox, lambda: "life")

    def put(self, _kind: str, volume: str, _version: str, nodes: Any) -> None:
        self.volumes[volume] = nodes

    def replace(self, _kind: str, listed: Any) -> None:
        self.volumes = {name: nodes for name, (_, nodes) in listed.items.items()}


@pytest.fixture(params=["event", "list"])
def tell(request):
    """Return a function that reports an object by an event or by a list."""

    def told(item: Attachment) -> dict[str, Any]:
        catalog = Catalog()
        if request.param == "event":
            catalog.sink.changed(item)
        else:
            catalog.sink.begin_list()
            catalog.sink.listed(item)
            catalog.sink.end_list("9")
        return catalog.volumes

    return told


@pytest.mark.parametrize(
    "attachment",
    [
        pytest.param(make_attachment(), id="T-161 attached"),
        pytest.param(make_attachment(attached=False), id="T-161 not attached"),
        pytest.param(
            make_attachment(deletionTimestamp="2026-01-01T00:00:00Z"), id="T-161 being deleted"
        ),
    ],
)
def test_an_attachment_counts_in_whatever_state(tell, attachment):
    """In any state, a node may still write to the volume."""
    assert tell(attachment) == {"v": {"a": "n1"}}


def test_t162_another_volumes_attachment_is_none_of_this_one(tell):
    assert "v" not in tell(make_attachment("w"))


def test_p510_an_inline_volume_is_nobodys(tell):
    assert tell(make_attachment("")) == {}


@pytest.mark.parametrize("listed", [(), ("a",), ("a", "b")], ids=str)
def test_p510_whatever_comes_and_goes_the_catalog_has_what_is_there(listed):
    """This holds for every order of events; a volume without attachments has no entry."""
    for events in product(product(("changed", "deleted"), "ab"), repeat=4):
        catalog, there = Catalog(), set(listed)
        catalog.sink.begin_list()
        for name in listed:
            catalog.sink.listed(make_attachment(name=name))
        catalog.sink.end_list("9")
        for what, name in events:
            getattr(catalog.sink, what)(make_attachment(name=name))
            there = there | {name} if what == "changed" else there - {name}
            expected = dict.fromkeys(there, "n1") or None
            assert catalog.volumes["v"] == expected, events
            assert set(catalog.sink._nodes) == ({"v"} if there else set()), events
