"""What a detach remembers of its publish, and what of it is believed (MA-016, MA-030)."""

from __future__ import annotations

import json

import pytest

from workers.controllers.attacher import records
from workers.deadlines import NONE, Deadline
from workers.queue.leases import Session

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
    """MA-030: anybody may write an annotation; without a handle it tells nothing."""
    found = records.annotated(attachment(text), NAME)
    assert found == (json.loads(text) if is_believed else None)


def test_ma030_no_annotation_is_chosen():
    """The default: Redis alone keeps the record."""
    assert records.annotated(attachment(json.dumps(RECORD)), "") is None


def test_ma030_the_same_record_has_the_same_text():
    """Else each attempt would write the attachment anew."""
    backwards = dict(reversed(RECORD.items()))
    assert records.to_text(backwards) == records.to_text(RECORD)
    assert records.to_text(RECORD) == '{"driver":"d","handle":"h","node":"n","secret":null}'


MARK = {"record": RECORD, "nodes": ["old"], "call": {"until": 7.0}, "aborted": 1, "timeouts": 2}


def test_ma016_what_the_end_of_a_call_leaves():
    """MA-014, MA-016, MA-032: a failure keeps its counts, a success what the detach needs."""
    begun = {"aborted": 1, "record": RECORD, "call": {"until": [7.0, 5.0, 1.0]}}
    until = Deadline(7.0, 5.0, 1.0)
    assert records.begun({"aborted": 1}, RECORD, until=until, overtaken=NONE) == begun
    kept = {"record": RECORD, "nodes": ["old"]}
    assert records.ended(MARK) == kept | {"aborted": 1, "timeouts": 2}
    assert records.succeeded(MARK) == kept


@pytest.mark.parametrize("overtaken", [0, 3.0, 4.0, 6.0])
@pytest.mark.parametrize("until", [0, 3.0, 4.0, 5.0])
def test_ma016_what_is_overtaken_is_remembered_until_it_has_surely_ended(until, overtaken):
    """Whatever becomes of the call that overtakes it."""
    before = {"call": {"until": until}} if until else {}
    before |= {"overtaken": overtaken} if overtaken else {}
    session = Session(clock=lambda: 4.0)
    last = session.latest(*records.deadlines(before))
    mark = records.begun(before, RECORD, until=Deadline(8.0), overtaken=last)
    assert session.seconds_left(*records.deadlines(mark)) == 4.0
    for after in (records.ended(mark), records.succeeded(mark)):
        left = session.seconds_left(*records.deadlines(after))
        assert left == max(0.0, until - 4.0, overtaken - 4.0)
    assert not any(records.deadlines(records.without_calls(mark)))


@pytest.mark.parametrize(
    ("mark", "counts"),
    [({}, False), ({"record": RECORD}, False), ({"aborted": 1}, True), ({"timeouts": 1}, True)],
)
def test_ma014_failures_in_a_row(mark, counts):
    assert records.counts_failures(mark) is counts


@pytest.mark.parametrize(
    ("known", "nodes"), [([], ["n"]), (["m"], ["m", "n"]), (["n", "m"], ["n", "m"])]
)
def test_ma032_each_earlier_node_once(known, nodes):
    """MA-032: in the order in which they were published to."""
    assert records.with_node({"nodes": known, "aborted": 1}, "n") == {"nodes": nodes, "aborted": 1}
