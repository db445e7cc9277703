"""Node IDs that a volume may be published with, as the attachment lists them (DA-003, MA-032)."""

from __future__ import annotations

import pytest

from tests.support.attach_world import AttachWorld
from workers.controllers.attacher import names
from workers.controllers.attacher.attach import mark_patch
from workers.controllers.attacher.volume import earlier_ids, with_earlier
from workers.kube import paths

FIN = "external-attacher/d"
VA = "volumeattachments/pv1-node1"


def attachment(last=None, earlier=None):
    values = {names.NODE_ID: last, names.EARLIER_IDS: earlier}
    annotations = {name: text for name, text in values.items() if text is not None}
    metadata = {"name": "va", "uid": "u", "resourceVersion": "7", "finalizers": [FIN]}
    return {"metadata": metadata | {"annotations": annotations}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("", []),
        ('["a","b"]', ["a", "b"]),
        ('["a",""]', ["a"]),
        ('["a",1,null,["b"]]', ["a"]),
        ('"a"', []),
        ("{}", []),
        ("null", []),
        ("7", []),
        ('["a"', []),
        ("[" * 100_000, []),
    ],
)
def test_ma032_earlier_ids_are_read_with_care(text, expected):
    """MA-032: An empty ID would mean "from all nodes" (A-056)."""
    assert earlier_ids(attachment("n", text)) == expected


@pytest.mark.parametrize(
    ("last", "earlier", "expected"),
    [
        pytest.param(None, None, None, id="the first publish"),
        pytest.param("n", None, None, id="the same id"),
        pytest.param("n", '["m"]', None, id="the same id, after others"),
        pytest.param("m", None, '["m"]', id="another id"),
        pytest.param("m", '["l"]', '["l","m"]', id="a third id"),
        pytest.param("m", '["m","l"]', '["m","l"]', id="back and forth"),
        pytest.param("m", "nonsense", '["m"]', id="what nobody can read"),
    ],
)
def test_ma032_the_id_of_the_last_publish_is_kept(last, earlier, expected):
    """MA-032: It is kept only if the next publish goes to another node."""
    found = with_earlier(attachment(last, earlier), "n")
    assert found == ({} if expected is None else {names.EARLIER_IDS: expected})


def test_ma032_the_list_is_written_with_the_node_id():
    """MA-032: The same request writes the list and the node ID."""
    body = mark_patch(attachment("m"), FIN, "n", {})
    annotations = {names.NODE_ID: "n", names.EARLIER_IDS: '["m"]'}
    assert body == {"metadata": {"annotations": annotations}}
    body = mark_patch(attachment(), FIN, "n", {})
    assert body == {"metadata": {"annotations": {names.NODE_ID: "n"}}}


def test_ma032_a_late_worker_loses_no_id():
    """MA-031: Another worker's publish to a third node happens between read and write."""
    world = AttachWorld()
    world.add_volume()
    key = world.add_attachment(is_marked=True, node_id="m")
    other = {names.NODE_ID: "x", names.EARLIER_IDS: '["m"]'}
    change = {"metadata": {"annotations": other}}
    world.api.before("patch", VA, lambda: world.api.change(paths.ATTACHMENTS, "pv1-node1", change))
    world.run(key)
    annotations = world.attachment()["metadata"]["annotations"]
    assert annotations == {names.NODE_ID: "nodeID1", names.EARLIER_IDS: '["m","x"]'}
