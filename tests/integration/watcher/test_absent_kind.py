"""A controller whose CRDs are not installed: the rest works, and it starts when they come."""

from __future__ import annotations

from tests.support.waiting import wait_until
from workers.controllers.catalogue import SPECS
from workers.kube import paths
from workers.kube.objects import AnyObject
from workers.queue.keys import Key
from workers.spec import Spec, Watch

CRDS = paths.Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)


class Rules:
    """Every widget is work."""

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
    """Snapshots' CRDs may come after csi-fleet, or never: claims do not wait for them."""
    widgets = paths.Resource(f"{cluster.namespace}.example", "v1", "widgets", "Widget")
    spec = Spec("widgets", "", (), (Watch(widgets, AnyObject),), Rules)
    watcher = scene.start_watcher(specs=(*SPECS, spec), chosen=("provisioner", "widgets"))
    health = watcher.reflectors["widgets"].health
    wait_until(lambda: not health.is_served, 10, "nothing found")
    assert watcher.check_ready() == ""
    scene.queue.set_limits("widgets|d", 10)
    cluster.create(CRDS, f"widgets.{widgets.group}", spec=definition(widgets))

    def is_followed():
        # As half a minute would do by itself.
        watcher.machine.relist(["widgets"])
        return health.is_served

    wait_until(is_followed, 20, "widgets are followed", interval_seconds=0.2)
    cluster.create(widgets, "w1")
    scene.wait_until_due("widgets|d|w1|")
