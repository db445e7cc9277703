"""Attachments are created and deleted while every process dies at random moments (MA-060).

    CHAOS_SEED=n CHAOS_ATTACHMENTS=200 pytest tests/chaos/test_attaching.py -s

Once all work is done, the driver and the API server agree and nothing is stuck. Claims of attached
volumes are deleted too, and the provisioner waits for the detach. The faults are those of
`tests/support/faults.py`; `CHAOS_KEEP=dir` keeps logs.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support.attach_cluster import ATTACHMENTS, CAPABILITIES, AttachCluster
from tests.support.chaos import System, empty
from tests.support.faults import ELECTION, LOSES_LEASES, Faults
from tests.support.kube_api import KubeApiError
from tests.support.waiting import let_pass, wait_until

COUNT = int(os.environ.get("CHAOS_ATTACHMENTS", "48"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SETTLE_SECONDS = float(os.environ.get("CHAOS_SETTLE", "150"))
NODE_COUNT = 6


class AttachChaos(Faults):
    """The schedule of faults and attachments, for volumes of one node and of many."""

    def __init__(self, system: System, cluster: AttachCluster, seed: int) -> None:
        super().__init__(system, seed)
        self.cluster = cluster
        # Twice as many as are left at any time, because some are deleted.
        self.single = cluster.add_volumes(system.driver, COUNT, provisioned=True)
        self.shared = cluster.add_volumes(system.driver, 3, "ReadWriteMany", provisioned=True)
        # If a claim is deleted before the cluster binds it, its volume stays Available and is never
        # deleted.
        cluster.wait_bound()
        self.handles = {name: cluster.handle(name) for name in self.single + self.shared}
        self.unclaimed: set[str] = set()
        self.made = 0
        self.alive: dict[str, tuple[str, str]] = {}
        self.lease_ends: list[float] = []

    def run(self) -> None:
        """Run every kind of fault once; create and delete attachments before and after each."""
        schedule = sorted(self.fault_kinds)
        self.random.shuffle(schedule)
        print("faults:", schedule)
        share = -(-COUNT // len(schedule))
        for name in schedule:
            self.step(share)
            before = time.time()
            self.fault_kinds[name](self)
            if name in LOSES_LEASES:
                self.lease_ends.append(before)
            self.step(0)
            self.system.note_undeclared()
            let_pass(self.random.uniform(0.2, 2.0))

    def step(self, count: int) -> None:
        """Create `count` attachments and delete half as many, in whatever state they are."""
        for _ in range(count):
            self.attach()
        while len(self.alive) > self.made // 2 + 1:
            name = self.random.choice(sorted(self.alive))
            self.insist(lambda name=name: self.cluster.api.delete(f"{ATTACHMENTS}/{name}"))
            del self.alive[name]
        if count and (candidates := self.taken_up()):
            self.delete_claim(self.random.choice(candidates))

    def taken_up(self) -> list[str]:
        """Return volumes of one node whose attachment has the attacher's finalizer.

        An attachment that the attacher has not seen yet protects no volume (docs/guarantees.md),
        and no pod uses the volume: the API server protects the claims of pods.
        """
        seen = {
            one["metadata"]["name"]
            for one in self.insist(self.cluster.attachments)
            if one["metadata"].get("finalizers")
        }
        known = {volume for name, (volume, _) in self.alive.items() if name in seen}
        return sorted(known & set(self.single))

    def delete_claim(self, volume: str) -> None:
        """Delete the volume's claim; the volume may be deleted once it is detached."""
        path = f"/api/v1/namespaces/{self.cluster.name}/persistentvolumeclaims/{volume}"
        self.insist(lambda: self.cluster.api.delete(path))
        self.unclaimed.add(volume)

    def attach(self) -> None:
        """Create an attachment.

        A volume of one node is attached only if no attachment of it is wanted.
        """
        taken = set(self.alive.values())
        busy = {volume for volume, _ in taken} | self.unclaimed
        pairs = [(volume, node) for volume in self.shared for node in self.cluster.nodes]
        pairs += [
            (volume, self.random.choice(self.cluster.nodes))
            for volume in self.single
            if volume not in busy
        ]
        volume, node = self.random.choice([pair for pair in pairs if pair not in taken])
        name = f"{self.cluster.name}-a{self.made}"
        self.made += 1
        driver = self.system.driver.name
        self.insist(lambda: self.cluster.attach(name, driver, volume, node))
        self.alive[name] = (volume, node)


def overlaps(chaos: AttachChaos) -> list[str]:
    """I-3: return overlapping calls for one volume and node, or for a volume of one node.

    Calls around the loss of a lease are allowed to overlap.
    """
    single = {chaos.handles[volume] for volume in chaos.single}
    calls = {call.call: call for call in chaos.system.driver.calls()}
    found = []
    for call in calls.values():
        for overlap in call.overlaps:
            other = calls[overlap["call"]]
            is_one = call.request.get("node_id") == other.request.get("node_id")
            if not overlap["waited_for"] or not (is_one or single & set(call.volumes)):
                continue
            if any(other.started_at - 12 <= at <= call.started_at for at in chaos.lease_ends):
                continue
            found.append(f"{other.method} {other.started_at} / {call.method} {call.started_at}")
    return found


