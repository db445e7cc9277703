"""Implements client-go's leader election in Python, step by step, as a Go sidecar uses its Lease.

Source: kubernetes/client-go, tools/leaderelection/leaderelection.go (acquire, renew, release,
tryAcquireOrRenew, isLeaseValid) and resourcelock/leaselock.go; names are kept so that the two can
be compared. The caller implements the loops: `acquire_once` every RetryPeriod with jitter,
`renew_once` every RetryPeriod until RenewDeadline has passed without a success.

Source: kubernetes/client-go, tools/leaderelection/leaderelection.go (acquire, renew, release,
tryAcquireOrRenew, isLeaseValid) and resourcelock/leaselock.go; names are kept so that the two can
be read side by side. Loops are the caller's: `acquire_once` each RetryPeriod with jitter,
`renew_once` each RetryPeriod until RenewDeadline without a success.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import NotFoundError

JITTER_FACTOR = 1.2


@dataclass
class GoElector:
    """LeaderElector and LeaseLock of one process."""

    leases: Any
    namespace: str
    name: str
    identity: str
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 5.0
    clock: Callable[[], float] = lambda: 0.0
    wall: Callable[[], float] = lambda: 1.0e9
    observed: dict[str, Any] = field(default_factory=dict)
    observed_time: float = 0.0
    _lease: dict[str, Any] | None = None

    def is_leader(self) -> bool:
        """IsLeader: decided by the last observation."""
        return self.observed.get("holderIdentity") == self.identity

    def try_acquire_or_renew(self) -> bool:
        """Source: tryAcquireOrRenew."""
        now = self.clock()
        moment = datetime.fromtimestamp(self.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        record = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.lease_duration),
            "renewTime": moment,
            "acquireTime": moment,
        }
        # 1. fast path for the leader to update optimistically
        if self.is_leader() and self._is_lease_valid(now):
            record["acquireTime"] = self.observed.get("acquireTime")
            record["leaseTransitions"] = self.observed.get("leaseTransitions", 0)
            if self._update(record):
                return True
        # 2. obtain or create the ElectionRecord
        try:
            self._lease = self.leases.get(paths.LEASES, self.name, namespace=self.namespace)
        except NotFoundError:
            return self._create(record)
        except ApiError:
            return False
        old = dict(self._lease.get("spec") or {})
        # 3. record obtained, check the identity and time
        if self.observed != old:
            self._set_observed(old)
        holder = old.get("holderIdentity") or ""
        if holder and self._is_lease_valid(now) and not self.is_leader():
            return False
        # 4. we are going to try to update
        if self.is_leader():
            record["acquireTime"] = old.get("acquireTime")
            record["leaseTransitions"] = old.get("leaseTransitions", 0)
        else:
            record["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + 1
        return self._update(record)

    def release(self) -> None:
        """Source: tryRelease."""
        try:
            self._lease = self.leases.get(paths.LEASES, self.name, namespace=self.namespace)
        except ApiError:
            return
        if not self.is_leader():
            return
        self._update({"holderIdentity": "", "leaseDurationSeconds": 1})

    def _is_lease_valid(self, now: float) -> bool:
        return self.observed_time + float(self.observed.get("leaseDurationSeconds") or 0) > now

    def _set_observed(self, record: dict[str, Any]) -> None:
        self.observed = dict(record)
        self.observed_time = self.clock()

    def _create(self, record: dict[str, Any]) -> bool:
        body = {
            "apiVersion": paths.LEASES.api_version,
            "kind": paths.LEASES.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": record,
        }
        try:
            self._lease = self.leases.create(paths.LEASES, body)
        except ApiError:
            return False
        self._set_observed(record)
        return True

    def _update(self, record: dict[str, Any]) -> bool:
        """LeaseLock.Update: writes a new spec, with the metadata as last read or written."""
        if self._lease is None:
            return False
        body = {**deepcopy(self._lease), "spec": record}
        try:
            self._lease = self.leases.update(paths.LEASES, body)
        except ApiError:
            return False
        self._set_observed(record)
        return True
