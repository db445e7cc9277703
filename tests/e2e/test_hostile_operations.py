"""A driver answers attaches, expansions, snapshots and lists with hostile values, field by field.

The answers are generated from the definition of CSI (tests/support/hostile_answers.py). Meanwhile
another driver does one operation of each kind.
"""

from __future__ import annotations

import pytest

from tests.e2e.test_every_controller import fleet_of
from tests.support import hostile_answers
from tests.support.attach_cluster import ATTACHMENTS, AttachCluster
from tests.support.csi_driver import DirectoryDriver
from tests.support.life import CAPABILITIES, Life
from tests.support.waiting import wait_until

OBJECTS = {  # one for each extreme answer
    "attach": "ControllerPublishVolume",
    "expand": "ControllerExpandVolume",
    "snapshot": "CreateSnapshot",
}
LISTS = ("ListVolumes", "ListSnapshots", "ControllerListVolumeHealth", "ControllerGetVolumeHealth")
SNAPSHOT = "snapshot.storage.k8s.io/v1"


@pytest.fixture(scope="module")
def drivers():
    arguments = [f"--capabilities={CAPABILITIES},LIST_VOLUMES,LIST_VOLUMES_PUBLISHED_NODES"]
    with DirectoryDriver(arguments=arguments) as one, DirectoryDriver(arguments=arguments) as two:
        yield one, two


def is_grown(status):
    """Return True if the driver's part is done; the node's part may still be missing."""
    waits = {one["type"] for one in status.get("conditions") or ()}
    return status["capacity"]["storage"] != "1Gi" or "FileSystemResizePending" in waits


class Hostile:
    """The objects of the hostile driver: one operation for each of its extreme answers."""

    def __init__(self, scene, driver, rules):
        self.scene, self.driver, self.api = scene, driver, scene.api
        self.cluster = AttachCluster(scene.api, [driver])
        self.name = f"{self.cluster.name}-hostile"
        self.storage_class = scene.storage_class(driver.name, self.name, allowVolumeExpansion=True)
        body = {"driver": driver.name, "deletionPolicy": "Delete"}
        self.create("VolumeSnapshotClass", {"name": self.name}, **body)
        self.snapshots = f"/apis/{SNAPSHOT}/namespaces/{scene.namespace}/volumesnapshots"
        (self.node,) = self.cluster.add_nodes(1)
        self.claims = {
            word: [f"{self.name}-{word}-{number}" for number in range(len(rules[method]))]
            for word, method in OBJECTS.items()
        }
        names = [name for group in self.claims.values() for name in group]
        for name in names:
            scene.claim(name, self.storage_class)
        scene.wait_bound(*names, timeout_seconds=120)

    def create(self, kind, metadata, **body):
        self.api.create({"apiVersion": SNAPSHOT, "kind": kind, "metadata": metadata, **body})

    def begin(self):
        for name in self.claims["attach"]:
            volume = self.scene.get(name)["spec"]["volumeName"]
            self.cluster.attach(f"{name}-va", self.driver.name, volume, self.node)
        size = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
        for name in self.claims["expand"]:
            self.api.patch(f"{self.scene.claims_path}/{name}", size)
        for name in self.claims["snapshot"]:
            source = {"persistentVolumeClaimName": name}
            spec = {"source": source, "volumeSnapshotClassName": self.name}
            metadata = {"name": name, "namespace": self.scene.namespace}
            self.create("VolumeSnapshot", metadata, spec=spec)

    def are_asked(self, rules):
        return all(len(self.driver.calls(one)) >= len(rules[one]) for one in OBJECTS.values())

    def waiting(self):
        """Return the objects that show neither a result nor an error."""
        attached = {volume for volume, _ in self.cluster.attached()}
        snapshots = {
            one["metadata"]["name"]: one.get("status") or {}
            for one in self.api.items(self.snapshots)
        }
        claims = self.scene.claims()
        return [
            *(n for n in self.claims["attach"] if claims[n]["spec"]["volumeName"] not in attached),
            *(n for n in self.claims["expand"] if not is_grown(claims[n]["status"])),
            *(
                n
                for n in self.claims["snapshot"]
                if not {"readyToUse", "error"}
                & {key for key, value in snapshots[n].items() if value}
            ),
        ]

    def clean_up(self):
        for one in self.cluster.attachments():
            self.api.delete(f"{ATTACHMENTS}/{one['metadata']['name']}")
        for name in self.claims["snapshot"]:
            self.api.delete(f"{self.snapshots}/{name}")
        self.cluster.clean_up()
        self.api.delete(f"/apis/{SNAPSHOT}/volumesnapshotclasses/{self.name}")


def test_nothing_outside_its_own_objects_and_others_are_served(
    kubeconfig, scene, drivers, tmp_path
):
    bad, good = drivers
    flags = ("-v=4", "--reconcile-sync=2s", "--retry-interval-max=2s")
    with fleet_of("central", tmp_path, kubeconfig, drivers, *flags) as fleet:
        honest = Life(scene, good)
        honest.prepare()
        foreign = scene.volume(honest.used)["spec"]["csi"]["volumeHandle"]
        rules = hostile_answers.once_each(foreign, *OBJECTS.values(), *LISTS)
        hostile = Hostile(scene, bad, rules)
        try:
            before = {one["metadata"]["name"]: one for one in scene.volumes()}
            bad.set_rules(*(rule for one in rules.values() for rule in one))
            hostile.begin()
            honest.begin()
            wait_until(lambda: not honest.undone(), 120, "the other driver's work is done")
            assert honest.called() == dict.fromkeys(honest.operations(), 1)
            wait_until(lambda: hostile.are_asked(rules), 120, "each object was tried")
            wait_until(lambda: not hostile.waiting(), 120, "each object shows a result or an error")
            assert foreign in good.volumes()
            strange = set(hostile_answers.WORDS.values()) - {""}
            named = {one for call in good.calls() for one in call.volumes}
            assert not named & strange
            for name, volume in before.items():
                found = scene.volume(name)
                if found is None or found["spec"]["csi"]["driver"] == bad.name:
                    continue
                assert found["spec"]["csi"] == volume["spec"]["csi"], name
            text = fleet.log_text()
            assert "Traceback" not in text
            assert "restarting it" not in text
        finally:
            bad.set_rules()
            hostile.clean_up()
            honest.clean_up()
            scene.clean_up()
