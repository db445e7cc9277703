"""Runs a short selection of the suites on every supported system: `python -m tests.support.matrix`.

Each row is a Debian of its own (debootstrap, kept in the cache), with that Debian's Python and its
redis-server or valkey-server, or another Python of this machine, or another version of Kubernetes.
The checkout and the locked packages are the same in all of them. Each result replaces its row of
the table in docs/support.md. Needs root and Debian; takes about half an hour on two cores.

    python -m tests.support.matrix --only 'forky'     runs those rows; the others stay as they are
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.support import apt
from tests.support.controlplane_binaries import ETCD_VERSIONS, cache_root
from tests.support.docker import AUTHORITIES

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/support.md"
TABLE: Final = re.compile(r"(<!-- matrix -->\n).*?(<!-- end of matrix -->)", re.DOTALL)
HEADINGS: Final = (
    *("System", "Python", "Redis or Valkey", "Kubernetes", "A claim's life", "The queue", "Commit"),
)
# By column: watcher, workers, two drivers, claims bound and deleted; every script of the queue.
SELECTION: Final = {
    "A claim's life": "tests/e2e/test_claims.py",
    "The queue": "tests/integration/queue",
}
# Half of the queue's time, and the same for every server: clocks that jump, and time-outs.
LEFT_OUT: Final = ("test_clock.py", "test_connection.py")
INSIDE: Final = "python3,python3-venv,ca-certificates,openssl,redis-server"
UV: Final = "uv==0.13.8"


@dataclass(frozen=True, slots=True)
class Row:
    """One system: a suite of Debian, one of its servers, a Python (by default its own) and a
    Kubernetes."""

    system: str
    suite: str
    server: str
    python: str = ""
    kubernetes: str = next(iter(ETCD_VERSIONS))

    @property
    def name(self) -> str:
        """As `--only` selects it."""
        parts = (self.system, self.suite, self.server, self.python, self.kubernetes)
        return " ".join(filter(None, parts))


ROWS: Final = (
    Row("Debian 12", "bookworm", "redis-server"),
    Row("Debian 12", "bookworm", "redis-server", python="3.12"),
    Row("Debian 13", "trixie", "redis-server"),
    Row("Debian 13", "trixie", "valkey-server"),
    Row("Debian forky", "forky", "redis-server"),
    Row("Debian forky", "forky", "valkey-server"),
    Row("Debian 12", "bookworm", "redis-server", kubernetes="v1.37.2"),
)


class UnavailableError(RuntimeError):
    """This system is not to be had here; the text says why."""


def debian(suite: str) -> Path:
    """The root folder of a minimal Debian with Python and the servers that it has.

    Raises:
        UnavailableError: debootstrap failed.
    """
    root = cache_root() / "matrix" / suite
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        servers = "" if suite == "bookworm" else ",valkey-server"
        # An older debootstrap has no script for a newer Debian; that of sid fits.
        known = Path("/usr/share/debootstrap/scripts", suite).exists()
        script = () if known else (mirror(), "sid")
        with tempfile.TemporaryDirectory(dir=root.parent) as draft:
            _run("debootstrap", "--variant=minbase", f"--include={INSIDE}{servers}", suite,
                 f"{draft}/root", *script)  # fmt: skip
            Path(draft, "root").rename(root)
    # Packages come through whatever this machine trusts.
    for path in (AUTHORITIES, Path("etc/hosts"), Path("etc/resolv.conf")):
        shutil.copyfile(Path("/") / path, root / path)
    return root


def mirror() -> str:
    """Where this machine's apt finds Debian."""
    wanted = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    found = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    if not found:
        raise UnavailableError("apt knows no mirror of Debian: run apt-get update")
    return found[0]


def inside(root: Path, script: str, env: Mapping[str, str], also: Sequence[Path] = ()) -> str:
    """Runs a shell script in the root folder; its processes and mounts end with it.

    Args:
        root: from `debian`.
        script: for sh, in the checkout.
        env: beside ours.
        also: folders of this machine that it needs besides checkout, cache and /tmp.

    Raises:
        UnavailableError: it failed; with the end of its output.
    """
    uv_cache = Path.home() / ".cache/uv"
    uv_cache.mkdir(parents=True, exist_ok=True)
    steps = ["set -e"]
    for one in (ROOT, cache_root() / "controlplane", uv_cache, Path("/tmp"), Path("/dev"), *also):
        place = shlex.quote(f"{root}{one}")
        steps += [f"mkdir -p {place}", f"mount --rbind {shlex.quote(str(one))} {place}"]
    steps += [
        f"mount -t proc proc {shlex.quote(str(root))}/proc",
        f"exec chroot {shlex.quote(str(root))} sh -ec {shlex.quote(f'cd {ROOT}; {script}')}",
    ]
    command = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c")
    return _run(*command, "\n".join(steps), env=env)


