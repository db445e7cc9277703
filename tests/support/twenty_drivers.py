"""Twenty drivers, three of them sick in different ways, and 500 claims that wait for these three.

```
with TwentyDrivers(directory, plane, redis_binary) as world:
    world.fall_sick()
    world.claims_by_driver("Pending")       # as the API server has them
```
Every process of an installation runs: two watchers, three workers, beat, Flower and Prometheus.
Intervals and timeouts are the defaults, so the commands show what an operator would see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from tests.support.controlplane import ControlPlane
from tests.support.fleet import ROOT, program
from tests.support.flower import Flower
from tests.support.monitored import WORKERS, Monitored
from tests.support.processes import Process, start_process
from tests.support.waiting import wait_until

ROLES: Final = tuple(f"array{number:02}" for number in range(1, 21))
# The first is gone, the second refuses every volume, the third does not answer CreateVolume.
DOWN, FULL, STUCK = SICK = ("array04", "array11", "array17")
WAITING: Final = {DOWN: 170, FULL: 165, STUCK: 165}
BOUND_EACH: Final = 2
PATIENCE: Final = 240


class TwentyDrivers(Monitored):
    """An installation with the processes of `Monitored`, and with beat and Flower."""

    kinds: ClassVar[Sequence[Any]] = ()
    create_timeout = "10s"
    pace: ClassVar[Sequence[str]] = ()

    def __init__(self, directory: Path, plane: ControlPlane, redis_binary: str, rules: Any) -> None:
        super().__init__(directory, plane, redis_binary, ROLES, {}, rules)
        self._beat: Process | None = None
        self.flower = Flower(directory, self.redis.url, plane.kubeconfig)

    def start(self) -> Self:
        super().start()
        self.flower.redis_url = self.redis.url
        self.flower.start()
        self._beat = start_process(
            "beat",
            [*program(), "beat", f"--redis-url={self.redis.url}", f"--state-dir={self.directory}"],
            log=self.directory / "beat.log",
            env=self._env,
            cwd=ROOT,
        )
        self.flower.wait_workers(len(WORKERS))
        self.claim(dict.fromkeys(ROLES, BOUND_EACH), "old")
        self.scene.wait_bound(timeout_seconds=PATIENCE)
        return self

    def stop(self) -> None:
        for process in (self._beat, self.flower):
            if process is not None:
                process.stop()
        super().stop()

    def claim(self, counts: dict[str, int], prefix: str) -> None:
        """Create claims by role, with several clients, in turns."""
        names = [
            (f"{prefix}-{role}-{number:03}", role)
            for number in range(max(counts.values()))
            for role, count in counts.items()
            if number < count
        ]
        with ThreadPoolExecutor(8) as pool:
            for one in [
                pool.submit(self.scene.claim, name, self.classes[role]) for name, role in names
            ]:
                one.result()

    def fall_sick(self) -> None:
        """Break the three drivers, create their claims, and wait until each call has failed."""
        self.host.set_mode(self.driver(DOWN), mode="gone")
        self.host.set_mode(self.driver(FULL), mode="exhausted")
        self.host.set_mode(self.driver(STUCK), mode="hang")
        for _ in range(2):  # the host has read the modes before it answers for the second time
            self.host.figures()
        self.claim(WAITING, "data")

        def have_failed() -> bool:
            failed = Counter(key.split("|")[1] for key in self.client.hkeys("csifleet:fails"))
            wanted = {self.driver(role): WAITING[role] for role in (FULL, STUCK)}
            assert failed == wanted, (failed, wanted)
            return True

        wait_until(have_failed, PATIENCE, "each claim of the two connected drivers has failed")

    def claims_by_driver(self, phase: str) -> dict[str, int]:
        """Return the number of claims in that phase by driver."""
        roles = {name: role for role, name in self.classes.items()}
        return Counter(
            self.driver(roles[one["spec"]["storageClassName"]])
            for one in self.scene.claims().values()
            if one["status"]["phase"] == phase
        )
