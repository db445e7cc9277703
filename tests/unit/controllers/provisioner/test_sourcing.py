"""The source of a volume is read, checked, locked and protected, and finally released."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from csi_client import messages as csi
from tests.support.crash_world import SnapshotKube
from tests.support.fake_cluster import DRIVER, World
from tests.support.fake_context import FakeQueue
from workers.config.gates import FeatureGates
from workers.config.settings import Settings
from workers.constants import FINALIZER_CLONE_SOURCE, FINALIZER_SNAPSHOT_SOURCE
from workers.controllers.provisioner import sourcing
from workers.controllers.provisioner.backend import backend_of
from workers.controllers.provisioner.work import ClaimWork
from workers.engine.steps import Step
from workers.errors import AttemptError, QueueUnavailable, State
from workers.kube.errors import ForbiddenError, NotFoundError
from workers.queue.keys import claim_key
from workers.translate.sources import ContentSource, normalise

SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "src"}
CLONE = {"kind": "PersistentVolumeClaim", "name": "src"}
PROTECTION = {"VolumeSnapshot": FINALIZER_SNAPSHOT_SOURCE, CLONE["kind"]: FINALIZER_CLONE_SOURCE}
CINDER = "cinder.csi.openstack.org"


@pytest.fixture
def world():
    return with_snapshots(World())


def with_snapshots(world: Any):
    """Return the world with snapshots and locks; `reached` has the announced steps."""
    world.kube, world.queue, world.reached = SnapshotKube(), FakeQueue(), []
    steps = SimpleNamespace(reach=lambda step, _lease: world.reached.append(step))
    effects = replace(world.effects, kube=world.kube, steps=steps)
    world.runtime = replace(world.runtime, kube=world.kube, queue=world.queue, effects=effects)
    return world


def work_of(world, claim):
    """Return a reconcile of the claim."""
    key = claim_key(DRIVER, "default", claim["metadata"]["name"], claim["metadata"]["uid"])
    lease = world.lease(key, "pvc-u1")
    return ClaimWork(world.runtime, world.driver, key, lease, backend_of(world.driver), world.own)


def claim_from(world, source, **fields):
    """Add a claim with this data source, and return it with its normalized source."""
    claim = world.add_claim(**{"dataSource": source} | fields)
    return claim, normalise(claim, cross_namespace=True)


def add_snapshot(world, *finalizers, size="1Ki", **more):
    metadata = {"name": "src", "namespace": "default", "uid": "s1", "finalizers": list(finalizers)}
    status = {"readyToUse": True, "boundVolumeSnapshotContentName": "content", "restoreSize": size}
    world.kube.add("volumesnapshots", {"metadata": metadata, "spec": {}, "status": status})
    reference = {"name": "src", "namespace": "default", "uid": "s1"}
    spec = {"driver": DRIVER, "volumeSnapshotRef": reference, "source": {}, **more}
    body = {"metadata": {"name": "content"}, "spec": spec, "status": {"snapshotHandle": "h"}}
    world.kube.add("volumesnapshotcontents", body)


def add_source_claim(world, *finalizers, stored=None):
    metadata = {"name": "src", "namespace": "default", "uid": "s1"}
    spec = {**world.add_claim("other", "u9")["spec"], "volumeName": "pv-src"}
    claim = {"metadata": {**metadata, "finalizers": list(finalizers)}, "spec": spec}
    world.kube.add("persistentvolumeclaims", claim | {"status": {"phase": "Bound"}})
    stored = stored or {"csi": {"driver": world.driver.name, "volumeHandle": "h"}}
    volume = {"metadata": {"name": "pv-src"}, "spec": {**stored, "claimRef": metadata}}
    world.kube.add("persistentvolumes", volume | {"status": {"phase": "Bound"}})


def finalizers_of(world, kind):
    plural = "volumesnapshots" if kind == "VolumeSnapshot" else "persistentvolumeclaims"
    return world.kube.objects[plural, "default", "src"]["metadata"]["finalizers"]


@pytest.mark.parametrize("is_protected", [False, True], ids=["free", "protected"])
@pytest.mark.parametrize("protect", [None, True, False])
@pytest.mark.parametrize(
    ("source", "add", "content", "locks"),
    [
        (SNAPSHOT, add_snapshot, ContentSource(snapshot_id="h"), ["snapshot-content:content"]),
        (CLONE, add_source_claim, ContentSource(volume_id="h"), []),
    ],
    ids=["snapshot", "clone"],
)
def test_p217_p226_a_source_is_protected_by_whoever_copies_from_it(
    world, source, add, content, locks, protect, is_protected
):
    """P-217, P-226, D-011, SNQ-003: The finalizer is added once, and never by a mere check."""
    protection = PROTECTION[source["kind"]]
    add(world, *([protection] if is_protected else []))
    claim, found = claim_from(world, source)
    options = {} if protect is None else {"protect": protect}
    assert sourcing.resolve(work_of(world, claim), claim, found, **options) == content
    is_due = protect is not False and not is_protected
    assert world.reached == [Step.PROTECT_SOURCE] * is_due
    assert len(world.kube.writes) == is_due
    assert finalizers_of(world, source["kind"]) == [protection] * (is_due or is_protected)
    assert [lock.name for lock in world.queue.acquired] == (locks if protect is not False else [])


def test_d004_a_clone_of_an_in_tree_volume_is_of_its_csi_form(world):
    """D-004: The driver knows only the CSI form."""
    world.driver = replace(world.driver, name=CINDER)
    add_source_claim(world, stored={"cinder": {"volumeID": "disk-1"}})
    claim, found = claim_from(world, CLONE)
    content = sourcing.resolve(work_of(world, claim), claim, found)
    assert content == ContentSource(volume_id="disk-1")


class Log:
    """Records the warnings for operators."""

    def __init__(self):
        self.warnings = []

    def warning(self, message, **fields):
        self.warnings.append((message, fields))


def test_d034_operators_are_told_why_a_source_cannot_be_used(world, monkeypatch):
    """D-034: The event has csi-provisioner's text; the log also has the cause."""
    log = Log()
    monkeypatch.setattr(sourcing, "_log", log)
    claim, found = claim_from(world, CLONE)
    add_source_claim(world)
    world.kube.drop("persistentvolumes", "pv-src")
    with pytest.raises(AttemptError) as caught:
        sourcing.resolve(work_of(world, claim), claim, found)
    ((_, fields),) = log.warnings
    assert "pv-src" not in caught.value.message
    assert (fields["err"], "pv-src" in fields["cause"]) == (caught.value.message, True)