def _run(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnavailableError((done.stderr + done.stdout)[-2000:])
    return done.stdout


def run(row: Row) -> dict[str, str]:
    """Runs the selection there.

    Returns:
        The row's cells by heading.
    """
    cells = dict.fromkeys(HEADINGS, "not to be had")
    cells |= {"System": row.system, "Kubernetes": row.kubernetes}
    also: tuple[Path, ...] = ()
    python, venv = "python3", "/opt/venv"
    try:
        root = debian(row.suite)
        fetch = ("-m", "tests.support.controlplane", "fetch")
        _run(sys.executable, *fetch, env={"KUBERNETES": row.kubernetes})
        if row.python:
            uv = Path(sys.executable).with_name("uv")
            # pyenv's programs on the PATH ask for the version.
            command = (str(uv), "python", "find", "--no-project", row.python)
            found = Path(_run(*command, env={"PYENV_VERSION": row.python}).strip())
            also, python, venv = (found.parents[1],), str(found), f"/opt/venv-{row.python}"
        env = {
            "VIRTUAL_ENV": venv,
            "PATH": f"{venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPYCACHEPREFIX": "/var/tmp/pycache",
            "CSI_FLEET_TEST_REDIS_SERVER": f"/usr/bin/{row.server}",
            "KUBERNETES": row.kubernetes,
        }
        origin = " (of this machine)" if row.python else ""
        cells["Python"] = inside(root, f"{python} -V", env, also).split()[1] + origin
        version = inside(root, f"{row.server} --version", env)
        cells["Redis or Valkey"] = f"{_name(row.server)} {re.findall(r'v=([0-9.]+)', version)[0]}"
        inside(root, f"{python} -m venv --clear {venv}; pip install -q {UV}; "
               "uv pip sync -q --require-hashes requirements.lock; "
               "uv pip install -q --no-deps --no-build-isolation --editable .",
               env, also)  # fmt: skip
    except UnavailableError as error:
        say(f"{row.name}: {error}")
        return cells
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        tests = " ".join(SELECTION.values())
        options = f"-q -n 2 --dist loadfile -p no:cacheprovider --junitxml={report.name} "
        options += " ".join(f"--ignore={SELECTION['The queue']}/{one}" for one in LEFT_OUT)
        # Failed tests are in the report, whatever the exit code says.
        log = inside(root, f"python -m pytest {options} {tests} 2>&1 || true", env, also)
        say(f"{row.name}:\n{log[-3000:]}")
        return cells | results(Path(report.name).read_text("utf-8"))


def results(report: str) -> dict[str, str]:
    """The cells of the selection by heading, from a JUnit report."""
    cells = {}
    cases = list(ET.fromstring(report).iter("testcase")) if report else []
    for heading, path in SELECTION.items():
        module = path.removesuffix(".py").replace("/", ".")
        here = [one for one in cases if one.get("classname", "").startswith(module)]
        bad = [
            one for one in here if one.find("failure") is not None or one.find("error") is not None
        ]
        skipped = [one for one in here if one.find("skipped") is not None]
        passed = len(here) - len(bad) - len(skipped)
        words = [f"**{len(bad)} failed**"] if bad or not here else []
        words += [f"{passed} passed"]
        words += [f"{len(skipped)} skipped"] if skipped else []
        cells[heading] = ", ".join(words)
    return cells


def written(page: str, number: int, cells: Mapping[str, str]) -> str:
    """The page with that row of the table replaced."""
    found = TABLE.search(page)
    assert found is not None, "docs/support.md has the marks of the table"
    rows = [line for line in found[0].splitlines() if line.startswith("|")][2:]
    rows += [
        _line([one.system, one.python, _name(one.server), one.kubernetes, "not run", "not run", ""])
        for one in ROWS[len(rows) :]
    ]
    rows[number] = _line([cells[heading] for heading in HEADINGS])
    lines = [_line(HEADINGS), _line(["---"] * len(HEADINGS)), *rows]
    text = "".join(f"{line}\n" for line in lines)
    return TABLE.sub(lambda marks: f"{marks[1]}{text}{marks[2]}", page)


def _name(server: str) -> str:
    return server.partition("-")[0].title()


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def say(line: str) -> None:
    """Progress."""
    print(f"[matrix] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Command line; exits with 1 if a cell is not all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.matrix")
    parser.add_argument("--only", default="", help="regular expression: rows to run")
    only = parser.parse_args().only
    if shutil.which("debootstrap") is None:
        apt.install("debootstrap")
    commit = _run("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
    ok = True
    for number, row in enumerate(ROWS):
        if re.search(only, row.name):
            cells = run(row) | {"Commit": f"{commit}, {datetime.now(UTC):%Y-%m-%d}"}
            say(str(cells))
            PAGE.write_text(written(PAGE.read_text("utf-8"), number, cells), "utf-8")
            ok = ok and not re.search("failed|not to be had", str(cells))
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
