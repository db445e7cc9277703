"""Claims, attachments and snapshots change while clocks, revisions, classes and names change too.

    CHAOS_SEED=n FRAME_CLAIMS=1000 FRAME_FAULTS=40 pytest tests/chaos/test_moving_frame.py -s

The faults are those of `tests/support/moving.py` and all others; `CHAOS_KEEP=dir` keeps logs,
`FRAME_KINDS="etcd restored,names change"` runs only these kinds. The driver is strict: it refuses
another request with a known name. After a restore of etcd, users create again what is gone, and an
operator removes what only the storage still has.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from csi_client import messages as csi
from tests.support.attach_cluster import ATTACHMENTS, AttachCluster
from tests.support.chaos import System
from tests.support.faults import LOSES_DATA, overlaps_without_fault
from tests.support.fleet import Scene
from tests.support.kube_api import JsonObject
from tests.support.moving import ENDS_LEASES, MovingFaults
from tests.support.snapshot_changing import half_way
from tests.support.tool import Tool
from tests.support.waiting import let_pass, wait_until

CLAIMS = int(os.environ.get("FRAME_CLAIMS", "40"))
FAULTS = int(os.environ.get("FRAME_FAULTS", "6"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SETTLE_SECONDS = float(os.environ.get("CHAOS_SETTLE", "240"))
ONLY = [one for one in os.environ.get("FRAME_KINDS", "").split(",") if one]
# Runs with at least this many claims meet every kind of fault, and have a backup of etcd that is a
# minute old.
LONG = 200
NODES = 6
CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,CLONE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,LIST_VOLUMES,"
    "LIST_VOLUMES_PUBLISHED_NODES,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS"
)
RULES = (
    {"method": "*Snapshot", "delay_seconds": [0, 1]},
    {"method": "*Volume", "delay_seconds": [0, 1]},
)


class Mix(MovingFaults):
    """Users and faults, drawn from one seed."""

    def __init__(self, system: System, scene: Scene, cluster: AttachCluster, seed: int) -> None:
        away = 60 if CLAIMS >= LONG else 10
        super().__init__(system, scene, seed, rules=RULES, away_seconds=away)
        self.cluster = cluster
        self.count: Counter[str] = Counter()
        self.wanted: dict[str, tuple[str, str, str]] = {}  # attachments: claim, volume, node
        # Publications whose attachment went at once, because it had no finalizer.
        self.unprotected: set[tuple[str, str]] = set()
        self.faults: list[tuple[float, str]] = []
        self.lease_ends: list[float] = []

    # The schedule.

    def schedule(self) -> list[str]:
        """Return the faults in order.

        A long run has all kinds and more; a short one has mostly those of this test.
        """
        moving = sorted(self.moving_kinds)
        names = sorted(self.fault_kinds)
        if ONLY:
            drawn = list(ONLY)
        elif CLAIMS >= LONG:
            drawn = names + self.random.choices(names, k=max(0, FAULTS - len(names)))
        else:
            drawn = self.random.sample(moving, min(len(moving), FAULTS - FAULTS // 4))
            drawn += self.random.sample(sorted({*names} - {*moving}), FAULTS // 4)
        self.random.shuffle(drawn)
        return drawn

    def run(self) -> None:
        schedule = self.schedule()
        # A restore of etcd needs five shares of the claims.
        shares = len(schedule) + 1 + 5 * schedule.count("etcd restored")
        self.share = -(-CLAIMS // shares)
        self.feed(self.share)
        for name in schedule:
            self.feed(self.share)
            before = time.time()
            if name in LOSES_DATA:  # docs/guarantees.md: never together with a dead owner
                wait_until(self.system.is_whole, 90, "every attempt has an owner")
                before = time.time()
            self.faults.append((round(before, 1), name))
            self.fault_kinds[name](self)
            if name in ENDS_LEASES:
                self.lease_ends.append(before)
            self.feed(0)
            self.system.note_undeclared()
            let_pass(self.random.uniform(0.2, 1.5))
        while self.count["claims"] < CLAIMS:
            self.feed(self.share)

    # Users.

    def feed(self, count: int) -> None:
        """Create claims and delete half as many.

        Some claims are attached, snapshotted or restored from a snapshot.
        """
        draw = self.random.random
        for _ in range(min(count, CLAIMS - self.count["claims"])):
            cuts = self.cuts
            self.count["claims"] += 1
            is_restore = bool(cuts.snapshots) and draw() < 0.15
            cuts.claim(cuts.one(cuts.snapshots) if is_restore else "")
            if draw() < 0.25:
                self.count["snapshots"] += 1
                cuts.cut(cuts.one(cuts.claims))
            if len(cuts.snapshots) > 3 and draw() < 0.15:
                cuts.drop_snapshot(cuts.one(cuts.snapshots))
            if self.count["deletions"] * 2 < self.count["claims"]:
                self.drop_one()
        self.attach(count)

    def attach(self, count: int) -> None:
        """Attach bound claims, as the scheduler does, and delete a few attachments."""
        claims = self.insist(self.scene.claims)
        taken = {claim for claim, _, _ in self.wanted.values()}
        for name, claim in sorted(claims.items()):
            if count <= 0:
                break
            if claim["status"]["phase"] != "Bound" or name not in self.cuts.claims or name in taken:
                continue
            if self.random.random() < 0.6:
                continue
            count -= 1
            self.count["attachments"] += 1
            attachment = f"{self.cluster.name}-a{self.count['attachments']}"
            node = self.random.choice(self.cluster.nodes)
            self.wanted[attachment] = (name, claim["spec"]["volumeName"], node)
            self.ask_attachment(attachment)
        while len(self.wanted) > 4 and self.random.random() < 0.4:
            self.detach(self.random.choice(sorted(self.wanted)))

    def ask_attachment(self, name: str) -> None:
        _, volume, node = self.wanted[name]
        driver = self.system.driver.name
        self.insist(lambda: self.cluster.attach(name, driver, volume, node))

    def detach(self, name: str) -> None:
        self.delete_attachment(name)
        del self.wanted[name]

    def delete_attachment(self, name: str) -> None:
        """Delete an attachment, and note whether it goes at once although its volume is published.

        That happens if a restore of etcd has taken away its finalizer.
        """
        path = f"{ATTACHMENTS}/{name}"
        found = self.insist(lambda: self.cluster.api.find(path)) or {}
        self.insist(lambda: self.cluster.api.delete(path))
        if found and not found["metadata"].get("finalizers"):
            self.unprotected |= self.pairs_of([found]) & self.cluster.published()

    def pairs_of(self, attachments: list[JsonObject]) -> set[tuple[str, str]]:
        """Return volume handle and node id of attachments whose PV exists."""
        volumes = {n: v["spec"]["csi"]["volumeHandle"] for n, v in self.system.volumes().items()}
        named = [
            (one["spec"]["source"]["persistentVolumeName"], one["spec"]["nodeName"])
            for one in attachments
        ]
        return {(volumes[volume], f"id-{node}") for volume, node in named if volume in volumes}

    def drop_one(self) -> None:
        """Delete a claim, but an attached one only if the attacher has seen its attachment."""
        claim = self.cuts.one(self.cuts.claims)
        attached = [name for name, (of, _, _) in self.wanted.items() if of == claim]
        for name in attached:
            found = self.insist(lambda name=name: self.cluster.api.find(f"{ATTACHMENTS}/{name}"))
            if not (found or {}).get("metadata", {}).get("finalizers"):
                return
        self.cuts.drop_claim(claim)
        self.count["deletions"] += 1

    # A restore of etcd.

    def known(self) -> tuple[set[str], set[str], set[tuple[str, str]]]:
        volumes = {v["spec"]["csi"]["volumeHandle"] for v in self.system.volumes().values()}
        contents = [one.get("status") or {} for one in self.cuts.contents()]
        snapshots = {one["snapshotHandle"] for one in contents if "snapshotHandle" in one}
        # A restore may also take away the finalizer alone: if a user then deletes the attachment,
        # it is gone at once, and nothing tells csi-fleet that its volume is still on the node.
        protected = [a for a in self.cluster.attachments() if a["metadata"].get("finalizers")]
        return volumes, snapshots, self.pairs_of(protected)

    def stored(self) -> tuple[set[str], set[str], set[tuple[str, str]]]:
        driver = self.system.driver
        return set(driver.volumes()), set(driver.snapshots()), self.cluster.published()

    def reapply(self) -> None:
        """Create again what users still want, attachments first.

        csi-fleet must know which volumes are on nodes.
        """
        cuts, claims = self.cuts, self.insist(self.scene.claims)
        found = {one["metadata"]["name"] for one in self.insist(self.cluster.attachments)}
        for name, (claim, volume, _) in list(self.wanted.items()):
            if name in found:
                continue
            if (claims.get(claim) or {}).get("spec", {}).get("volumeName") == volume:
                self.ask_attachment(name)
            else:  # its volume is no longer known
                del self.wanted[name]
        for name in found - self.wanted.keys():
            self.delete_attachment(name)
        snapshots = self.insist(cuts.found)
        for name in snapshots.keys() - cuts.snapshots.keys():
            self.insist(lambda name=name: cuts.api.delete(f"{cuts.path}/{name}"))
        for name, claim in list(cuts.snapshots.items()):
            if name not in snapshots and claim not in cuts.claims:
                del cuts.snapshots[name]
            elif name not in snapshots:
                cuts.ask_snapshot(name)
        for name in claims.keys() - cuts.claims.keys():
            self.insist(lambda name=name: self.scene.delete(name))
        for name, source in list(cuts.claims.items()):
            if name not in claims and source and source not in cuts.snapshots:
                del cuts.claims[name]
            elif name not in claims:
                cuts.ask_claim(name)

    def operate(self) -> None:
        """Remove from the storage what the API server no longer knows after a restore.

        All claims must be bound before, because a claim of the backup requests its volume again.
        """
        volumes, snapshots, _ = self.known()
        driver = self.system.driver
        lost_pairs = self.cluster.published() & self.lost_pairs
        left = lost_pairs - self.pairs_of(self.cluster.attachments())
        self.count["publications that the operator ended"] += len(left)
        self.count["of these, attachments without finalizer"] += len(left & self.unprotected)
        requests: list[Any] = [
            csi.ControllerUnpublishVolumeRequest(volume_id=handle, node_id=node)
            for handle, node in left
        ]
        lost = (set(driver.snapshots()) & self.lost_snapshots) - snapshots
        requests += [csi.DeleteSnapshotRequest(snapshot_id=one) for one in lost]
        leaked = (set(driver.volumes()) & self.lost_volumes) - volumes
        requests += [csi.DeleteVolumeRequest(volume_id=one) for one in leaked]
        listed: JsonObject = {}
        if lost | leaked:  # docs/disasters.md
            tool = Tool(self.system.plane.kubeconfig, self.system.redis.url)
            audit = ("audit", f"--csi-address={driver.address}", "--grace=1s")
            listed = tool.json(*audit)
            missing = (lost | leaked) - {*listed["orphans"], *listed["snapshots"]["orphans"]}
            assert not missing, f"audit does not list {missing}: {listed}"
        with closing(driver.client()) as client:
            for request in requests:
                self.lease_ends.append(time.time())  # the operator's call takes no lease
                name = type(request).__name__.removesuffix("Request")
                client.call(f"Controller/{name}", request, getattr(csi, f"{name}Response"))
        for volume in listed.get("stranded", ()):
            tool.ok(*audit, f"--forget={volume}")

    # The end.

    def is_settled(self) -> bool:
        """Users delete what can no longer be created; then everything is as wanted."""
        cuts = self.cuts
        for name in cuts.hopeless():
            cuts.drop_claim(name)
        ready = {
            n for n, one in cuts.found().items() if (one.get("status") or {}).get("readyToUse")
        }
        for name, source in list(cuts.snapshots.items()):
            if source not in cuts.claims and name not in ready:
                cuts.drop_snapshot(name)
        for name, (claim, _, _) in list(self.wanted.items()):
            if claim not in cuts.claims:
                self.detach(name)
        has_lost = self.lost_volumes or self.lost_snapshots or self.lost_pairs
        if has_lost and self.are_bound(list(cuts.claims)):
            self.operate()
        assert cuts.is_at_rest()
        stored, saved = set(self.system.driver.volumes()), self.system.handles()
        assert stored == saved, f"no PV: {stored - saved}, no volume: {saved - stored}"
        assert self.system.volumes().keys() == {
            one["spec"]["volumeName"] for one in self.scene.claims().values()
        }
        return self.are_attached()

    def are_attached(self) -> bool:
        found = {one["metadata"]["name"]: one for one in self.cluster.attachments()}
        assert found.keys() == self.wanted.keys(), f"{found.keys() ^ self.wanted.keys()}"
        waiting = [one for one in found.values() if not one["status"]["attached"]]
        assert not waiting, f"not attached: {waiting[:2]}"
        _, _, pairs = self.known()
        assert self.cluster.published() == pairs, f"{self.cluster.published() ^ pairs}"
        return True

    def drop_all(self) -> None:
        for name in list(self.wanted):
            self.detach(name)
        for name in list(self.cuts.snapshots):
            self.cuts.drop_snapshot(name)
        for name in list(self.cuts.claims):
            self.cuts.drop_claim(name)

    def deleted_while_published(self) -> list[str]:
        """P-510: return the driver's refusals to delete an attached volume."""
        lost = {handle for handle, _ in self.lost_pairs}
        calls = self.system.driver.calls("DeleteVolume")
        return [
            f"{call.started_at} {call.message}"
            for call in calls
            if call.code == "FAILED_PRECONDITION" and call.request["volume_id"] not in lost
        ]

    def doubled(self) -> list[str]:
        """Return UIDs of claims with two volumes, by the volumes' names."""
        lost = self.lost_volumes
        found = Counter(
            one["name"].partition("-")[2]
            for handle, one in self.system.driver.volumes().items()
            if handle not in lost
        )
        return [uid for uid, count in found.items() if count > 1]