@pytest.mark.timeout(1800)
def test_driver_and_api_server_say_the_same_at_rest(own_plane, redis_binary, tmp_path, capsys):
    """MA-060, I-1 to I-6: each published volume has an attachment, and no finalizer is stuck."""
    directory = Path(os.environ.get("CHAOS_KEEP", tmp_path)) / f"attach-{SEED}"
    with capsys.disabled():
        print(f"\nCHAOS_SEED={SEED} CHAOS_ATTACHMENTS={COUNT}")
    flags = ("--resync-period=10s",)
    worker_flags = (
        "--provisioner-timeout=5s",
        "--attacher-timeout=5s",
        "--retry-interval-max=5s",
        "--reconcile-sync=5s",
        *ELECTION,
    )
    driver = (f"--capabilities={CAPABILITIES}",)
    with System(
        directory,
        own_plane,
        redis_binary,
        is_proxied=True,
        appendonly=True,
        flags=flags,
        worker_flags=worker_flags,
        controllers="provisioner,attacher",
        driver_arguments=driver,
    ) as system:
        cluster = AttachCluster(system.api, [system.driver])
        cluster.add_nodes(NODE_COUNT)
        try:
            live(AttachChaos(system, cluster, SEED))
        except BaseException:
            print(*system.queue_state(), sep="\n")
            raise
        finally:
            system.driver.set_rules()
            cluster.clean_up()


def live(chaos: AttachChaos) -> None:
    """Run the faults, wait until work is done, delete all attachments, then all volumes."""
    slow = {"delay_seconds": [0, 2]}
    methods = ("ControllerPublishVolume", "ControllerUnpublishVolume")
    chaos.system.driver.set_rules(*({"method": one, **slow} for one in methods))
    chaos.run()
    assert chaos.unclaimed
    rest(chaos)
    assert overlaps(chaos) == []
    assert deleted_while_published(chaos) == []
    for name in list(chaos.alive):
        chaos.insist(lambda name=name: chaos.cluster.api.delete(f"{ATTACHMENTS}/{name}"))
        del chaos.alive[name]
    rest(chaos)
    for volume in chaos.single + chaos.shared:
        if volume not in chaos.unclaimed:
            chaos.delete_claim(volume)
    wait_until(lambda: are_gone(chaos), SETTLE_SECONDS, "volumes are gone")
    system = chaos.system
    assert system.driver.volumes() == {}
    assert deleted_while_published(chaos) == []
    wait_until(lambda: empty(system.queue_left()), SETTLE_SECONDS, "queues are empty")
    assert sorted(system.undeclared) == []


def deleted_while_published(chaos: AttachChaos) -> list[str]:
    """P-510: return the messages of refused DeleteVolume calls for attached volumes."""
    calls = chaos.system.driver.calls("DeleteVolume")
    return [call.message for call in calls if call.code == "FAILED_PRECONDITION"]


def rest(chaos: AttachChaos) -> None:
    """Wait until everything is as wanted."""
    wait_until(lambda: is_as_wanted(chaos), SETTLE_SECONDS, "at rest", interval_seconds=0.5)


def is_as_wanted(chaos: AttachChaos) -> bool:
    """I-4: exactly the wanted attachments are attached and published, without an error (I-5)."""
    try:
        found = {one["metadata"]["name"]: one for one in chaos.cluster.attachments()}
    except KubeApiError:
        return False
    assert found.keys() == chaos.alive.keys(), f"{found.keys() ^ chaos.alive.keys()}"
    waiting = [name for name, one in found.items() if not one["status"]["attached"]]
    assert not waiting, f"not attached: {waiting[:4]}"
    errors = [
        one["status"]["attachError"] for one in found.values() if "attachError" in one["status"]
    ]
    assert not errors, errors[:2]
    wanted = {(chaos.handles[volume], f"id-{node}") for volume, node in chaos.alive.values()}
    published = chaos.cluster.published()
    assert published == wanted, f"{published ^ wanted}"
    return True


def are_gone(chaos: AttachChaos) -> bool:
    """No PV of this test is left. The error shows the state of those that are left."""
    names = set(chaos.single + chaos.shared)
    left = {
        one["metadata"]["name"]: (
            one["status"].get("phase"),
            one["metadata"].get("deletionTimestamp"),
            one["metadata"].get("finalizers"),
        )
        for one in chaos.cluster.api.items("/api/v1/persistentvolumes")
        if one["metadata"]["name"] in names
    }
    assert not left, f"{left}; queues: {chaos.system.queue_left()}"
    return True
