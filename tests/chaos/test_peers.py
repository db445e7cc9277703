"""csi-fleet as a drop-in beside the Go program itself: the Lease changes hands, and one side works.

    PEER=folder HANDOVERS=20 pytest tests/chaos/test_peers.py -s

The folder has the Go programs volume-data-source-validator and
csi-external-health-monitor-controller (0.18, which reads the VolumeCondition of CSI 1.12 and emits
events only). Both sides have the same arguments. In turns, the side that works is stopped or
killed, and started again as the standby.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import ROOT, Fleet, Scene, environment, leader_flags, program
from tests.support.processes import Process, start_process
from tests.support.waiting import let_pass, wait_until

PEER = Path(os.environ["PEER"])
HANDOVERS = int(os.environ.get("HANDOVERS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SECONDS = 90
VALIDATOR, MONITOR = "volume-data-source-validator", "csi-external-health-monitor-controller"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
POPULATORS = "/apis/populator.storage.k8s.io/v1beta1/volumepopulators"
GROUP = "fill.example.org"


class Sides:
    """csi-fleet and the Go program with the same arguments; `holder` is the side that works."""

    def __init__(self, directory: Path, scene: Scene, name: str, lease: str, *flags: str) -> None:
        self.directory, self.scene, self.random = directory, scene, random.Random(SEED)
        self.path = LEASES.format(scene.namespace, lease)
        self.seen: Counter[str] = Counter()
        common = [*leader_flags(scene.namespace), *flags]
        self.commands = {"ours": [*program(), name, *common], "go": [str(PEER / name), *common]}
        self.starts = 0
        self.processes: dict[str, Process] = {}

    def start(self, side: str) -> None:
        """Start one side, with an empty Redis if it is csi-fleet."""
        self.starts += 1
        command, log = self.commands[side], self.directory / f"{side}.log"
        if side == "ours":
            command = [*command, f"--state-dir={self.directory / f'state-{self.starts}'}"]
        self.processes[side] = start_process(side, command, log=log, env=environment(), cwd=ROOT)

    def identity(self) -> str:
        """Return who holds the Lease; "" for nobody."""
        found = self.scene.api.find(self.path) or {}
        return (found.get("spec") or {}).get("holderIdentity") or ""

    def hand_over(self, side: str, other: str) -> None:
        """End the side that holds the Lease, wait for the other one, and start it again."""
        former, how = self.identity(), self.random.choice(["stopped", "killed"])
        self.seen[f"{side} {how}"] += 1
        process = self.processes[side]
        process.stop(30) if how == "stopped" else process.kill()
        wait_until(lambda: self.identity() not in {"", former}, SECONDS, f"{other} has the Lease")
        assert self.processes[other].is_running(), self.processes[other].log_tail(30)
        self.start(side)

    def stop(self) -> None:
        """End both sides."""
        for one in self.processes.values():
            one.stop(30)


def turns(sides: Sides, capsys: pytest.CaptureFixture[str], check: Any) -> None:
    """Hand over in turns; call `check(number, side)` while a side has the Lease."""
    try:
        sides.start("ours")
        wait_until(sides.identity, SECONDS, "csi-fleet has the Lease")
        sides.start("go")
        check(0, "ours")
        side, other = "ours", "go"
        for number in range(1, HANDOVERS + 1):
            sides.hand_over(side, other)
            side, other = other, side
            check(number, side)
        with capsys.disabled():
            print(f"\nseed {SEED}: {HANDOVERS} hand-overs", dict(sides.seen))
    except BaseException:
        print(
            f"seed {SEED}: {dict(sides.seen)}", *(p.log_tail(40) for p in sides.processes.values())
        )
        raise
    finally:
        sides.stop()


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (PEER / VALIDATOR).is_file(), reason=f"PEER has no {VALIDATOR}")
def test_the_data_source_validator(own_plane, tmp_path, capsys):
    """DV-031: whoever has the Lease warns about each claim that nobody populates, and no other."""
    with own_plane.api() as api:
        scene = Scene(api)
        kind = {"apiVersion": "populator.storage.k8s.io/v1beta1", "kind": "VolumePopulator"}
        source = {"group": GROUP, "kind": "Backup"}
        api.create({**kind, "metadata": {"name": "peers"}, "sourceKind": source})

        def warned() -> set[str]:
            events = api.items(f"/api/v1/namespaces/{scene.namespace}/events")
            reason = "UnrecognizedDataSourceKind"
            return {one["involvedObject"]["name"] for one in events if one["reason"] == reason}

        def check(number: int, side: str) -> None:
            for name, wanted in (("good", "Backup"), ("bad", "Other")):
                data = {"apiGroup": GROUP, "kind": wanted, "name": "b"}
                scene.claim(f"{name}-{number}", f"none-{scene.namespace}", dataSourceRef=data)
            wait_until(lambda: f"bad-{number}" in warned(), SECONDS, f"the warning by {side}")

        kubeconfig = f"--kubeconfig={own_plane.kubeconfig}"
        sides = Sides(tmp_path, scene, VALIDATOR, "data-source-validator-leader", kubeconfig)
        try:
            turns(sides, capsys, check)
            assert warned() == {f"bad-{number}" for number in range(HANDOVERS + 1)}
        finally:
            api.delete(f"{POPULATORS}/peers")
            scene.clean_up()


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (PEER / MONITOR).is_file(), reason=f"PEER has no {MONITOR}")
def test_the_health_monitor(own_plane, tmp_path, capsys):
    """VH-041: whoever has the Lease asks the driver and reports, and the other side does not."""
    capabilities = "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,LIST_VOLUMES,VOLUME_CONDITION"
    own_flag = "--volume-condition"
    with (
        own_plane.api() as api,
        DirectoryDriver(arguments=["--capabilities", capabilities]) as driver,
    ):
        scene = Scene(api)
        with Fleet(tmp_path / "provisioner", own_plane.kubeconfig, [driver]):
            scene.claim("data", scene.storage_class(driver.name))
            scene.wait_bound()
        (handle,) = driver.volumes()
        driver.set_rules({"method": "ListVolumes", "delay_seconds": 0.3, "gives_up": True})
        components = {"ours": driver.name, "go": f"csi-pv-monitor-controller-{driver.name}"}

        def reporters(text: str) -> set[str]:
            events = (one for one in scene.events("data") if one["message"] == text)
            return {one["source"]["component"] for one in events}

        def check(number: int, side: str) -> None:
            text = f"disk {number} is slow"
            draft = driver.root / "health.draft"
            condition = {"status": "DEGRADED", "reason": "Slow", "message": text}
            draft.write_text(json.dumps({handle: [condition]}))
            draft.replace(driver.root / "health.json")
            wait_until(lambda: reporters(text), SECONDS, f"the event by {side}")
            let_pass(3)  # three polls of the other side
            assert reporters(text) == {components[side]}

        flags = [
            f"--kubeconfig={own_plane.kubeconfig}",
            f"--csi-address={driver.address}",
            "--list-volumes-interval=1s",
        ]
        lease = f"external-health-monitor-leader-{driver.name}".replace(".", "-")
        sides = Sides(tmp_path, scene, MONITOR, lease, *flags)
        sides.commands["ours"].append(own_flag)
        try:
            turns(sides, capsys, check)
            calls = driver.calls("ListVolumes")
            ended = [one.ended_at or time.time() for one in calls]
            assert all(end <= one.started_at for end, one in zip(ended, calls[1:], strict=False))
        finally:
            scene.clean_up(lambda: False)
