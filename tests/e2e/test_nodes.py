"""Node deployment: one csi-fleet per node and one driver name, with own or shared Redis."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.fleet import ANN_SELECTED_NODE, Scene
from tests.support.node_world import KEY, NodeWorld, handle_of, node_of
from tests.support.redis_server import RedisServer
from tests.support.tool import Tool
from tests.support.waiting import let_pass, wait_until

# An intent whose key is not queued is looked up once a minute.
RECOVERY_SECONDS = 120
CREATE, DELETE = {"method": "CreateVolume"}, {"method": "DeleteVolume"}
LOST = {**CREATE, "code": "DEADLINE_EXCEEDED", "after_work": True}
FULL = {**CREATE, "code": "RESOURCE_EXHAUSTED"}


@pytest.fixture(params=["own", "shared"])
def make(request, tmp_path, kubeconfig, api, redis_binary):
    """Nodes with a Redis each, or nodes that share one Redis."""
    with ExitStack() as stack:
        url = ""
        if request.param == "shared":
            folder = stack.enter_context(TemporaryDirectory(prefix="nr-"))
            server = RedisServer(redis_binary, Path(folder)).start()
            stack.callback(server.kill)
            url = server.unix_url

        def world(letters="ab", *flags):
            return NodeWorld(tmp_path, kubeconfig, Scene(api), letters, *flags, redis_url=url)

        yield world


def move(scene, name, node):
    scene.annotate(name, **{ANN_SELECTED_NODE: None})
    scene.select_node(name, node.name)


def test_a_burst_gets_one_volume_a_claim_and_each_node_deletes_its_own(make):
    with make("abc") as world:
        scene, late, now = world.scene, world.late(), world.now()
        for index in range(20):
            scene.claim(f"now-{index}", now)
            scene.claim(f"late-{index}", late)
            scene.select_node(f"late-{index}", world[index % 3].name)
        claims = scene.wait_bound(timeout_seconds=120)
        world.check()
        assert sum(len(one.created()) for one in world) == 40
        for one in claims.values():
            chosen = one["metadata"]["annotations"][ANN_SELECTED_NODE]
            assert node_of(scene.volume_of(one)) == chosen
        owned = sorted((node_of(one), handle_of(one)) for one in scene.volumes())
        world.delete_all()
        assert sorted((one.name, volume) for one in world for volume in one.deleted()) == owned


@pytest.mark.parametrize(
    "rules",
    [[{**LOST, "times": 2}], [{**LOST, "times": 1}, {**FULL, "times": 1}]],
    ids=["unknown", "unknown-then-full"],
)
@pytest.mark.parametrize("seconds", [0, 3.5], ids=["fast", "slow"])
def test_a_claim_that_goes_to_another_node_leaves_nothing(make, rules, seconds):
    """P-052, P-055, G7: the claim gets the chosen node's volume; the first one is deleted."""
    with make() as world:
        scene, (first, second) = world.scene, world.nodes
        first.driver.set_rules(*rules)
        second.driver.set_rules({**CREATE, "delay_seconds": seconds})
        scene.claim("c", world.late())
        scene.select_node("c", first.name)
        wait_until(lambda: len(first.created()) > 1, 30, "the first node's second call")
        move(scene, "c", second)
        claim = scene.wait_bound("c")["c"]
        assert node_of(scene.volume_of(claim)) == second.name
        wait_until(lambda: not first.driver.volumes(), RECOVERY_SECONDS, "its volume goes")
        world.check()
        world.delete_all()
        assert not world.copies()


def test_a_dead_node_remembers_what_it_left_although_another_one_was_slow_too(make):
    """The dead node loses its Redis, and the other node has an intent copy of the same name."""
    with make() as world:
        scene, (first, second) = world.scene, world.nodes
        first.driver.set_rules({**CREATE, "hang": True, "after_work": True, "times": 1})
        second.driver.set_rules({**CREATE, "delay_seconds": 3})
        scene.claim("c", world.late())
        scene.select_node("c", first.name)
        wait_until(world.copies, 30, "the record is kept")
        first.kill_fleet()
        move(scene, "c", second)
        scene.wait_bound("c")
        wait_until(first.driver.volumes, 30, "the call of the dead one made a volume")
        first.fleet.start()
        wait_until(lambda: not first.driver.volumes(), RECOVERY_SECONDS, "it goes")
        world.check()
        wait_until(lambda: not world.copies(), RECOVERY_SECONDS, "so do the records")


@pytest.mark.parametrize("wipe", [True, False], ids=["empty", "kept"])
def test_deletions_wait_for_their_node(make, wipe):
    with make() as world:
        scene, late = world.scene, world.late()
        dead, other = world.nodes
        for index in range(4):
            scene.claim(f"c-{index}", late)
            scene.select_node(f"c-{index}", world[index % 2].name)
        scene.wait_bound()
        dead.driver.set_rules({**DELETE, "hang": True, "after_work": True, "times": 2})
        for name in scene.claims():
            scene.delete(name)
        wait_until(lambda: len(dead.deleted()) == 2, 30, "it is asked")
        dead.kill_fleet(wipe=wipe)
        wait_until(lambda: not other.driver.volumes(), 30, "the other's are deleted")
        let_pass(3)
        assert [node_of(one) for one in scene.volumes()] == [dead.name] * 2
        dead.fleet.start()
        world.delete_all()
        assert len(other.deleted()) == 2


def test_each_node_keeps_its_own_capacity_objects(make):
    flags = ("--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-poll-interval=2s")
    with make("ab", *flags, "--kube-api-capacity-qps=100") as world:
        scene, late = world.scene, world.late()
        path = f"/apis/storage.k8s.io/v1/namespaces/{scene.namespace}/csistoragecapacities"

        def objects():
            return {one["nodeTopology"]["matchLabels"][KEY]: one for one in scene.api.items(path)}

        wait_until(lambda: {*objects()} == {one.name for one in world}, 60, "one for each node")
        let_pass(1)
        before = scene.api.items(path)
        let_pass(6)
        assert scene.api.items(path) == before
        world[0].kill_fleet()
        scene.api.delete(f"{path}/{objects()[world[0].name]['metadata']['name']}")
        let_pass(5)
        assert {*objects()} == {world[1].name}
        world[0].fleet.start()
        wait_until(lambda: len(objects()) == 2, 30, "it is back")
        assert {one["storageClassName"] for one in objects().values()} == {late}


def test_an_audit_on_one_node_judges_only_that_node_s_volumes(make, kubeconfig):
    with make() as world:
        scene, late = world.scene, world.late()
        for node in world:
            for kind in ("kept", "lost"):
                scene.claim(f"{kind}-{node.name}", late)
                scene.select_node(f"{kind}-{node.name}", node.name)
        claims = scene.wait_bound(timeout_seconds=120)
        node = world[0]
        lost = scene.volume_of(claims[f"lost-{node.name}"])
        client = node.driver.client()
        try:
            client.delete_volume(handle_of(lost), {})
        finally:
            client.close()
        tool = Tool(kubeconfig, node.fleet.redis_url, NODE_NAME=node.name)
        words = (f"--csi-address={node.driver.address}", "--grace=0s")
        found = tool.json("audit", *words, "--node-deployment")
        assert (found["missing"], found["orphans"]) == (
            {lost["metadata"]["name"]: handle_of(lost)},
            {},
        )
        assert len(tool.json("audit", *words)["missing"]) == 3  # includes the other node's two
