"""Data sources: normalisation, grants, name, kind and group."""

from __future__ import annotations

import pytest

from tests.support.translate_objects import make_claim
from workers.errors import AttemptError, IgnoredError, State
from workers.translate import sources
from workers.translate.sources import (
    DataSource,
    PopulatorSourceError,
    check_grants,
    check_source,
    grants_read_failed,
    normalise,
)

GROUP = "snapshot.storage.k8s.io"
SNAPSHOT = {"kind": "VolumeSnapshot", "name": "s", "apiGroup": GROUP}
DISABLED = (
    "dataSourceRef namespace specified but the CrossNamespaceVolumeDataSource feature is disabled"
)


def ref(namespace=None, **source):
    found = SNAPSHOT | source
    return found if namespace is None else found | {"namespace": namespace}


def make_grant(namespace="ns2", from_=None, to=None, **changes):
    """A grant of ns2 for snapshot s to claims of fake-ns; `from_`/`to` change one entry's keys."""
    origin = {"group": "", "kind": "PersistentVolumeClaim", "namespace": "fake-ns"}
    target = {"group": GROUP, "kind": "VolumeSnapshot", "name": "s"}
    spec = {"from": [origin | (from_ or {})], "to": [target | (to or {})]} | changes
    return {"metadata": {"name": "g", "namespace": namespace}, "spec": spec}


def cross_source(**source):
    found = normalise(make_claim(dataSourceRef=ref("ns2", **source)), cross_namespace=True)
    assert found is not None
    return found


def test_claim_without_source():
    """P-203: a claim with neither field has no source."""
    assert normalise(make_claim(), cross_namespace=True) is None
    assert normalise(make_claim(dataSource=None, dataSourceRef=None), cross_namespace=True) is None


def test_data_source_beats_its_ref():
    """P-201: dataSource takes precedence over dataSourceRef."""
    claim = make_claim(dataSource=SNAPSHOT, dataSourceRef=ref("ns2", name="other"))
    assert normalise(claim, cross_namespace=False) == DataSource(
        "VolumeSnapshot", "s", GROUP, "fake-ns", "fake-ns", "fake-pvc"
    )


def test_ref_alone_is_used():
    """P-202: a missing group is the core group."""
    claim = make_claim(dataSourceRef={"kind": "PersistentVolumeClaim", "name": "src"})
    assert normalise(claim, cross_namespace=False) == DataSource(
        "PersistentVolumeClaim", "src", "", "fake-ns", "fake-ns", "fake-pvc"
    )


@pytest.mark.parametrize(
    "namespace",
    [
        pytest.param("ns2", id="T-097 other namespace"),
        pytest.param("fake-ns", id="P-202 own namespace"),
    ],
)
def test_ref_with_namespace_needs_the_gate(namespace):
    with pytest.raises(AttemptError) as caught:
        normalise(make_claim(dataSourceRef=ref(namespace)), cross_namespace=False)
    assert (caught.value.message, caught.value.state) == (DISABLED, State.FINISHED)


def test_empty_namespace_counts_as_absent():
    """D-036: csi-provisioner crashes here."""
    found = normalise(make_claim(dataSourceRef=ref("")), cross_namespace=False)
    assert found is not None
    assert found.namespace == "fake-ns"
    assert not found.crosses_namespaces


@pytest.mark.parametrize(
    "grant",
    [
        pytest.param(make_grant(), id="T-095 name given"),
        pytest.param(make_grant(to={"name": ""}), id="T-095 name empty"),
        pytest.param(make_grant(to={"name": None}), id="T-095 name absent"),
        pytest.param(
            make_grant(**{"from": [{"kind": "x"}, make_grant()["spec"]["from"][0]]}),
            id="P-205 any from entry",
        ),
    ],
)
def test_grant_allows(grant):
    source = cross_source()
    assert source.namespace == "ns2"
    check_grants(source, [make_grant(to={"kind": "Other"}), grant])


NOWHERE = make_grant(from_={"namespace": "x"})
REFUSED = "accessing ns2/s of VolumeSnapshot dataSource from fake-ns/fake-pvc isn't allowed"


