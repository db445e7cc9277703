"""What the shared cache stores of watched objects, when it is written, and for which epoch."""

from __future__ import annotations

import pytest

from watcher.sinks import CATALOG_SINKS
from workers.kube.objects import Attachment, CsiNode, CsiNodeDriver, Meta, Node
from workers.queue.catalogkinds import KIND_ATTACHMENTS, KIND_CLASSES, KIND_CSINODES, KIND_NODES


class Written:
    """An outbox that records its calls."""

    def __init__(self):
        self.put_ = []
        self.lists = []

    def put(self, kind, name, version, value):
        self.put_.append((kind, name, version, value))

    def replace(self, kind, listed):
        self.lists.append((kind, listed.items, listed.version, listed.epoch))


class Scene:
    """A sink, its outbox, and the epoch of Redis, which the test changes."""

    def __init__(self, kind):
        self.outbox = Written()
        self.epoch = "1st"
        self.sink = CATALOG_SINKS[kind](self.outbox, lambda: self.epoch)

    def list(self, *items, version="9"):
        self.sink.begin_list()
        for item in items:
            self.sink.listed(item)
        self.sink.end_list(version)


def storage_class(name, version="1", **fields):
    metadata = {"name": name, "resourceVersion": version, "managedFields": [{}]}
    return {"metadata": metadata, **fields}


def node(name, version="1", **labels):
    return Node(metadata=Meta(name=name, resource_version=version, labels=labels or None))


def csi_node(version="1", **keys):
    made = CsiNode(metadata=Meta(name="n", resource_version=version))
    made.spec.drivers = [CsiNodeDriver(name=name, topology_keys=of) for name, of in keys.items()]
    return made


def attachment(name, volume="pv", node_name="n", version="1"):
    made = Attachment(metadata=Meta(name=name, resource_version=version))
    made.spec.source.persistent_volume_name, made.spec.node_name = volume, node_name
    return made


KEPT = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "c", "resourceVersion": "4"},
    "provisioner": "d",
}


@pytest.mark.parametrize(
    ("kind", "item", "entry"),
    [
        pytest.param(
            KIND_CLASSES, storage_class("c", "4", provisioner="d"), ("c", KEPT), id="class"
        ),
        pytest.param(
            KIND_CSINODES, csi_node("4", b=["y", "x"], a=None), ("n", {"b": ["y", "x"], "a": []}),
            id="keys in the driver's order",
        ),
        pytest.param(KIND_NODES, node("n", "4", zone="a"), ("n", {"zone": "a"}), id="labels"),
        pytest.param(KIND_NODES, node("n", "4"), ("n", {}), id="no labels"),
        pytest.param(KIND_ATTACHMENTS, attachment("va", version="4"), ("pv", {"va": "n"}), id="va"),
    ],
)  # fmt: skip
def test_an_object_is_listed_written_and_removed(kind, item, entry):
    """M-017: a list is complete for the epoch of Redis in which it began."""
    name, value = entry
    scene = Scene(kind)
    scene.sink.begin_list()
    scene.epoch = "2nd"
    scene.sink.listed(item)
    scene.sink.end_list("9")
    # A volume's attachments are as new as the list, which also shows what is absent.
    version = "9" if kind == KIND_ATTACHMENTS else "4"
    assert scene.outbox.lists == [(kind, {name: (version, value)}, "9", "1st")]
    scene.list()
    assert scene.outbox.lists[1:] == [(kind, {}, "9", "2nd")]
    scene.sink.changed(item)
    scene.sink.deleted(item)
    assert scene.outbox.put_ == [(kind, name, "4", value), (kind, name, "4", None)]


def test_a_node_is_written_when_its_labels_change():
    """A heartbeat changes only the version."""
    scene = Scene(KIND_NODES)
    scene.list(node("n", zone="a"))
    scene.sink.changed(node("n", "2", zone="a"))
    assert scene.outbox.put_ == []
    scene.sink.changed(node("n", "3", zone="b"))
    scene.sink.changed(node("n", "4", zone="b"))
    scene.sink.deleted(node("n", "5", zone="b"))
    scene.sink.changed(node("n", "6", zone="b"))
    assert [(version, value) for _, _, version, value in scene.outbox.put_] == [
        ("3", {"zone": "b"}),
        ("5", None),
        ("6", {"zone": "b"}),
    ]


def test_attachments_of_a_volume_are_one_entry():
    """The attachment's status does not matter; removing the last one removes the entry."""
    scene = Scene(KIND_ATTACHMENTS)
    scene.list(attachment("a"), attachment("x", volume=None))
    scene.sink.changed(attachment("a", version="2"))
    scene.sink.changed(attachment("b", node_name="m", version="3"))
    scene.sink.changed(attachment("a", node_name="m", version="4"))
    scene.sink.deleted(attachment("a", version="5"))
    scene.sink.deleted(attachment("b", version="6"))
    scene.sink.changed(attachment("x", volume=None, version="7"))
    scene.sink.deleted(attachment("x", volume=None, version="8"))
    assert [(version, value) for _, _, version, value in scene.outbox.put_] == [
        ("3", {"a": "n", "b": "m"}),
        ("4", {"a": "m", "b": "m"}),
        ("5", {"b": "m"}),
        ("6", None),
    ]


def test_a_list_forgets_attachments_that_are_not_in_it():
    """If the removal of the last attachment was missed, its next one must be written again."""
    scene = Scene(KIND_ATTACHMENTS)
    scene.list(attachment("a"), attachment("b", volume="other"))
    scene.list(attachment("b", volume="other"))
    assert scene.outbox.lists[1][1] == {"other": ("9", {"b": "n"})}
    scene.sink.changed(attachment("b", volume="other", version="2"))
    scene.sink.changed(attachment("a", version="3"))
    assert scene.outbox.put_ == [(KIND_ATTACHMENTS, "pv", "3", {"a": "n"})]
