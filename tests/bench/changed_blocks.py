"""Measure `csi-fleet snapshot-metadata` on 1 GiB of allocated-block messages.

    python -m tests.bench.changed_blocks [--mib 1024] [--peer FOLDER]

One driver sends messages that were encoded before, over its unix socket. Clients in a process of
their own count the bytes. With `--peer`, the folder's csi-snapshot-metadata then does the same
beside the same driver. All processes share the machine, so the CPU time of the server says more
than the rate.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import tempfile
import threading
import time
from pathlib import Path

import grpc

from csi_client._generated import snapshotmetadata_pb2 as api
from tests.support.block_client import add_service
from tests.support.block_driver import messages
from tests.support.block_world import BlockWorld
from tests.support.controlplane import ControlPlane
from tests.support.fleet import environment
from tests.support.processes import Process, free_port, start_process
from tests.support.waiting import wait_until

DRIVER = "bench.csi.example.org"
STREAM_MIB = 64
HEAD = """\
| Server | Blocks per message | Streams at once | MiB/s | CPU s per GiB | Memory MiB | at most |
|---|---|---|---|---|---|---|"""
MIB = 2**20


def read(address: str, authority: bytes, token: str, namespace: str, snapshot: str, n: int) -> int:
    """Read one stream in each of `n` threads; return the bytes. Runs in a process of its own."""
    request = api.GetMetadataAllocatedRequest(
        security_token=token, namespace=namespace, snapshot_name=snapshot
    ).SerializeToString()
    found: list[int] = []

    def one(number: int) -> None:
        credentials = grpc.ssl_channel_credentials(authority)
        with grpc.secure_channel(address, credentials, [("bench.client", number)]) as channel:
            call = channel.unary_stream(
                "/snapshotmetadata.SnapshotMetadata/GetMetadataAllocated", None, None
            )
            found.append(sum(map(len, call(request))))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(found)


def memory(process: Process) -> tuple[float, float]:
    """Return the resident memory of a process now and at most, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    now, most = (re.search(rf"{word}:\s+(\d+) kB", status) for word in ("VmRSS", "VmHWM"))
    assert now is not None
    assert most is not None
    return int(now[1]) / 1024, int(most[1]) / 1024


def cpu(process: Process) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(world: BlockWorld, server: Process, label: str, mib: int, at_once: int, n: int) -> None:
    """Read streams of 64 MiB until `mib` have arrived, and print a line."""
    client = world.client(DRIVER)
    spec = world.api.get(f"/apis/cbt.storage.k8s.io/v1beta1/snapshotmetadataservices/{DRIVER}")
    given = (
        *(spec["spec"]["address"], (world.folder / "ca.pem").read_bytes()),
        *(client.token, world.namespace, f"of-{n}"),
    )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(read, (*given, 1))
        before, started, size = cpu(server), time.monotonic(), 0
        while size < mib * MIB:
            size += pool.apply(read, (*given, at_once))
        seconds = time.monotonic() - started
    used = (cpu(server) - before) * 1024 * MIB / size
    now, most = memory(server)
    print(
        f"| {label} | {n} | {at_once} | {size / MIB / seconds:.0f} | {used:.1f} | {now:.0f} | "
        f"{most:.0f} |",
        flush=True,
    )


def peer(world: BlockWorld, folder: Path) -> tuple[Process, int]:
    """Start the Go sidecar beside the driver; return it and its port."""
    port = free_port()
    process = start_process(
        "csi-snapshot-metadata",
        [
            *(folder / "csi-snapshot-metadata", f"-kubeconfig={world.plane.kubeconfig}"),
            *(f"-csi-address={world.drivers.address(DRIVER)}", f"-port={port}"),
            *(f"-tls-cert={world.folder}/server.pem", f"-tls-key={world.folder}/server.key"),
            f"-http-endpoint=127.0.0.1:{free_port()}",
        ],
        log=world.folder / "peer.log",
        env=environment(),
    )
    wait_until(lambda: "SERVING" in process.log_tail(200), 30, "the Go sidecar serves")
    return process, port


def main() -> None:
    """Measure messages of two sizes, one stream and eight at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--peer", type=Path)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="cb-") as name,
        ControlPlane(Path(name) / "plane") as plane,
        BlockWorld(Path(name) / "w", plane, [DRIVER]) as world,
    ):
        for n in (256, 4096):
            each = len(next(messages(f"honest:1:{n}")).SerializeToString())
            world.snapshot(f"of-{n}", DRIVER, f"honest:{STREAM_MIB * MIB // each}:{n}")
        print(HEAD, flush=True)
        assert world.server is not None
        servers = [("csi-fleet", world.server, world.port)]
        if options.peer is not None:
            servers.append(("csi-snapshot-metadata", *peer(world, options.peer)))
        for n in (4096, 256):
            for at_once in (1, 8):
                for label, server, port in servers:
                    add_service(world.api, DRIVER, f"localhost:{port}", world.folder / "ca.pem")
                    measure(world, server, label, options.mib, at_once, n)
        for _, server, _ in servers:
            server.kill()


if __name__ == "__main__":
    main()
