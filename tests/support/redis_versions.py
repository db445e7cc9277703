"""The queue's tests on Redis 8 and Valkey 8 of Debian trixie, beside whatever else is there.

    python -m tests.support.redis_versions [pytest arguments]       # make redis-versions

Packages are fetched and unpacked into a cache, not installed: the programs run with their own
libraries by their own loader. Needs apt, and root only as far as apt does for a folder of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

SUITE: Final = "trixie"
SOURCE: Final = f"deb http://deb.debian.org/debian {SUITE} main\n"
PROGRAMS: Final = ("redis-server", "valkey-server")
DEFAULT_TESTS: Final = ("tests/integration/queue", "-q")


def fetch(folder: Path) -> list[Path]:
    """One program each that starts a server; a second call finds them there.

    Raises:
        subprocess.CalledProcessError: apt failed; its output says why.
    """
    found = [folder / "bin" / program for program in PROGRAMS]
    if all(path.exists() for path in found):
        return found
    for name in ("lists/partial", "cache/archives/partial", "root", "bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(SOURCE)
    # Nothing counts as installed, so that the libraries are fetched too.
    (folder / "status").touch()
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": os.devnull,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Acquire::Retries": 3,
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    install = ["install", "--download-only", "--no-install-recommends", "-y"]
    subprocess.run([*apt, *install, *PROGRAMS], check=True)
    for package in sorted((folder / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    (libraries,) = {path.parent for path in (folder / "root").rglob("libc.so.6")}
    (loader,) = libraries.glob("ld-linux*.so.*")
    for path in found:
        program = folder / "root" / "usr" / "bin" / path.name
        path.write_text(f'#!/bin/sh\nexec {loader} --library-path {libraries} {program} "$@"\n')
        path.chmod(0o755)
    return found


def main(arguments: list[str]) -> int:
    """Runs the tests once per program; returns the worst exit code."""
    worst = 0
    for program in fetch(Path.home() / ".cache" / "csi-fleet" / f"redis-{SUITE}"):
        version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
        print(version.stdout.strip(), flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *(arguments or DEFAULT_TESTS)],
            env={**os.environ, "CSI_FLEET_TEST_REDIS_SERVER": str(program)},
            check=False,
        )
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
