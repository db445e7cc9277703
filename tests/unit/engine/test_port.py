"""What passes through the port for effects, and which effects need the lease (G9)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.fake_context import FakeLease
from workers.engine.effects import Effects
from workers.engine.leasename import LeaseIdentity, lease_name, sanitize_name
from workers.engine.steps import LeasedSteps, Step
from workers.errors import LeaseLost
from workers.queue.keys import Key

# Redis decides whether a lease has ended. A volume that may exist must always be recorded.
ALWAYS = {Step.FINISH_KEY, Step.COPY_INTENT}


@pytest.fixture
def lease():
    return FakeLease(Key("claims", "d", "a/b", "u"), fails=0, memo="", mark={})


@pytest.mark.parametrize("step", [*Step, "a-controller-s-own"])
def test_g9_an_effect_needs_the_lease(lease, step):
    """G9: two effects are exempt, because they are correct whichever worker owns the key."""
    LeasedSteps().reach(step, lease)
    lease.is_lost = True
    if step in ALWAYS:
        LeasedSteps().reach(step, lease)
    else:
        with pytest.raises(LeaseLost):
            LeasedSteps().reach(step, lease)


def test_the_port_passes_on_what_a_pass_does(lease):
    """Each effect reaches its implementation with all of its arguments."""
    told = []

    def note(what):
        return lambda *words, **more: told.append((what, *words, *more.items()))

    effects = Effects(
        kube=None,
        events=SimpleNamespace(event=note("event")),
        queue=SimpleNamespace(mark=note("mark")),
        steps=SimpleNamespace(reach=note("reach")),
    )
    effects.reach(Step.SAVE_VOLUME, lease)
    effects.event({"kind": "PersistentVolumeClaim"}, "Warning", "Why", "text", component="us")
    effects.mark(lease, {"a": 1})
    assert told == [
        ("reach", Step.SAVE_VOLUME, lease),
        ("event", {"kind": "PersistentVolumeClaim"}, "Warning", "Why", "text", ("component", "us")),
        ("mark", lease, {"a": 1}),
    ]
    assert effects.client(SimpleNamespace(client="its client")) == "its client"


def test_production_asks_for_the_lease(lease):
    """The lease is checked by default."""
    lease.is_lost = True
    with pytest.raises(LeaseLost):
        Effects(kube=None, events=None, queue=None).reach(Step.SAVE_VOLUME, lease)


@pytest.mark.parametrize(
    ("driver", "lease"),
    [
        ("hostpath.csi.k8s.io", "hostpath-csi-k8s-io"),
        ("a/b", "a-b"),
        ("a_b", "a-b"),
        ("a.", "a-X"),
        ("plain", "plain"),
    ],
)
def test_f020_names_of_leases(driver, lease):
    """F-020: every special character becomes a dash, and the name does not end with a dash."""
    assert lease_name(driver) == lease
    assert sanitize_name(driver) == lease
    identity = LeaseIdentity(driver, "u")
    identity.join("7f")
    assert str(identity) == f"{lease}_csi-fleet-7f-u"
