"""Kubernetes' External.Storage tests against the node: `make conformance`.

    python -m tests.support.node.conformance [--driver hostpath --program PATH] [--only REGEX]

The suite is built from the pinned modules in `storage_suite/` at first use (about 7 minutes). It
runs on the cluster of `cluster.py`, with csi-fleet in place of every sidecar, and with the example
driver or a host-path driver whose program is given. The command prints the failed tests; `--write`
updates docs/conformance.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.controlplane_binaries import NODE_BINARIES, binaries_directory
from tests.support.docker import base_archive
from tests.support.kube_api import JsonObject
from tests.support.kustomize import pod_spec
from tests.support.node import hostpath, images, workloads
from tests.support.node.__main__ import start
from tests.support.node.cluster import NodeCluster
from tests.support.node.conformance_report import read_report, summary, write_section

SUITE = Path(__file__).with_name("storage_suite")
NAMES = (*NODE_BINARIES, "kubectl", "e2e.test", "agnhost", "ginkgo")
PROCESSES = 3
LEFT_OUT = r"\[Disruptive\]|\[Serial\]|\[Slow\]"
# Nothing in the suite creates the class that it names.
CLASS: JsonObject = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "VolumeAttributesClass",
    "metadata": {"name": "conformance"},
    "parameters": {"tier": "fast"},
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A driver under test; `title` is the heading of its section in the page."""

    name: str
    title: str
    objects: Callable[[], list[JsonObject]]


def directory_objects() -> list[JsonObject]:
    """Return the example driver's objects; the suite checks the capacity of a class with
    immediate binding."""
    objects = workloads.sidecar()
    for item in objects:
        spec = pod_spec(item)
        for container in spec["containers"] if spec else ():
            if "--enable-capacity" in container.get("args", ()):
                container["args"].append("--capacity-for-immediate-binding")
    return objects


SUBJECTS = {
    "directory": Subject(workloads.DRIVER, "The example driver", directory_objects),
    "hostpath": Subject(hostpath.HOSTPATH, "The CSI host-path driver", hostpath.objects),
}


def main() -> int:
    """Run the suite and print its result; return 0 if no test failed."""
    parser = argparse.ArgumentParser(prog="conformance")
    add = parser.add_argument
    add("--driver", choices=SUBJECTS, default="directory")
    add("--program", type=Path, help="the host-path driver's program, built without cgo")
    add("--only", default=r"External Storage .Driver", help="regex of test names")
    add("--skip", default=LEFT_OUT, help="regex of test names")
    add("--processes", type=int, default=PROCESSES)
    add("--write", action="store_true", help="renew the driver's section of docs/conformance.md")
    options = parser.parse_args()
    if (options.driver == "hostpath") != (options.program is not None):
        parser.error("--driver hostpath and --program go together")
    binaries = binaries_directory(names=NAMES)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        added = [hostpath.image(folder, options.program)] if options.program else []
        with NodeCluster([*suite_images(binaries, folder), *added]) as cluster:
            prepare(cluster, options.driver)
            run_suite(binaries, cluster.plane.kubeconfig, folder, options)
        rows = read_report(folder / "report.json")
    print(summary(rows))
    if options.write:
        write_section(options.driver, SUBJECTS[options.driver].title, rows)
    return int(any(row.state == "failed" for row in rows))


def prepare(cluster: NodeCluster, driver: str) -> None:
    """Apply the driver's pods, and the objects that the suite expects."""
    subject = SUBJECTS[driver]
    start(cluster, subject.objects(), subject.name)
    cluster.api.apply(CLASS | {"driverName": subject.name})


def run_suite(binaries: Path, kubeconfig: Path, folder: Path, options: argparse.Namespace) -> None:
    """Run the tests by name; the report is `folder/report.json`."""
    command = [
        str(binaries / "ginkgo"),
        *("run", f"--procs={options.processes}", "--no-color", "--succinct", "--timeout=4h"),
        *(f"--focus={options.only}", f"--skip={options.skip}"),
        *(f"--output-dir={folder}", "--json-report=report.json"),
        str(binaries / "e2e.test"),
        "--",
        f"--kubeconfig={kubeconfig}",
        f"--kubectl-path={binaries / 'kubectl'}",
        *("--provider=local", f"--storage.testdriver={SUITE / options.driver}.yaml"),
    ]
    subprocess.run(command, cwd=folder, check=False)


def suite_images(binaries: Path, folder: Path) -> list[images.Image]:
    """Return images with busybox and agnhost under every name that the suite uses.

    Debian's programs take precedence over busybox's, because some tests call `dd` with flags that
    busybox does not have. Of nginx, the tests need only the shell.
    """
    command = [str(binaries / "e2e.test"), "--list-images"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    base, busybox = base_archive(), images.busybox_layer(folder / "b", "opt/bin")
    agnhost = images.program_layer(folder, binaries / "agnhost")
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin:/"
    found = []
    for name in done.stdout.split():
        if "/busybox:" in name or "/nginx:" in name:
            found.append(images.Image(name, [base, busybox], {"Env": [path], "Cmd": ["sh"]}))
        if "/agnhost:" in name:
            config = {"Env": [path], "Entrypoint": ["/agnhost"], "Cmd": ["pause"]}
            found.append(images.Image(name, [base, busybox, agnhost], dict(config)))
    return found


if __name__ == "__main__":
    sys.exit(main())