@pytest.mark.parametrize(
    "grants",
    [
        pytest.param([make_grant("fake-ns")], id="T-096 grant in the wrong namespace"),
        pytest.param([make_grant(from_={"group": "x"})], id="T-096 from.group"),
        pytest.param([make_grant(from_={"kind": "Pod"})], id="T-096 from.kind"),
        pytest.param([NOWHERE], id="T-096 from.namespace"),
        pytest.param([make_grant(to={"group": ""})], id="T-096 to.group"),
        pytest.param([make_grant(to={"kind": "PersistentVolumeClaim"})], id="T-096 to.kind"),
        pytest.param([make_grant(to={"name": "other"})], id="T-096 to.name"),
        pytest.param([make_grant(**{"from": [], "to": []})], id="T-096 empty from and to"),
        pytest.param([], id="T-096 no grant"),
        pytest.param([{}], id="T-096 grant without fields"),
        pytest.param([NOWHERE, make_grant(to={"name": "x"})], id="P-205 halves of two grants"),
    ],
)
def test_grant_refuses(grants):
    with pytest.raises(AttemptError) as caught:
        check_grants(cross_source(), grants)
    assert (caught.value.message, caught.value.state) == (REFUSED, State.FINISHED)


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(make_claim(dataSourceRef=ref("fake-ns")), id="T-098 own namespace named"),
        pytest.param(make_claim(dataSourceRef=ref()), id="T-098 no namespace"),
        pytest.param(make_claim(dataSource=SNAPSHOT), id="P-204 dataSource"),
    ],
)
def test_own_namespace_needs_no_grant(claim):
    source = normalise(claim, cross_namespace=True)
    assert source is not None
    check_grants(source, [])


@pytest.mark.parametrize(
    "source",
    [
        pytest.param({"apiGroup": None}, id="T-109 group nil"),
        pytest.param({"apiGroup": ""}, id="T-109 group empty"),
    ],
)
def test_grant_for_a_core_claim(source):
    found = cross_source(kind="PersistentVolumeClaim", **source)
    check_grants(found, [make_grant(to={"group": "", "kind": "PersistentVolumeClaim"})])
    assert found.is_claim


def test_grants_that_cannot_be_listed():
    """P-204: the attempt ends as finished."""
    error = grants_read_failed(cross_source(), "boom")
    assert error.message == ("error getting ReferenceGrants in ns2 namespace from api server: boom")
    assert error.state is State.FINISHED


def checked(**source):
    found = normalise(make_claim(dataSource=SNAPSHOT | source), cross_namespace=False)
    assert found is not None
    check_source(found)
    return found


def test_t082_source_without_name():
    with pytest.raises(
        AttemptError, match=r"^the PVC source not found for PVC fake-pvc$"
    ) as caught:
        checked(name="")
    assert caught.value.state is State.FINISHED


def test_t083_snapshot_of_a_foreign_group():
    with pytest.raises(AttemptError) as caught:
        checked(apiGroup="unsupported.group.io")
    assert caught.value.message == (
        "the PVC source does not belong to the right APIGroup. "
        "Expected snapshot.storage.k8s.io, Got unsupported.group.io"
    )
    assert caught.value.state is State.FINISHED


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        pytest.param("MyPopulator", "x.io", id="T-064 populator"),
        pytest.param("MyPopulator", GROUP, id="T-064 any group"),
        pytest.param("volumesnapshot", GROUP, id="P-208 letter case counts"),
        pytest.param("PersistentVolumeClaim", "x.io", id="D-019 custom resource of that kind"),
    ],
)
def test_other_kinds_are_for_populators(kind, group):
    """P-209: the caller emits the event and drops the claim."""
    with pytest.raises(PopulatorSourceError) as caught:
        checked(kind=kind, apiGroup=group)
    assert isinstance(caught.value, IgnoredError)
    assert caught.value.event_message == "Assuming an external populator will provision the volume"
    assert caught.value.reason == (
        f"data source ({kind}) is not handled by the provisioner, "
        "assuming an external populator will provision it"
    )


@pytest.mark.parametrize("group", ["", "v1", "core", None])
def test_claims_are_cloned_whatever_undotted_group_is_written(group):
    """D-019: mistakes such as `apiGroup: v1` keep working, as in csi-provisioner."""
    found = checked(kind=sources.CLAIM_KIND, apiGroup=group)
    assert found.is_claim
    assert not found.is_snapshot


def test_ungranted_populator_source_is_an_error():
    """P-206: the grant is checked first."""
    with pytest.raises(AttemptError, match="of MyPopulator dataSource"):
        check_grants(cross_source(kind="MyPopulator", apiGroup="x.io"), [])
