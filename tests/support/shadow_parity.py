"""Runs a shadow next to the Go sidecars for the recorded cases: `make shadow PEER=...`.

    make shadow PEER=/path/to/csi-provisioner              all cases of the provisioner
    make shadow PEER=... ONLY='topo-.*' OUT=/tmp/shadow    some cases; results in a folder
    make shadow OUT=/tmp/shadow TABLE=1                    write the table into docs/shadow.md

The sidecar does the work of each case. The shadow runs as a user with permission to read only, and
with its own copy of the driver. Each case then gets a verdict: a comparison of the sidecar's calls
and writes with those that the shadow would have made. Each difference must be listed in
docs/differences.md; `named` returns its id. The audit log shows every request of the shadow that is
not a read.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.support.controlplane import ControlPlane
from tests.support.parity import Runners, prepare, run_twice, runnable
from tests.support.shadow_agreement import Agreement, agreement_of
from tests.support.spec_ids import CASE_FOLDERS, PARITY

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "shadow.md"
DIFFERENCES = ROOT / "docs" / "differences.md"
BEGIN, END = "<!-- cases: begin -->", "<!-- cases: end -->"
USER = "shadow"
RATE = "--kube-api-qps=1000 --kube-api-burst=2000"  # as recorded
READING = {"get", "list", "watch"}
REVIEWS = {"authentication.k8s.io", "authorization.k8s.io"}
SIDECARS = {
    "provisioner": "csi-provisioner",
    "attacher": "csi-attacher",
    "resizer": "csi-resizer",
    "snapshotter": "csi-snapshotter",
    "snapshot-controller": "snapshot-controller",
}
RIGHTS = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": USER},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": sorted(READING)}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    },
)
NAMED: tuple[tuple[str, str, str], ...] = ()
"""Regular expressions of case and difference, and the id in docs/differences.md."""


class ShadowRunners(Runners):
    """The runner with a shadow next to the sidecars of each case."""

    def __init__(self, options: argparse.Namespace, shadow: Path) -> None:
        super().__init__(options)
        self._shadow = shadow

    def command(self, kubeconfig: Path, cases: list[Path], jobs: int) -> list[str]:
        """Like the base class's command, but with the Go sidecars under test."""
        base = super().command(kubeconfig, cases, jobs)
        at = base.index("--command")
        base[at : at + 2] = []
        base.remove("--skip-defects")  # here the Go sidecar is compared with its own recording
        program = Path(sys.executable).with_name("csi-fleet")
        for component, name in SIDECARS.items():
            if path := self.options.peers.get(name):
                address = (
                    "" if component == "snapshot-controller" else "--csi-address={csi_address} "
                )
                command = f"{path} --kubeconfig={{kubeconfig}} {address}{RATE} {{flags}}"
                base += ["--command-for", f"{component}={command}"]
        shadow = (
            f"{program} run --shadow --controllers={{component}} --kubeconfig={{kubeconfig}} "
            "--csi-address={csi_address} --state-dir={state} --logging-format=json -v=5 "
            f"{self.options.flags} {{flags}}"
        )
        report = f"{program} shadow report --state-dir={{state}} -o json"
        return [
            *base,
            *("--out", str(self.options.out), "--shadow", shadow, "--shadow-report", report),
            *("--shadow-kubeconfig", str(self._shadow)),
        ]


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and judge all results in the folder; return the exit code."""
    options = parsed(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    forbidden: list[str] = []
    if options.peers:
        cases = chosen(options)
        if not cases:
            print("no such case")
            return 1
        for case in cases:
            (options.out / case.name).unlink(missing_ok=True)
        forbidden = run(cases, options)
        wanted = {case.stem for case in cases}
    else:
        wanted = {path.stem for path in options.out.glob("*.json")}
    found = {
        path.stem: agreement_of(json.loads(path.read_text()))
        for path in sorted(options.out.glob("*.json"))
        if path.stem in wanted
    }
    missing = sorted(wanted - found.keys())
    show(found.values())
    for line in forbidden:
        print(f"the shadow wrote: {line}")
    if missing:
        print(f"without a result: {' '.join(missing)}")
    if options.table:
        write_table(list(found.values()))
    bad = [one for one in found.values() if one.verdict == "broken" or unnamed(one)]
    return 1 if bad or missing or forbidden else 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line; sidecars can also be named in the environment, as for `make
    bench`."""
    parser = argparse.ArgumentParser(prog="shadow", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--peer", action="append", default=[], type=Path, help="a Go sidecar (repeatable)")
    add("--only", default="", help="regular expression over case ids")
    add("--from", dest="first", default="", help="leave out the cases before this one")
    add("--folder", default="cases$", help="regular expression over the case folders")
    add("--jobs", type=int, default=2)
    add("--out", type=Path, help="folder of results, kept")
    add("--logs", type=Path, help="folder for the output of all processes")
    add("--flags", default="", help="further flags of the shadow")
    add("--table", action="store_true", help="write the table into docs/shadow.md")
    options = parser.parse_args(arguments)
    options.peers = {path.name: path.resolve() for path in options.peer}
    options.out = options.out or Path(tempfile.mkdtemp(prefix="csi-fleet-shadow-"))
    options.max_diffs = 5
    return options


def chosen(options: argparse.Namespace) -> list[Path]:
    """Return the cases for which all sidecars are given."""
    folders = [PARITY / name for name in CASE_FOLDERS if re.search(options.folder, name)]
    cases = sorted(case for folder in folders for case in folder.glob("*.json"))
    return [
        case
        for case in cases
        if re.search(options.only, case.stem) and case.stem >= options.first and runnable(case)
    ]


def run(cases: list[Path], options: argparse.Namespace) -> list[str]:
    """Run the cases in their own cluster; return the shadow's requests that were not reads."""
    with tempfile.TemporaryDirectory(prefix="csi-fleet-shadow-") as folder:
        plane = ControlPlane(Path(folder), users={USER: ()}, audit_log=True)
        try:
            prepare(plane)
            with plane.api() as api:
                for manifest in RIGHTS:
                    api.create(manifest)
            runners = ShadowRunners(options, plane.kubeconfig_for(USER))
            run_twice([plane.kubeconfig], cases, options, runners)
            return written(plane.audit_log.read_text().splitlines())
        finally:
            plane.stop()


def written(audit: Iterable[str]) -> list[str]:
    """Return the shadow's requests to the API server other than reads and permission checks."""
    found = []
    for line in audit:
        entry = json.loads(line)
        group = entry.get("objectRef", {}).get("apiGroup", "")
        if entry["user"]["username"] != USER or group in REVIEWS:
            continue
        if entry["verb"] not in READING:
            found.append(f"{entry['verb']} {entry['requestURI']}")
    return found


def named(case: Agreement, difference: str) -> str:
    """Return the id in docs/differences.md of one difference; "" if the difference is not
    allowed."""
    for cases, text, name in NAMED:
        if re.fullmatch(cases, case.case) and re.search(text, difference):
            return name
    return case.defect


def unnamed(case: Agreement) -> list[str]:
    """Return the differences without an id in docs/differences.md."""
    page = DIFFERENCES.read_text()
    return [
        one
        for one in case.differences
        if not (name := named(case, one)) or not re.search(rf"\b{re.escape(name)}\b", page)
    ]


def show(cases: Iterable[Agreement]) -> None:
    """Return a text for people: everything that does not simply agree, and the totals."""
    counts: Counter[str] = Counter()
    for one in cases:
        counts[one.verdict] += 1
        if one.verdict == "agrees":
            continue
        print(f"{one.verdict:14s} {one.case} {one.refused}")
        for line in (*one.broken, *one.drivers):
            print(f"    {line}")
        for line in one.differences:
            print(f"    {line}  [{named(one, line) or 'NOT LISTED'}]")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))