@pytest.mark.timeout(3600)
def test_nothing_is_lost_when_the_frame_moves(own_plane, redis_binary, tmp_path, capsys):
    """G1 to G9 hold while clocks, etcd's data, classes and names change and watches stall."""
    directory = Path(os.environ.get("CHAOS_KEEP", tmp_path)) / f"frame-{SEED}"
    with capsys.disabled():
        print(f"\nCHAOS_SEED={SEED} FRAME_CLAIMS={CLAIMS} FRAME_FAULTS={FAULTS}")
    with System(
        directory,
        own_plane,
        redis_binary,
        is_proxied=True,
        has_clocks=True,
        has_slow_lists=True,
        appendonly=True,
        flags=("--resync-period=60s",),
        worker_flags=(
            *("--provisioner-timeout=5s", "--attacher-timeout=5s", "--snapshotter-timeout=5s"),
            *("--retry-interval-max=5s", "--reconcile-sync=5s"),
            "--snapshot-orphan-sweep-interval=5s",
        ),
        controllers="provisioner,attacher,snapshotter,snapshot-controller",
        driver_arguments=(f"--capabilities={CAPABILITIES}",),
    ) as system:
        system.driver.set_capacity(total_bytes=2**60)  # space must not run out here
        cluster = AttachCluster(system.api, [system.driver])
        cluster.add_nodes(NODES)
        scene = Scene(system.api)
        mix = Mix(system, scene, cluster, SEED)
        started = time.monotonic()
        try:
            mix.run()
            broken_for = time.monotonic() - started
            wait_until(mix.is_settled, SETTLE_SECONDS, "at rest", interval_seconds=1)
            rested = time.monotonic() - started
            assert mix.doubled() == []
            mix.drop_all()
            wait_until(mix.is_settled, SETTLE_SECONDS, "everything is gone", interval_seconds=1)
            system.assert_at_rest(SETTLE_SECONDS)
            with capsys.disabled():
                print(
                    {
                        **mix.count,
                        "faults": len(mix.faults),
                        "seconds of faults": round(broken_for),
                        "seconds to rest": round(rested - broken_for),
                        "seconds to the end of everything": round(
                            time.monotonic() - started - rested
                        ),
                        "living claims beside a dead storage waited": mix.waits,
                        "volumes, snapshots, publications that a restore forgot": [
                            len(mix.lost_volumes),
                            len(mix.lost_snapshots),
                            len(mix.lost_pairs),
                        ],
                    }
                )
            assert mix.deleted_while_published() == []
            if not mix.restores:  # the request for a restore may be lost with etcd's data
                assert half_way(system.driver.calls()) == []
            assert overlaps_without_fault(system, mix.lease_ends) == []
            assert system.log_lines("unexpected error", "Unrecoverable error") == []
        except BaseException:
            print("faults:", *mix.faults, sep="\n")
            print("left:", system.queue_left()[:20], system.copies())
            print("\n".join(system.stories(set(system.driver.volumes()) ^ system.handles())))
            print(*system.queue_state(), sep="\n")
            raise
        finally:
            system.driver.set_rules()
            mix.cuts.clean_up()
            scene.clean_up()
            cluster.clean_up()
