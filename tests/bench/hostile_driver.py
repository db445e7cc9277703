"""Measure claims of one driver next to a driver that returns the worst value in every field.

    python -m tests.bench.hostile_driver [CLAIMS]

One control plane and one `csi-fleet run` serve three drivers. The output is the time to Bound of
the first driver's claims: alone, while an honest neighbour gets as many claims as the hostile
driver, while the hostile driver's claims arrive, and while they are retried. "asked to saved" is
csi-fleet's part. The rest belongs to kube-controller-manager, which requests one volume after the
other. So the cost of the hostile driver is only the difference to the honest neighbour.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.bench.full_cluster import HEAD, shown
from tests.bench.load import Load
from tests.support import hostile_answers
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, Scene

CLAIMS, PER_SECOND = 200, 10.0


def main() -> None:
    """Measure alone, next to an honest neighbour, and next to the hostile driver."""
    parser = argparse.ArgumentParser()
    parser.add_argument("claims", type=int, nargs="?", default=CLAIMS)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="hd-") as name,
        ControlPlane(Path(name) / "plane") as plane,
        plane.api() as api,
        DirectoryDriver() as good,
        DirectoryDriver() as honest,
        DirectoryDriver() as hostile,
        Fleet(Path(name) / "f", plane.kubeconfig, [good, honest, hostile]) as fleet,
        Load(api, "quiet", [good.name]) as load,
    ):
        scene = Scene(api)

        def arrive(driver: DirectoryDriver, word: str) -> None:
            for number in range(cases):
                full = scene.storage_class(
                    driver.name, f"{word}-{number}", parameters={"case": str(number)}
                )
                scene.claim(f"{word}-{number}", full)

        def measured(label: str) -> None:
            shown(label, load.run(options.claims, per_second=PER_SECOND), fleet.redis_url)

        load.run(50, per_second=PER_SECOND)
        print(HEAD, flush=True)
        measured("alone")
        cases, rules = hostile_answers.rules(next(iter(good.volumes())))
        hostile.set_rules(*rules)
        arrive(honest, "honest")
        measured(f"{cases} honest arrive")
        measured("honest, later")
        arrive(hostile, "hostile")
        measured(f"{cases} hostile arrive")
        measured("hostile, retried")
        print(f"the hostile driver was called {len(hostile.calls())} times", flush=True)


if __name__ == "__main__":
    main()
