"""Leases and the other ports of Leadership, in memory, with a clock that the test controls."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from workers.config.settings import LeaderSettings
from workers.engine.election import Election, Standing
from workers.engine.leadership import Candidate
from workers.engine.leasename import LeaseIdentity
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterable

SETTINGS = LeaderSettings(enabled=True, namespace="ns", labels=(("team", "storage"),))
ONE = [Candidate("d", "d", ("claims", "volumes"))]
LANES = ("claims|d", "volumes|d")


class FakeLeases:
    """One Lease with optimistic locking; `is_away` makes every call fail."""

    def __init__(self) -> None:
        self.lease: Any = None
        self.is_away = False
        self.version = 0

    def get(self, resource: Any, name: str, *, namespace: str = "") -> Any:
        self._reach()
        if self.lease is None:
            raise NotFoundError(404, "NotFound", f'leases "{name}" not found')
        return deepcopy(self.lease)

    def create(self, resource: Any, item: Any) -> Any:
        self._reach()
        if self.lease is not None:
            raise AlreadyExistsError(409, "AlreadyExists", "exists")
        return self.put(item)

    def update(self, resource: Any, item: Any) -> Any:
        self._reach()
        if item["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "modified")
        return self.put(item)

    def put(self, item: Any) -> Any:
        self.version += 1
        metadata = {**item["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**deepcopy(item), "metadata": metadata}
        return deepcopy(self.lease)

    def foreign(self, holder: str, renewed: str) -> None:
        """Replace the Lease as client-go does: a new spec, the old metadata."""
        metadata = self.lease["metadata"] if self.lease else {"name": "d", "namespace": "ns"}
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
        self.put({"metadata": metadata, "spec": spec})

    def _reach(self) -> None:
        if self.is_away:
            raise Unreachable("no answer")


class LeasesByName:
    """Returns a FakeLeases for each name."""

    def __init__(self) -> None:
        self.by_name: dict[str, FakeLeases] = {}

    def of(self, name: str) -> FakeLeases:
        return self.by_name.setdefault(name, FakeLeases())

    def get(self, resource: Any, name: str, *, namespace: str = "") -> Any:
        return self.of(name).get(resource, name, namespace=namespace)

    def create(self, resource: Any, item: Any) -> Any:
        return self.of(item["metadata"]["name"]).create(resource, item)

    def update(self, resource: Any, item: Any) -> Any:
        return self.of(item["metadata"]["name"]).update(resource, item)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeLanes:
    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def pause(self, lanes: Iterable[str], reason: str, seconds: float) -> None:
        self.calls.append(("pause", *lanes))

    def resume(self, lanes: Iterable[str]) -> None:
        self.calls.append(("resume", *lanes))


class FakeFellows:
    """The register of the workers under each Lease, shared by the workers of a test; `wipe`
    loses all."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.working: set[str] = set()

    def installation(self, known: str) -> str:
        self.name = self.name or known or "new"
        return self.name

    def works(self, lease: str, worker: str, seconds: float) -> None:
        self.working.add(worker)

    def is_last(self, lease: str, worker: str) -> bool:
        self.working.discard(worker)
        return not self.working

    def wipe(self) -> None:
        self.name = ""
        self.working.clear()


def us(unique: str = "1", installation: str = "a") -> LeaseIdentity:
    """Return a LeaseIdentity for a worker of the Redis with that name."""
    identity = LeaseIdentity("host", unique)
    identity.join(installation)
    return identity


def elect(leases: FakeLeases, clock: Clock, identity: LeaseIdentity | None = None) -> Election:
    return Election(leases, "d", identity or us(), SETTINGS, clock=clock, now=lambda: clock.now)


def look(election: Election, clock: Clock, seconds: float = 2.0) -> Standing:
    """Advance the time, then take one step."""
    clock.now += seconds
    return election.step()
