"""How many API requests an attach and a detach cost, compared with csi-attacher.

csi-attacher reads from its informers' caches, so its requests are its writes: three per attach (two
if the PV has the finalizer) and two per detach. csi-fleet makes at most these writes, and reads the
objects live.
"""

from __future__ import annotations

import pytest

from tests.support.attach_world import FIN, AttachWorld

VA = "volumeattachments/pv1-node1"
PV = "persistentvolumes/pv1"


def requests_of(world):
    return [(one.verb, one.path) for one in world.api.requests]


@pytest.mark.parametrize("finalizers", [None, (FIN,)], ids=["first of its PV", "PV is protected"])
def test_requests_of_an_attach(finalizers):
    world = AttachWorld()
    world.add_volume(finalizers=finalizers)
    world.run(world.add_attachment())
    requests = requests_of(world)
    reads = [path for verb, path in requests if verb == "get"]
    writes = [path for verb, path in requests if verb != "get"]
    assert reads == [VA, PV, "csinodes/node1"]
    assert writes == [*([] if finalizers else [PV]), VA, f"{VA}/status"]


def test_requests_of_a_detach():
    """A detach needs one write less than csi-attacher's if no other finalizer is left."""
    world = AttachWorld()
    world.add_volume()
    world.run(world.add_attachment(is_marked=True, attached=True, is_deleting=True))
    assert requests_of(world) == [("get", VA), ("get", PV), ("patch", VA)]


def test_requests_of_an_attachment_that_is_as_it_should_be():
    world = AttachWorld()
    world.run(world.add_attachment(is_marked=True, attached=True))
    assert requests_of(world) == [("get", VA)]
