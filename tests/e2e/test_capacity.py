"""CSIStorageCapacity objects on a real API server, with a driver that answers per segment."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, Scene
from tests.support.waiting import wait_until

GIB = 2**30
KEY = "topology.capacity.test/zone"
# The default of 1 write a second (CAP-071) would make the test wait for its own writes.
RATE = ("--kube-api-capacity-qps=500", "--kube-api-capacity-burst=500", "--capacity-threads=4")


class Segments:
    """Nodes with one driver and one segment each, and the capacity objects of that driver."""

    def __init__(self, scene, driver):
        self.api, self.scene, self.driver = scene.api, scene, driver
        self._nodes = []

    def add(self, *zones):
        for zone in zones:
            name = f"{self.scene.name}-{zone}"
            self.api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": {KEY: zone}},
                }
            )
            self.api.create(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": name},
                    "spec": {
                        "drivers": [
                            {"name": self.driver.name, "nodeID": name, "topologyKeys": [KEY]}
                        ]
                    },
                }
            )
            self._nodes.append(zone)

    def remove(self, *zones):
        for zone in zones:
            name = f"{self.scene.name}-{zone}"
            self.api.delete(f"/apis/storage.k8s.io/v1/csinodes/{name}")
            self.api.delete(f"/api/v1/nodes/{name}")
            self._nodes.remove(zone)

    @property
    def path(self):
        return f"/apis/storage.k8s.io/v1/namespaces/{self.scene.namespace}/csistoragecapacities"

    def objects(self):
        return self.api.items(self.path)

    def pairs(self):
        """Count the objects of each (class, zone); a count of two is a duplicate."""
        return Counter(
            (one["storageClassName"], one["nodeTopology"]["matchLabels"][KEY])
            for one in self.objects()
        )

    def versions(self):
        return {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in self.objects()
        }

    def wait_for(self, pairs, timeout_seconds, what):
        wanted = Counter(dict.fromkeys(pairs, 1))

        def agree():
            found = self.pairs()
            if found != wanted:
                raise AssertionError(
                    f"{len(found)} of {len(wanted)}: missing {list(wanted - found)[:3]}, "
                    f"too many {list(found - wanted)[:3]}"
                )
            return True

        wait_until(agree, timeout_seconds, what)

    def clean_up(self):
        self.remove(*list(self._nodes))


@pytest.fixture
def capacity_driver():
    with DirectoryDriver(arguments=["--topology", f"{KEY}=local"]) as driver:
        yield driver


@pytest.fixture
def segments(scene, capacity_driver):
    segments = Segments(scene, capacity_driver)
    yield segments
    segments.clean_up()


@pytest.fixture
def publish(tmp_path, kubeconfig, scene, capacity_driver, redis_binary):
    """Return a function that starts csi-fleet with capacity enabled and further flags."""
    started = []

    def start(*flags, workers=1):
        fleet = Fleet(
            tmp_path / f"fleet-{len(started)}",
            kubeconfig,
            [capacity_driver],
            "--enable-capacity",
            "--capacity-ownerref-level=-1",
            f"--workers={workers}",
            *RATE,
            *flags,
            env={"NAMESPACE": scene.namespace},
        )
        started.append(fleet)
        return fleet.start()

    yield start
    for fleet in started:
        fleet.stop()


def late(scene: Scene, driver: DirectoryDriver, name: str) -> str:
    return scene.storage_class(driver.name, name, volumeBindingMode="WaitForFirstConsumer")


def test_c088_c101_c102_objects_follow_driver_classes_and_nodes(
    scene, capacity_driver, segments, publish
):
    """Each class and segment has one object with the driver's values; no other exists."""
    driver = capacity_driver
    driver.set_capacity(segments={f"{KEY}=z1": GIB, f"{KEY}=z2": 1_500_000_000})
    segments.add("z1", "z2")
    fast = late(scene, driver, "fast")
    scene.storage_class(driver.name, "immediate")
    publish("--capacity-poll-interval=2s")
    segments.wait_for([(fast, "z1"), (fast, "z2")], 30, "two objects")
    values = {
        one["nodeTopology"]["matchLabels"][KEY]: one["capacity"] for one in segments.objects()
    }
    assert values == {"z1": "1Gi", "z2": "1500M"}

    driver.set_capacity(segments={f"{KEY}=z1": 2 * GIB}, maximum_volume_size=GIB)

    def is_updated():
        one = next(
            one for one in segments.objects() if one["nodeTopology"]["matchLabels"][KEY] == "z1"
        )
        return (one["capacity"], one.get("maximumVolumeSize")) == ("2Gi", "1Gi")

    wait_until(is_updated, 20, "the poll updates the values")
    segments.add("z3")
    segments.wait_for([(fast, zone) for zone in ("z1", "z2", "z3")], 20, "a node more")
    segments.remove("z1")
    segments.wait_for([(fast, zone) for zone in ("z2", "z3")], 20, "a node less")
    slow = late(scene, driver, "slow")
    wanted = [(name, zone) for name in (fast, slow) for zone in ("z2", "z3")]
    segments.wait_for(wanted, 20, "a class more")
    scene.delete_class(fast)
    segments.wait_for([(slow, zone) for zone in ("z2", "z3")], 20, "a class less")


