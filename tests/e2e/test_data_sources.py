"""The data source validator as a process: permissions, CRD, faults, Lease and `explain`."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.fleet import Fleet, Scene, leader_flags
from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.redis_server import is_as_shipped
from tests.support.shipped_fleet import ShippedFleet
from tests.support.tool import Tool
from tests.support.waiting import let_pass, wait_until

CONTROLLER = "--controllers=data-source-validator"
REASON = "UnrecognizedDataSourceKind"
GROUP = "fill.example.org"
CRD = Path(__file__).parents[1] / "support" / "crds" / "populators.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POPULATORS = "/apis/populator.storage.k8s.io/v1beta1/volumepopulators"


def source(kind: str = "Backup") -> dict[str, str]:
    return {"apiGroup": GROUP, "kind": kind, "name": "b"}


def wanted(scene: Scene, name: str, kind: str = "Backup", storage_class: str = "") -> str:
    """Create a claim that a populator has to fill from an object of that kind; return its name."""
    scene.claim(name, storage_class or f"none-{scene.namespace}", dataSourceRef=source(kind))
    return name


def register(api: KubeApi, kind: str = "Backup", name: str = "e2e") -> None:
    body: dict[str, Any] = {"apiVersion": "populator.storage.k8s.io/v1beta1"}
    body |= {"kind": "VolumePopulator", "metadata": {"name": name}}
    api.create({**body, "sourceKind": {"group": GROUP, "kind": kind}})


def warnings(scene: Scene, name: str) -> int:
    """Return how many warnings about its data source the claim has."""
    found = [one for one in scene.events(name) if one["reason"] == REASON]
    return sum(int(one["count"]) for one in found)


@pytest.fixture
def populators(api):
    """The API. All VolumePopulators are removed after the test."""
    yield api
    with suppress(KubeApiError):
        for one in api.items(POPULATORS):
            api.delete(f"{POPULATORS}/{one['metadata']['name']}")


def test_the_shipped_rights_are_enough(request, tmp_path, api, scene, populators, redis_binary):
    """DV-032: the accounts of k8s/ and the users of the shipped Redis suffice."""
    if os.environ.get("CSI_FLEET_TEST_KUBECONFIG") or not is_as_shipped(redis_binary):
        pytest.skip("needs a control plane with RBAC of its own, and Redis 7")
    plane = request.getfixturevalue("control_plane")
    register(api)
    parts = {
        "controllers": "data-source-validator",
        "components": ["controller-data-source-validator"],
    }
    with ShippedFleet(tmp_path, plane, redis_binary, [], **parts) as fleet:
        wanted(scene, "good")
        wanted(scene, "bad", "Other")
        wait_until(lambda: warnings(scene, "bad"), 30, "the warning")
        api.delete(f"{POPULATORS}/e2e")
        wait_until(lambda: warnings(scene, "good"), 30, "the warning about the populator that went")
        assert "is forbidden" not in fleet.log_text()
    assert (warnings(scene, "good"), warnings(scene, "bad")) == (1, 1)


def test_a_claim_is_explained_and_its_warning_does_not_expire(
    tmp_path, kubeconfig, api, scene, populators
):
    """DVD-002, DVD-004: `explain` reports `no-populator`, and each resync repeats the warning.

    Once the populator is registered, the cause changes and no further warning comes.
    """
    name = f"{scene.namespace}/data"
    with Fleet(tmp_path, kubeconfig, [], CONTROLLER, "--resync-period=2s") as fleet:
        tool = Tool(kubeconfig, fleet.redis_url)
        wanted(scene, "data", storage_class=scene.storage_class("nobody.example.org"))
        text = tool.wait_cause("pvc", name, "no-populator", 30)
        assert f"Backup.{GROUP} b" in text
        wait_until(lambda: warnings(scene, "data") > 2, 30, "it is repeated")
        register(api)
        text = tool.explain("pvc", name)
        assert "no-populator" not in text
        let_pass(2.5)
        before = warnings(scene, "data")
        let_pass(5)
        assert warnings(scene, "data") == before


def test_a_cluster_without_the_crd_and_then_with_it(tmp_path, kubeconfig, api, scene):
    """DV-006, DVT-016: without the CRD there is no warning; then all claims are checked."""
    name = "volumepopulators.populator.storage.k8s.io"
    api.delete(f"{CRDS}/{name}")
    wait_until(lambda: api.find(f"{CRDS}/{name}") is None, 30, "the CRD is gone")
    try:
        wanted(scene, "before")
        with Fleet(tmp_path, kubeconfig, [], CONTROLLER, "--resync-period=1h") as fleet:
            wanted(scene, "after")
            let_pass(3)
            assert (warnings(scene, "before"), warnings(scene, "after")) == (0, 0)
            assert "Traceback" not in fleet.log_text()
            api.apply_file(CRD)
            for one in ("before", "after"):
                wait_until(lambda one=one: warnings(scene, one), 60, f"the warning of {one}")
    finally:
        api.apply_file(CRD)


def kill_workers(fleet: Fleet) -> None:
    for pid in fleet.workers():
        os.kill(pid, signal.SIGKILL)


def kill_watcher(fleet: Fleet) -> None:
    for pid in fleet.parts("watcher"):
        os.kill(pid, signal.SIGKILL)


def empty_redis(fleet: Fleet) -> None:
    with redis.Redis.from_url(fleet.redis_url) as client:
        client.flushall()


@pytest.mark.parametrize(
    "fault", [kill_workers, kill_watcher, empty_redis], ids=lambda one: one.__name__
)
def test_no_warning_is_lost_and_none_is_false(fault, tmp_path, kubeconfig, api, scene, populators):
    """DVT-012, DVT-014: a fault occurs amid sixty claims, every third of which has a populator.

    An event that a killed worker did not write is written at the next resync (DVD-004).
    """
    register(api)
    kinds = ["Other", "Another", "Backup"]
    flags = (CONTROLLER, "--workers=2", "--resync-period=5s")
    with Fleet(tmp_path, kubeconfig, [], *flags) as fleet:
        names = [wanted(scene, f"d{number}", kinds[number % 3]) for number in range(30)]
        fault(fleet)
        names += [wanted(scene, f"d{number}", kinds[number % 3]) for number in range(30, 60)]
        bad = [name for number, name in enumerate(names) if number % 3 < 2]

        def all_told() -> bool:
            events = api.items(f"/api/v1/namespaces/{scene.namespace}/events")
            about = {one["involvedObject"]["name"] for one in events if one["reason"] == REASON}
            assert about <= set(bad)
            return about == set(bad)

        wait_until(all_told, 90, "each of them has its warning")


def test_it_waits_for_the_go_programs_lease(tmp_path, kubeconfig, api, scene):
    """DV-030, DV-031: while another program holds the Lease nothing is written.

    Then claims made meanwhile get their warning. It runs under the Go program's name.
    """
    path = f"/apis/coordination.k8s.io/v1/namespaces/{scene.namespace}/leases"
    name = "data-source-validator-leader"
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    spec = {"holderIdentity": "go", "leaseDurationSeconds": 3600}
    meta = {"name": name, "namespace": scene.namespace}
    api.create({**body, "metadata": meta, "spec": spec})
    flags = leader_flags(scene.namespace)
    with Fleet(tmp_path, kubeconfig, [], *flags, command="volume-data-source-validator") as fleet:
        wanted(scene, "data")
        wait_until(lambda: f"/{name}" in fleet.log_text(), 30, "it waits for the Lease")
        let_pass(3)
        assert warnings(scene, "data") == 0
        api.patch(f"{path}/{name}", {"spec": {"holderIdentity": ""}})
        wait_until(lambda: warnings(scene, "data"), 30, "the warning")
