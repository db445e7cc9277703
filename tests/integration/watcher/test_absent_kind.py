"""If CRDs are missing or too old, the rest works, and they are watched when they appear."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from workers.cli import doctor
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.load import parse
from workers.controllers.catalogue import SPECS
from workers.kube import paths
from workers.kube.objects import AnyObject
from workers.queue.keys import Key
from workers.spec import Spec, Watch

CRDS = paths.Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)


class Rules:
    """Rules that turn every widget into a key."""

    def set_drivers(self, drivers):
        return ()

    def seen(self, resource, item, *, is_listed):
        return [Key("widgets", "d", item.metadata.name)]

    def gone(self, resource, item):
        return ()

    def begin_list(self, resource):
        return None

    def end_list(self, resource):
        return ()

    def all_keys(self):
        return ()


def definition(widgets):
    names = {"plural": widgets.plural, "kind": widgets.kind, "singular": "widget"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": widgets.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {"group": widgets.group, "scope": "Cluster", "names": names, "versions": [version]}


def test_a_kind_that_comes_later_is_followed_then(scene, cluster):
    """A kind whose CRD appears later is watched then.

    The snapshot CRDs may be installed after csi-fleet, or never, and claims do not wait for them.
    """
    widgets = paths.Resource(f"{cluster.namespace}.example", "v1", "widgets", "Widget")
    spec = Spec("widgets", "", (), (Watch(widgets, AnyObject),), Rules)
    watcher = scene.start_watcher(specs=(*SPECS, spec), chosen=("provisioner", "widgets"))
    health = watcher.reflectors["widgets"].health
    wait_until(lambda: not health.is_served, 10, "nothing found")
    assert watcher.check_ready() == ""
    scene.queue.set_limits("widgets|d", 10)
    cluster.create(CRDS, f"widgets.{widgets.group}", spec=definition(widgets))

    def is_followed():
        # Otherwise the next attempt would be half a minute later.
        watcher.machine.relist(["widgets"])
        return health.is_served

    wait_until(is_followed, 20, "widgets are followed", interval_seconds=0.2)
    cluster.create(widgets, "w1")
    scene.wait_until_due("widgets|d|w1|")


GROUPS = (paths.GROUP_SNAPSHOT_CLASSES, paths.GROUP_SNAPSHOT_CONTENTS, paths.GROUP_SNAPSHOTS)


def group_definition(kind, *versions):
    """Return the spec of a CRD that serves these versions and stores the last one."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "group": kind.group,
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "names": {"plural": kind.plural, "kind": kind.kind, "singular": kind.kind.lower()},
        "versions": [
            {
                "name": version,
                "served": True,
                "storage": version == versions[-1],
                "schema": {"openAPIV3Schema": schema},
            }
            for version in versions
        ],
    }


@pytest.fixture
def old_groups(cluster):
    """Install the group snapshot CRDs of a release that had only v1beta1."""
    approved = {"api-approved.kubernetes.io": "unapproved, a test"}
    assert not cluster.api.served_versions(GROUPS[0].group)
    for kind in GROUPS:
        cluster.create(
            CRDS,
            f"{kind.plural}.{kind.group}",
            metadata={"annotations": approved},
            spec=group_definition(kind, "v1beta1"),
        )
    wait_until(lambda: all(is_served(cluster, kind, "v1beta1") for kind in GROUPS), 20, "served")
    yield
    cluster.clean_up()
    wait_until(lambda: not cluster.api.served_versions(GROUPS[0].group), 30, "the CRDs are gone")


def is_served(cluster, kind, version):
    return kind.kind in cluster.api.served_kinds(kind.group, version)


def findings(kubeconfig, controller="snapshot-controller"):
    flags = [f"--kubeconfig={kubeconfig}", f"--controllers={controller}"]
    found = list(doctor.crds(Tools(parse(Command.DOCTOR, flags, {}))))
    assert {one.state for one in found} <= {doctor.WARN}
    return [one.text for one in found]


@pytest.mark.usefixtures("old_groups")
def test_group_crds_of_v1beta1_only_are_reported_once_and_the_rest_works(
    scene, cluster, kubeconfig, caplog
):
    problem = (
        "The CRDs volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io, "
        "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io, "
        "volumegroupsnapshots.groupsnapshot.storage.k8s.io serve only v1beta1, but csi-fleet reads "
        "v1. It does nothing for these objects; all other work continues. Install the CRDs of "
        "external-snapshotter: kubectl apply -k "
    )
    watcher = scene.start_watcher(chosen=("snapshot-controller",))

    def errors():
        return [one.fields["err"] for one in caplog.records if one.levelname == "ERROR"]

    wait_until(errors, 20, "the error is logged")
    watcher.loops["old kinds"].wake()
    assert watcher.check_ready() == ""
    cluster.create(paths.SNAPSHOTS, "s1", spec={"source": {"persistentVolumeClaimName": "c"}})
    scene.queue.set_limits("snapshots|", 10)
    scene.wait_until_due(f"{cluster.namespace}/s1")
    assert len(errors()) == 1
    assert str(errors()[0]).startswith(problem)
    assert [one.startswith(problem) for one in findings(kubeconfig)] == [True]
    assert findings(kubeconfig, "provisioner") == []

    for kind in GROUPS:
        newer = {"spec": group_definition(kind, "v1", "v1beta1")}
        crd = cluster.api.get(CRDS, f"{kind.plural}.{kind.group}")
        cluster.api.merge(CRDS, crd, newer)
    health = watcher.reflectors["volumegroupsnapshots"].health

    def is_followed():
        watcher.machine.relist([kind.plural for kind in GROUPS])
        return health.is_served

    wait_until(is_followed, 20, "groups are followed", interval_seconds=0.2)
    wait_until(lambda: findings(kubeconfig) == [], 20, "doctor finds nothing")