def test_c098_c099_c100_exactly_one_object_whatever_users_do(
    scene, capacity_driver, segments, publish
):
    """A deleted object is recreated, a relabelled one replaced, a duplicate removed."""
    segments.add("z1")
    name = late(scene, capacity_driver, "fast")
    publish("--capacity-poll-interval=3s")
    segments.wait_for([(name, "z1")], 30, "the object")
    (first,) = segments.objects()
    path = f"{segments.path}/{first['metadata']['name']}"
    scene.api.delete(path)
    wait_until(
        lambda: [
            one for one in segments.objects() if one["metadata"]["uid"] != first["metadata"]["uid"]
        ],
        15,
        "a deleted object is made again",
    )

    (second,) = segments.objects()
    path = f"{segments.path}/{second['metadata']['name']}"
    scene.api.patch(path, {"metadata": {"labels": {"csi.storage.k8s.io/managed-by": "me"}}})
    wait_until(lambda: len(segments.objects()) == 2, 15, "a replacement beside the relabelled one")
    scene.api.delete(path)

    (third,) = segments.objects()
    copy = {
        key: third[key] for key in ("storageClassName", "nodeTopology", "capacity") if key in third
    }
    scene.api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {
                "name": "copy",
                "namespace": scene.namespace,
                "labels": third["metadata"]["labels"],
            },
            **copy,
        }
    )
    segments.wait_for([(name, "z1")], 20, "one of two stays")


def test_c101_200_segments_times_5_classes_converge_and_settle(
    scene, capacity_driver, segments, publish
):
    """Two workers create exactly the expected 1000 objects, and a quiet poll writes none."""
    zones = [f"z{number}" for number in range(200)]
    segments.add(*zones)
    classes = [late(scene, capacity_driver, f"class{number}") for number in range(5)]
    publish("--capacity-poll-interval=20s", workers=2)
    segments.wait_for([(name, zone) for name in classes for zone in zones], 240, "1000 objects")

    scene.delete_class(classes[0])
    segments.remove(*zones[:20])
    segments.add("new")
    zones = [*zones[20:], "new"]
    wanted = [(name, zone) for name in classes[1:] for zone in zones]
    segments.wait_for(wanted, 240, "objects follow classes and nodes")

    before = segments.versions()
    asked = len(capacity_driver.calls("GetCapacity"))
    wait_until(
        lambda: len(capacity_driver.calls("GetCapacity")) >= asked + 2 * len(wanted),
        240,
        "at least one full quiet poll",
    )
    assert segments.versions() == before


def test_capacity_of_a_driver_without_the_ability_is_off(tmp_path, kubeconfig, scene, redis_binary):
    """CAP-012: the log has one warning, GetCapacity is never called, and claims are provisioned."""
    with DirectoryDriver(
        arguments=["--capabilities", "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME"]
    ) as driver:
        name = scene.storage_class(driver.name)
        with Fleet(
            tmp_path / "fleet",
            kubeconfig,
            [driver],
            "--enable-capacity",
            "--capacity-ownerref-level=-1",
            env={"NAMESPACE": scene.namespace},
        ) as fleet:
            scene.claim("data", name)
            scene.wait_bound("data")
            assert (
                fleet.log_text().count("the driver does not have the capability GET_CAPACITY") == 1
            )
        assert driver.calls("GetCapacity") == []


def test_capacity_owner_that_does_not_exist_ends_the_start(
    tmp_path, kubeconfig, scene, capacity_driver, redis_binary
):
    """C-110: if the pod is missing, the program exits with 255 at once (F-014)."""
    fleet = Fleet(
        tmp_path / "fleet",
        kubeconfig,
        [capacity_driver],
        "--enable-capacity",
        env={"NAMESPACE": scene.namespace, "POD_NAME": "nobody"},
    )
    fleet.start(wait=False)
    try:
        wait_until(lambda: not fleet.process.is_running(), 60, "the program ends")
        assert fleet.stop() == 255
        assert "look up owner(s) of pod failed" in fleet.log_text()
    finally:
        fleet.stop()