def test_a_cause_that_the_user_was_told_is_not_told_twice(world, monkeypatch):
    monkeypatch.setattr(sourcing, "_log", log := Log())
    claim, found = claim_from(world, CLONE)
    with pytest.raises(AttemptError, match='"src" not found'):
        sourcing.resolve(work_of(world, claim), claim, found)
    assert log.warnings == []


@pytest.mark.parametrize(("size", "is_told"), [("1Ki", False), ("1", True)])
def test_p212_a_volume_that_must_grow_is_told_of(world, monkeypatch, size, is_told):
    """P-212: The volume is larger than its snapshot, which not every driver supports."""
    monkeypatch.setattr(sourcing, "_log", log := Log())
    add_snapshot(world, size=size)
    claim, found = claim_from(world, SNAPSHOT)
    sourcing.resolve(work_of(world, claim), claim, found)
    told = [fields["warning"] for _, fields in log.warnings]
    assert ["needs to handle volume expansion" in one for one in told] == [True] * is_told


CROSSING = {**SNAPSHOT, "namespace": "there"}


def grant(namespace="there", of="default"):
    source = {"group": "", "kind": "PersistentVolumeClaim", "namespace": of}
    wanted = {"group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot"}
    return {"metadata": {"namespace": namespace}, "spec": {"from": [source], "to": [wanted]}}


