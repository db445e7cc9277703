"""Separate watcher and workers with the permissions of k8s/, as a replacement for `Fleet`.

```
with ShippedFleet(directory, plane, redis_binary, drivers, "--timeout=3s") as fleet: ...
```
Tokens of the manifests' service accounts with RBAC on, users of the shipped ACL over TLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.components import Components
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.secure_redis import SecureRedis
from tests.support.shipped import RECORDS, install, kubeconfig_for

WORKERS = 2


class ShippedFleet:
    """One watcher and two workers for the drivers."""

    def __init__(
        self,
        directory: Path,
        plane: ControlPlane,
        redis_binary: str,
        drivers: Sequence[DirectoryDriver],
        *flags: str,
        controllers: str = "provisioner",
        components: Sequence[str] = (),
    ) -> None:
        self.redis = SecureRedis(redis_binary, directory / "redis")
        self._parts = Components(directory, self.redis)
        self._plane = plane
        addresses = [f"--csi-address={one.address}" for one in drivers]
        self._common = [f"--namespace={RECORDS}", f"--controllers={controllers}"]
        self._components = components
        self._worker_flags = [*addresses, *self._common, *flags]

    def log_text(self) -> str:
        """Return everything that the parts printed."""
        return "".join(self._parts.log_text(name) for name in self._parts.processes)

    def stop(self) -> None:
        """Stop all parts and Redis."""
        self._parts.stop()
        self.redis.stop()

    def __enter__(self) -> Self:
        with self._plane.api() as api:
            install(api, *self._components)
        try:
            self.redis.start()
            watcher = kubeconfig_for(self._plane, "watcher")
            worker = kubeconfig_for(self._plane, "worker")
            self._parts.start("watcher", watcher, *self._common, "-v=4")
            for number in range(WORKERS):
                name = f"worker-{number}"
                self._parts.start("worker", worker, *self._worker_flags, name=name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            refused = self.redis.denials()
        finally:
            self.stop()
        assert refused == [], "Redis refused a component something it needs"
