"""The record that a detach keeps of its publish, and which records are used (MA-016, MA-030)."""

from __future__ import annotations

import json

import pytest

from workers.controllers.attacher import volume
from workers.controllers.attacher.volume import Memory, Record
from workers.deadlines import Deadline
from workers.engine.live import OpenCalls

NAME = "example.org/record"
RECORD = {"driver": "d", "handle": "h", "node": "n", "secret": None}


def attachment(text):
    return {"metadata": {"name": "va", "annotations": None if text is None else {NAME: text}}}


@pytest.mark.parametrize(
    ("text", "is_believed"),
    [
        pytest.param(json.dumps(RECORD), True, id="whole"),
        pytest.param(json.dumps({"handle": "h"}), True, id="a handle is enough"),
        pytest.param(json.dumps({"driver": "d"}), False, id="no handle"),
        pytest.param(json.dumps(RECORD | {"handle": ""}), False, id="empty handle"),
        pytest.param(json.dumps(["handle"]), False, id="a list"),
        pytest.param(json.dumps("handle"), False, id="a string"),
        pytest.param("null", False, id="null"),
        pytest.param('{"handle":', False, id="cut"),
        pytest.param("", False, id="empty"),
        pytest.param(None, False, id="none"),
    ],
)
def test_ma030_record_of_the_annotation(text, is_believed):
    """MA-030: Any client may write the annotation; a record without a handle is useless."""
    found = volume.annotated_record(attachment(text), NAME)
    known = json.loads(text) if is_believed else {}
    assert found == (Record(known.get("driver", ""), "h", known.get("node", "")) if known else None)


def test_ma030_no_annotation_is_chosen():
    """By default only Redis stores the record."""
    assert volume.annotated_record(attachment(json.dumps(RECORD)), "") is None


def test_ma030_the_same_record_has_the_same_text():
    """Otherwise each attempt would write the attachment again."""
    backwards = dict(reversed(RECORD.items()))
    assert Record.read(backwards) == Record.read(RECORD)
    assert Record.read(RECORD).text() == '{"driver":"d","handle":"h","node":"n","secret":null}'


# As an older release wrote it.
MARK = {
    "record": RECORD,
    "nodes": ["old"],
    "call": {"until": [7.0, 5.0, 1.0]},
    "overtaken": [6.0, 5.0, 1.0, "process"],
    "aborted": 1,
    "timeouts": 2,
}


def test_ma016_a_mark_of_the_release_before_is_read_and_written_alike():
    """During a rolling upgrade, workers of both releases reconcile the same key."""
    found = Memory.read(MARK)
    calls = OpenCalls(Deadline(7.0, 5.0, 1.0), Deadline(6.0, 5.0, 1.0, "process"))
    assert found == Memory(Record.read(RECORD), ("old",), calls, aborted=1, timeouts=2)
    assert found.mark() == MARK
    assert Memory.read({}).mark() == {}


def test_ma016_what_a_success_leaves():
    """MA-014, MA-016, MA-032: The facts for the detach stay, and the failure counts are removed."""
    assert Memory.read(MARK).succeeded().mark() == {
        "record": RECORD,
        "nodes": ["old"],
        "overtaken": MARK["overtaken"],
    }