@pytest.mark.parametrize(
    ("reference", "grants", "asked", "is_allowed"),
    [
        pytest.param(SNAPSHOT | {"namespace": "default"}, [], [], True, id="own namespace"),
        pytest.param(CROSSING, [grant()], ["there"], True, id="granted"),
        pytest.param(CROSSING, [grant(of="else")], ["there"], False, id="granted to another"),
        pytest.param(CROSSING, [], ["there"], False, id="no grant"),
    ],
)
def test_p204_a_source_elsewhere_needs_its_owners_grant(
    world, reference, grants, asked, is_allowed
):
    """P-204, P-205: Grants are read only in the namespace of the source."""
    seen = []
    world.kube.list_reference_grants = lambda namespace: seen.append(namespace) or iter(grants)
    claim, found = claim_from(world, None, dataSourceRef=reference)
    if is_allowed:
        sourcing.check_grants(work_of(world, claim), found)
    else:
        with pytest.raises(AttemptError, match="isn't allowed") as caught:
            sourcing.check_grants(work_of(world, claim), found)
        assert caught.value.state is State.FINISHED
    assert seen == asked


SNAP = csi.VolumeContentSource.SnapshotSource(snapshot_id="s")
VOLUME = csi.VolumeContentSource.VolumeSource(volume_id="v")


def other(phase="Pending", source=SNAPSHOT, namespace="default"):
    """Return another claim; `phase=None` means that it has no status yet."""
    return {
        "metadata": {"name": "other", "namespace": namespace, "uid": "u2"},
        "spec": {"dataSource": source} if source else {},
        "status": {"phase": phase} if phase is not None else None,
    }


def by_reference(namespace="default"):
    """Return a claim that names the snapshot by `dataSourceRef`, as another namespace requires."""
    claim = other(source=None, namespace=namespace)
    return claim | {"spec": {"dataSourceRef": SNAPSHOT | {"namespace": "default"}}}


@pytest.mark.parametrize(
    ("others", "is_needed"),
    [
        pytest.param([], False, id="P-218 nobody else"),
        pytest.param([other()], True, id="D-015 pending"),
        pytest.param([other("")], True, id="D-015 no phase yet"),
        pytest.param([other(None)], True, id="D-015 no status yet"),
        pytest.param([other("Bound")], False, id="bound"),
        pytest.param([other("Lost")], False, id="lost"),
        pytest.param([other(source={**SNAPSHOT, "name": "b"})], False, id="another snapshot"),
        pytest.param([other(source={**SNAPSHOT, "kind": "X"})], False, id="of another kind"),
        pytest.param([other(source=None)], False, id="an empty volume"),
        pytest.param([other(namespace="else")], False, id="of that name elsewhere"),
        pytest.param([by_reference()], True, id="D-015 by dataSourceRef"),
    ],
)
def test_d015_a_snapshot_is_let_go_of_by_the_last_that_needs_it(world, others, is_needed):
    """P-218, D-015: At that time the claim itself is still pending."""
    add_snapshot(world, FINALIZER_SNAPSHOT_SOURCE)
    claim, _ = claim_from(world, SNAPSHOT)
    for one in others:
        world.kube.add("persistentvolumeclaims", one)
    sourcing.unprotect_snapshot(work_of(world, claim), claim)
    assert finalizers_of(world, "VolumeSnapshot") == [FINALIZER_SNAPSHOT_SOURCE] * is_needed
    assert world.reached == [Step.UNPROTECT_SOURCE] * (not is_needed)


@pytest.mark.parametrize("crosses", [True, False], ids=["gate on", "gate off"])
def test_d015_a_claim_of_another_namespace_counts_where_it_may_restore(world, crosses):
    """D-015, D-017: With the gate off, such a claim is never served and one namespace is listed."""
    gates = FeatureGates(cross_namespace_volume_data_source=crosses)
    world.driver = replace(world.driver, settings=Settings(gates=gates))
    add_snapshot(world, FINALIZER_SNAPSHOT_SOURCE)
    claim, _ = claim_from(world, SNAPSHOT)
    world.kube.add("persistentvolumeclaims", by_reference("else"))
    sourcing.unprotect_snapshot(work_of(world, claim), claim)
    assert finalizers_of(world, "VolumeSnapshot") == [FINALIZER_SNAPSHOT_SOURCE] * crosses


