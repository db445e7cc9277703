"""A burst finds its connections to the API server open, also after that server was away."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import yaml

from tests.support.fleet import Fleet
from tests.support.waiting import wait_until
from workers.kube.kept import ENOUGH

ESTABLISHED = "01"


def connections(pid, port):
    """How many that process has open to a port."""
    own = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            own.add(str(one.readlink()))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(
        f"socket:[{row[9]}]" in own
        and row[3] == ESTABLISHED
        and int(row[2].rpartition(":")[2], 16) == port
        for row in rows
    )


def test_a_worker_has_them_before_anybody_asks(control_plane, tmp_path, driver):
    cluster = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    port = int(cluster["server"].rpartition(":")[2])
    with Fleet(tmp_path, control_plane.kubeconfig, [driver]) as fleet:
        (worker,) = fleet.workers()
        wait_until(lambda: connections(worker, port) >= ENOUGH, 60, "all are open")
        control_plane.kill("kube-apiserver")
        control_plane.restart("kube-apiserver")
        wait_until(lambda: connections(worker, port) >= ENOUGH, 90, "all are open again")
        assert fleet.workers() == [worker]