def write_table(cases: list[Agreement]) -> None:
    """Return the counts by group of cases and the listed differences, for the marked part of the
    page."""
    groups: dict[str, list[Agreement]] = {}
    for one in cases:
        groups.setdefault(one.case.partition("-")[0], []).append(one)
    rows = [
        "| Cases | Run | Agree | Differ | Not comparable | Requests and objects compared |",
        "|---|---|---|---|---|---|",
    ]
    for name, members in [*sorted(groups.items()), ("**all**", cases)]:
        verdicts = Counter(one.verdict for one in members)
        compared = sum(one.compared for one in members)
        figures = [len(members), verdicts["agrees"], verdicts["differs"]]
        figures += [verdicts["not comparable"], compared]
        rows.append(f"| {name} | {' | '.join(map(str, figures))} |")
    lines = [
        f"- {one.case}: {'; '.join(sorted({named(one, line) for line in one.differences}))}"
        for one in cases
        if one.verdict == "differs"
    ]
    reasons = Counter(
        one.refused or one.drivers[0] for one in cases if one.verdict == "not comparable"
    )
    text = "\n".join(rows)
    text += "\n\nDifferences, by their ids in [differences.md](differences.md):\n\n"
    text += "\n".join(lines) or "none."
    if reasons:
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        text += f"\n\nNot comparable: {why}."
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    os.environ.pop("KUBECONFIG", None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
