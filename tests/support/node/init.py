"""The first process inside the node's namespaces: sets up mounts and network, then reaps orphans.

    python init.py DIRECTORY NODE_ADDRESS

Runs by path, so it imports nothing of this repository. Its end is the end of all processes in the
namespace and of every mount made there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

# ClusterIP of the service `kubernetes`, which is the API server's own address: no kube-proxy is
# needed.
SERVICE_ADDRESS = "10.0.0.1"


def main(directory: Path) -> None:
    """Prepare the node, report that it is prepared, and keep running."""
    run("mount", "--make-rshared", "/")  # HostToContainer and Bidirectional need shared mounts
    for path in ("/run", "/var/log"):
        run("mount", "-t", "tmpfs", "tmpfs", path)
    # Kubernetes' test suites expect kubelet's folder under this name.
    run("mount", "--bind", str(directory / "kubelet"), "/var/lib/kubelet")
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    (directory / "inside").touch()
    while True:
        with suppress(ChildProcessError):
            while True:
                os.wait()
        os.sched_yield()
        subprocess.run(["sleep", "1"], check=False)


def run(*command: str) -> None:
    """Run one command that must succeed."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