def test_d015_a_restore_from_elsewhere_looks_for_others_where_the_snapshot_is(world):
    """D-015, D-017: A claim in the snapshot's namespace may need the snapshot too."""
    gates = FeatureGates(cross_namespace_volume_data_source=True)
    world.driver = replace(world.driver, settings=Settings(gates=gates))
    add_snapshot(world, FINALIZER_SNAPSHOT_SOURCE)
    claim = by_reference("else")
    claim["metadata"]["uid"] = "u1"
    world.kube.add("persistentvolumeclaims", other())
    sourcing.unprotect_snapshot(work_of(world, claim), claim)
    assert finalizers_of(world, "VolumeSnapshot") == [FINALIZER_SNAPSHOT_SOURCE]


@pytest.mark.parametrize(
    ("stage", "is_needed"), [("calling", True), ("background", True), ("failed", False)]
)
def test_d016_a_snapshot_is_left_to_the_restore_of_a_claim_that_is_gone(world, stage, is_needed):
    """D-015, D-016, SNC-058: That claim's CreateVolume may still copy data.

    The claim's own intent does not count.
    """
    add_snapshot(world, FINALIZER_SNAPSHOT_SOURCE)
    claim, _ = claim_from(world, SNAPSHOT)
    world.intents.intents["pvc-u1"] = {"claim": claim, "stage": "calling"}
    world.intents.intents["pvc-u2"] = {"claim": other(), "stage": stage}
    sourcing.unprotect_snapshot(work_of(world, claim), claim)
    assert finalizers_of(world, "VolumeSnapshot") == [FINALIZER_SNAPSHOT_SOURCE] * is_needed


@pytest.mark.parametrize("away", [True, False], ids=["Redis is away", "a record of nothing"])
def test_d016_nothing_is_concluded_from_attempts_that_are_not_known(world, away):
    """P-218, D-016: The volume is saved anyway, and the sweep removes the finalizer later."""
    add_snapshot(world, FINALIZER_SNAPSHOT_SOURCE)
    claim, _ = claim_from(world, SNAPSHOT)
    world.intents.intents["pvc-u2"] = {"claim": {"metadata": "x"}, "stage": "calling"}

    def all_of_them():
        raise QueueUnavailable("redis: away")

    if away:
        world.intents.all = all_of_them
    sourcing.unprotect_snapshot(work_of(world, claim), claim)
    assert finalizers_of(world, "VolumeSnapshot") == [FINALIZER_SNAPSHOT_SOURCE]


@pytest.mark.parametrize("source", [None, CLONE], ids=["empty volume", "clone"])
def test_p218_what_is_made_from_no_snapshot_lets_go_of_none(world, source):
    """P-218: This holds even for a snapshot of the same name."""
    add_snapshot(world, FINALIZER_SNAPSHOT_SOURCE)
    claim, _ = claim_from(world, source)
    sourcing.unprotect_snapshot(work_of(world, claim), claim)
    assert (world.reached, world.kube.writes) == ([], [])


@pytest.mark.parametrize(
    "error",
    [NotFoundError(404, "NotFound", "gone"), ForbiddenError(403, "Forbidden", "no")],
    ids=["gone", "forbidden"],
)
def test_p218_the_volume_is_saved_whatever_becomes_of_the_finalizer(world, error):
    """P-218: The sweep removes the finalizer later."""
    add_snapshot(world, FINALIZER_SNAPSHOT_SOURCE)
    claim, _ = claim_from(world, SNAPSHOT)
    world.kube.fail["update_snapshot"] = [error]
    sourcing.unprotect_snapshot(work_of(world, claim), claim)
    assert finalizers_of(world, "VolumeSnapshot") == [FINALIZER_SNAPSHOT_SOURCE]
