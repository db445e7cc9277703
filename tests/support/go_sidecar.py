"""A process that follows a Go sidecar's election, and provisions with a driver while it is the
leader.

    python -m tests.support.go_sidecar --kubeconfig=K --csi-address=S --lease=NAME ...

As in csi-lib-utils, losing the Lease ends the process and its calls at once, while SIGTERM lets the
running calls finish and then releases the Lease. Volumes are named `go-...`, so that the driver's
journal shows which side created them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
import uuid
from contextlib import suppress

from csi_client import messages as csi
from csi_client.client import CsiClient
from csi_client.errors import CsiError
from tests.support.go_election import JITTER_FACTOR, GoElector
from workers.kube.client import KubeClient
from workers.kube.resources import KubeResources

THREADS = 4
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(),
    access_mode=csi.VolumeCapability.AccessMode(
        mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
    ),
)


class Sidecar:
    """The simulated sidecar."""

    def __init__(self, options: argparse.Namespace) -> None:
        client = KubeClient.from_settings(
            options.kubeconfig, timeout_seconds=options.renew_deadline, repeats=0
        )
        self.elector = GoElector(
            KubeResources(client),
            options.namespace,
            options.lease,
            f"go_{uuid.uuid4().hex[:8]}",
            lease_duration=options.lease_duration,
            renew_deadline=options.renew_deadline,
            retry_period=options.retry_period,
            clock=time.monotonic,
            wall=time.time,
        )
        self.driver = CsiClient(options.csi_address)
        self.stopping = threading.Event()
        self.done = threading.Event()

    def run(self) -> int:
        """Acquire the Lease, work, and renew the Lease; source: LeaderElector.Run."""
        retry = self.elector.retry_period
        while not self.stopping.is_set() and not self.elector.try_acquire_or_renew():
            self.stopping.wait(retry * random.uniform(1, JITTER_FACTOR))
        if self.stopping.is_set():
            return 0
        print("became leader", flush=True)
        threads = [threading.Thread(target=self.work, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        renewer = threading.Thread(target=self.renew, daemon=True)
        renewer.start()
        self.stopping.wait()
        for thread in threads:
            thread.join()
        self.done.set()
        renewer.join()
        self.elector.release()
        return 0

    def renew(self) -> None:
        """Renew every RetryPeriod; end the process if RenewDeadline passes without a success
        (klog.Fatal)."""
        elector = self.elector
        while not self.done.wait(elector.retry_period):
            deadline = time.monotonic() + elector.renew_deadline
            fatal = threading.Timer(elector.renew_deadline, lambda: os._exit(1))
            fatal.start()  # this also ends a hanging request, as the context in client-go does
            while not elector.try_acquire_or_renew():
                if time.monotonic() > deadline:
                    os._exit(1)
                self.done.wait(elector.retry_period)
            fatal.cancel()

    def work(self) -> None:
        """Create volumes, one after the other."""
        while not self.stopping.is_set():
            request = csi.CreateVolumeRequest(
                name=f"go-{uuid.uuid4().hex}", volume_capabilities=[CAPABILITY]
            )
            with suppress(CsiError):
                volume = self.driver.create_volume(request).volume
                self.driver.delete_volume(volume.volume_id, {})


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    for name in ("kubeconfig", "csi-address", "lease", "namespace"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("lease-duration", "renew-deadline", "retry-period"):
        parser.add_argument(f"--{name}", type=float, required=True)
    sidecar = Sidecar(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sidecar.stopping.set())
    return sidecar.run()


if __name__ == "__main__":
    sys.exit(main())
