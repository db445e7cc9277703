"""Claims of one driver beside another that answers every field of every call at its worst.

    python -m tests.bench.hostile_driver [CLAIMS] [--idle]

One control plane and one `csi-fleet run` for both drivers. Prints how long the good driver's claims
take to Bound: alone, while the claims of the other arrive, and while they are retried. "asked to
saved" is csi-fleet's part. With `--idle` no worker serves those claims, so that only the share of
kube-controller-manager remains, which requests one volume after the other.
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
    """Alone, and beside the hostile driver."""
    parser = argparse.ArgumentParser()
    parser.add_argument("claims", type=int, nargs="?", default=CLAIMS)
    parser.add_argument("--idle", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="hd-") as name,
        ControlPlane(Path(name) / "plane") as plane,
        plane.api() as api,
        DirectoryDriver() as good,
        DirectoryDriver() as hostile,
        Fleet(Path(name) / "f", plane.kubeconfig, [good, hostile]) as fleet,
        Load(api, "quiet", [good.name]) as load,
    ):
        load.run(50, per_second=PER_SECOND)
        print(HEAD, flush=True)
        shown("alone", load.run(options.claims, per_second=PER_SECOND), fleet.redis_url)
        cases, rules = hostile_answers.rules(next(iter(good.volumes())))
        hostile.set_rules(*rules)
        scene = Scene(api)
        for number in range(cases):
            who = "nobody.example.org" if options.idle else hostile.name
            full = scene.storage_class(who, f"case-{number}", parameters={"case": str(number)})
            scene.claim(f"hostile-{number}", full)
        for part in ("beside", "beside, later"):
            times = load.run(options.claims, per_second=PER_SECOND)
            shown(f"{part} {cases} hostile", times, fleet.redis_url)
        print(f"the hostile driver was called {len(hostile.calls())} times", flush=True)


if __name__ == "__main__":
    main()
