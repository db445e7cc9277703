"""A release is upgraded and rolled back while claims are created and deleted (OPS-15)."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import ROOT, Fleet
from tests.support.waiting import wait_until
from workers.queue.seal import new_key

CLAIMS = 200
PART = CLAIMS // 4


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, **options).stdout


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """The unpacked wheels of the previous commit (or UPGRADE_FROM) and of this one."""
    known = run("git", "rev-list", "--max-count=2", "HEAD", cwd=ROOT, text=True).split()
    places = []
    for commit in (os.environ.get("UPGRADE_FROM") or known[-1], "HEAD"):
        folder = tmp_path_factory.mktemp("release")
        source, code = folder / "source", folder / "code"
        source.mkdir()
        archive = run("git", "archive", "--format=tar", commit, cwd=ROOT)
        run("tar", "-x", "-C", source, input=archive)
        options = ("-q", "--no-deps", "--no-index", "--no-build-isolation")
        run(sys.executable, "-m", "pip", "wheel", *options, "-w", folder, source)
        (wheel,) = folder.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(code)
        places.append(code)
    return places


def test_upgrade_and_roll_back_lose_nothing(releases, tmp_path, kubeconfig, scene, own_redis):
    """Both releases run side by side twice; no volume is lost or doubled, and no claim is stuck."""
    old, new = releases
    key = {"CSI_FLEET_RECORDS_KEY": new_key()}

    def fleet(name: str, code: Path) -> Fleet:
        flags = ("--worker-threads=6", "--timeout=10s")
        return Fleet(
            tmp_path / name, kubeconfig, [driver], *flags,
            redis_url=own_redis.url, env=key, code=code,
        )  # fmt: skip

    with DirectoryDriver() as driver:
        driver.set_rules({"delay_seconds": [0.05, 0.4]})
        storage_class = scene.storage_class(driver.name)
        numbers = iter(range(CLAIMS))

        def some_claims() -> None:
            for _ in range(PART):
                scene.claim(f"c{next(numbers)}", storage_class)

        def some_deletions() -> None:
            bound = [n for n, one in scene.claims().items() if one["status"]["phase"] == "Bound"]
            for name in bound[: PART // 2]:
                scene.delete(name)

        before, after, again = fleet("old", old), fleet("new", new), fleet("again", old)
        with before:
            some_claims()
            wait_until(driver.volumes, 30, "the first volume")
            with after:
                some_claims()
                some_deletions()
                before.stop()
                some_claims()
                wait_until(lambda: len(driver.volumes()) > PART, 60, "the new release works")
                with again:
                    some_deletions()
                    after.stop()
                    some_claims()
                    assert scene.wait_bound(timeout_seconds=180)
                    wait_until(
                        lambda: len(driver.volumes()) == len(scene.claims()), 120, "deletions end"
                    )
        assert driver.concurrent_calls() == []
        handles = {one["spec"]["csi"]["volumeHandle"] for one in scene.volumes()}
        assert handles == set(driver.volumes())
        made = [call.request["name"] for call in driver.calls("CreateVolume")]
        assert len(made) == len(set(made)) == CLAIMS, "each volume was asked for once"
