"""Which node ids a volume may be published with, as the attachment says (DA-003, MA-032)."""

from __future__ import annotations

import pytest

from workers.controllers.attacher import names
from workers.controllers.attacher.nodes import earlier_ids, with_earlier
from workers.controllers.attacher.writes import mark_patch

FIN = "external-attacher/d"


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
    """MA-032: an empty id would mean "from all nodes" (A-056)."""
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
    """MA-032: only where the next one goes elsewhere."""
    found = with_earlier(attachment(last, earlier), "n")
    assert found == ({} if expected is None else {names.EARLIER_IDS: expected})


def test_ma032_the_list_is_written_with_the_version_it_was_read_at():
    """MA-031: a late worker's id would be lost else; all in the one request of the node id."""
    item = attachment("m")
    body = mark_patch(item, FIN, "n", with_earlier(item, "n"))
    annotations = {names.NODE_ID: "n", names.EARLIER_IDS: '["m"]'}
    assert body == {"metadata": {"uid": "u", "resourceVersion": "7", "annotations": annotations}}
    body = mark_patch(attachment(), FIN, "n", {})
    assert body == {"metadata": {"uid": "u", "annotations": {names.NODE_ID: "n"}}}
