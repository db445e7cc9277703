"""An unusable annotation, which any client may write, does not block a detach (DA-003)."""

from __future__ import annotations

import json

import pytest

from tests.support.attach_world import AttachWorld
from workers.controllers.attacher import names
from workers.kube import paths

RECORD = "attach.csi.io/record"


def deleting(world: AttachWorld, **annotations: str):
    key = world.add_attachment(is_marked=True, attached=True, is_deleting=True)
    change = {"metadata": {"annotations": annotations}}
    world.api.change(paths.ATTACHMENTS, "pv1-node1", change)
    world.client.published = {"handle1": {"nodeID1"}}
    return key


@pytest.mark.parametrize("text", ['["\\ud800"]', '["a\\udfffb", "nodeID1"]'])
def test_da003_an_earlier_id_that_is_no_text_is_left_out(text):
    world = AttachWorld()
    world.add_volume()
    key = deleting(world, **{names.EARLIER_IDS: text})
    world.run(key)
    assert world.is_gone()
    assert world.client.published["handle1"] == set()


@pytest.mark.parametrize(
    "record",
    [
        pytest.param({"secret": [1]}, id="half a secret"),
        pytest.param({"secret": {"name": "s"}}, id="a secret by name"),
        pytest.param({"secret": 7}, id="a number"),
    ],
)
def test_da006_a_record_of_another_form_is_no_record(record):
    """The PV is gone; the detachError reports that, instead of an unexpected error in the log."""
    world = AttachWorld(record_annotation=RECORD)
    text = json.dumps({"driver": world.driver.name, "handle": "handle1", **record})
    key = deleting(world, **{RECORD: text})
    outcome = world.run(key)
    assert outcome.action.value in {"retry", "done"}


def test_da006_a_record_nested_too_deep_is_no_record():
    world = AttachWorld(record_annotation=RECORD)
    key = deleting(world, **{RECORD: "[" * 100_000})
    assert world.run(key).action.value == "retry"
