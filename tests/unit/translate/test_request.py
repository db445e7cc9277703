"""The CreateVolume request: which fields are absent and which are empty on the wire."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from workers.errors import AttemptError, State
from workers.translate.request import build_request
from workers.translate.sources import ContentSource

BARE = {"name": "v", "required_bytes": 0, "capabilities": [], "parameters": {}, "secrets": {}}


def test_absent_and_empty():
    """P-905: the capacity range is always present, and other unused fields are absent."""
    request = build_request(**BARE)
    assert request.HasField("capacity_range")
    assert not request.HasField("accessibility_requirements")
    assert not request.HasField("volume_content_source")
    assert request == csi.CreateVolumeRequest(name="v", capacity_range=csi.CapacityRange())


def test_snapshot_source():
    """P-215: a snapshot source carries the snapshot's id."""
    request = build_request(**BARE, content_source=ContentSource(snapshot_id="sid"))
    assert request.volume_content_source.snapshot.snapshot_id == "sid"
    assert request.volume_content_source.WhichOneof("type") == "snapshot"


def test_volume_source():
    """P-222: a volume source carries the volume's id."""
    request = build_request(**BARE, content_source=ContentSource(volume_id="vid"))
    assert request.volume_content_source.volume.volume_id == "vid"
    assert request.volume_content_source.WhichOneof("type") == "volume"


def test_requirements_are_sent_as_given():
    topology = csi.Topology(segments={"zone": "z1"})
    requirements = csi.TopologyRequirement(requisite=[topology], preferred=[topology])
    request = build_request(**BARE, requirements=requirements)
    assert request.accessibility_requirements == requirements


@pytest.mark.parametrize(
    "changes",
    [
        {"secrets": {"k": "hush\ud800"}},
        {"secrets": {"k": 5}},
        {"parameters": {"k\ud800": "hush"}},
        {"mutable_parameters": {"k": "hush\ud800"}},
        {"required_bytes": 2**63},
    ],
)
def test_what_cannot_be_encoded_is_refused_without_showing_it(changes):
    """A secret must not reach an event, not even through a chained exception."""
    with pytest.raises(AttemptError) as caught:
        build_request(**(BARE | changes))
    assert caught.value.message.startswith("CreateVolume request for volume v cannot be encoded")
    assert "hush" not in caught.value.message
    assert caught.value.state is State.NO_CHANGE
    assert caught.value.__context__ is None
