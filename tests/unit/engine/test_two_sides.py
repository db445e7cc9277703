"""csi-fleet's workers, workers of another Redis and Go sidecars share one Lease, with every fault.

The test controls time: an hour of elections per seed. Requests hang and arrive late, processes are
killed, frozen, stopped in order and started again, a Redis loses its data and its name. At no
moment may two sides work (COR-6).
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from tests.support.go_election import JITTER_FACTOR, GoElector
from tests.support.leases import ONE, SETTINGS, FakeFellows, FakeLanes, FakeLeases
from workers.engine.leadership import Leadership
from workers.engine.leasename import LeaseIdentity
from workers.errors import ApiError, QueueUnavailable
from workers.kube.errors import Unreachable

TICK = 0.1
SECONDS = 3600
FAULTS = ["kill", "stop", "cut", "cut", "deaf", "freeze", "all of a kind"]
REQUEST_SECONDS = SETTINGS.renew_deadline_seconds / 2  # request limit, see cli/elections.py


class Wire:
    """One process's connection to the API server: cut, hanging or healthy."""

    def __init__(self, world):
        self.world = world
        self.cut_until = 0.0
        self.busy_until = 0.0

    def get(self, resource, name, *, namespace=""):
        self._reach(None)
        return self.world.leases.get(resource, name, namespace=namespace)

    def create(self, resource, item):
        self._reach(lambda: self.world.leases.create(resource, item))
        return self.world.leases.create(resource, item)

    def update(self, resource, item):
        self._reach(lambda: self.world.leases.update(resource, item))
        return self.world.leases.update(resource, item)

    def _reach(self, write):
        world = self.world
        if world.now >= self.cut_until:
            return
        self.busy_until = world.now + REQUEST_SECONDS
        if write is not None and world.random.random() < 0.5:
            world.late.append((world.now + world.random.uniform(0, 30), write))
        raise Unreachable("no answer")


class Ours:
    """One csi-fleet worker, at one of two Redis; `Leadership` manages its only Lease."""

    def __init__(self, world, number):
        self.world, self.wire = world, Wire(world)
        self.redis = world.random.choice(world.redis)
        self.deaf_until = 0.0
        self.leadership = Leadership(
            self.wire,
            SETTINGS,
            LeaseIdentity("host", str(number)),
            FakeLanes(),
            fellows=Heard(self),
            clock=lambda: world.now,
        )
        self.due = world.now
        self.kept = self.leadership._of(ONE[0])
        self.leadership._join()

    def side(self):
        return self.redis

    def works(self):
        return self.leadership.may_work("claims", "d")

    def step(self):
        """Do one step of the worker's loop; the report to Redis has a thread, which may hang."""
        self.leadership._step(self.kept)
        with suppress(QueueUnavailable):
            self.leadership._tell(self.kept)
        self.due = max(self.kept.due, self.wire.busy_until, self.world.now)

    def stop(self):
        """Stop in order: the work has ended, and the last worker of a Redis releases the Lease."""
        self.world.actors.remove(self)
        self.leadership._stopped.set()
        if not any(one.side() is self.redis and one.works() for one in self.world.actors):
            self.kept.election.release()


class Heard:
    """What a worker hears from its Redis; the world itself knows which other workers are active."""

    def __init__(self, worker):
        self.worker = worker

    def installation(self, known):
        if self.worker.world.now < self.worker.deaf_until:
            raise QueueUnavailable("no answer")
        return self.worker.redis.installation(known)

    def works(self, lease, worker, seconds):
        """Nothing in this test reads it."""


class Go:
    """One Go sidecar: it acquires, renews, and exits when it cannot renew."""

    def __init__(self, world, number):
        self.world, self.wire = world, Wire(world)
        self.elector = GoElector(
            self.wire,
            "ns",
            "d",
            f"go_{number}",
            clock=lambda: world.now,
            wall=lambda: 1.0e9 + world.now,
        )
        self.leads_until = float("-inf")
        self.due = world.now

    def side(self):
        return "go"

    def works(self):
        return self.world.now < self.leads_until

    def step(self):
        world, elector = self.world, self.elector
        is_leading = self.leads_until > float("-inf")
        if is_leading and not self.works():
            world.actors.remove(self)  # OnStoppedLeading ends the process
            return
        retry = elector.retry_period
        if elector.try_acquire_or_renew():
            # The next renewal begins after RetryPeriod and has RenewDeadline.
            self.leads_until = world.now + retry + elector.renew_deadline
        elif not is_leading:
            retry *= world.random.uniform(1, JITTER_FACTOR)
        self.due = max(world.now + retry, self.wire.busy_until)
        if is_leading:
            self.due = min(self.due, self.leads_until)

    def stop(self):
        """Stop as ReleaseOnCancel does, after the work has ended."""
        self.world.actors.remove(self)
        if self.works():
            self.elector.release()


class Redis(FakeFellows):
    """A Redis with a new name after each loss of data, unless a worker restores the old one."""

    def __init__(self, world, name):
        super().__init__(name)
        self.world = world

    def installation(self, known):
        return super().installation(known or f"{self.world.random.random()}")


class World:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now = 0.0
        self.leases = FakeLeases()
        self.redis = [Redis(self, "first"), Redis(self, "second")]
        self.actors, self.late = [], []
        self.started = 0
        self.sides = []
        self.idle = self.longest = 0.0

    def start(self, kind):
        self.started += 1
        self.actors.append(kind(self, self.started))

    def live(self):
        while self.now < SECONDS:
            self.now += TICK
            self.arrive()
            self.misfortune()
            for actor in list(self.actors):
                if actor in self.actors and actor.due <= self.now:
                    actor.step()
            self.judge()

    def arrive(self):
        """Deliver requests whose senders gave up long ago."""
        for at, write in [one for one in self.late if one[0] <= self.now]:
            self.late.remove((at, write))
            try:
                write()
            except ApiError:
                continue

    def misfortune(self):
        """Cause a random fault about every 12 s."""
        if self.random.random() > TICK / 12:
            return
        if not self.actors or self.random.random() < 0.3:
            self.start(self.random.choice([Ours, Ours, Go]))
            return
        if self.random.random() < 0.1:
            self.random.choice(self.redis).wipe()
            return
        victim = self.random.choice(self.actors)
        what = self.random.choice(FAULTS)
        if what == "kill":
            self.actors.remove(victim)
        elif what == "stop":
            victim.stop()
        elif what == "cut":
            victim.wire.cut_until = self.now + self.random.uniform(1, 40)
        elif what == "deaf" and isinstance(victim, Ours):
            victim.deaf_until = self.now + self.random.choice([5, 40, 300])
        elif what == "freeze" and isinstance(victim, Ours):
            victim.due = self.now + self.random.uniform(1, 40)
        elif what == "all of a kind":
            for one in [one for one in self.actors if one.side() == victim.side()]:
                one.stop()

    def able(self):
        """Return True if some process reaches everything that it needs."""
        return any(
            self.now >= max(one.wire.cut_until, getattr(one, "deaf_until", 0))
            for one in self.actors
        )

    def judge(self):
        at_work = [one.side() for one in self.actors if one.works()]
        assert len(set(at_work)) < 2, (self.now, self.leases.lease)
        assert at_work.count("go") < 2, self.now
        side = next(iter(at_work), "")
        self.idle = 0.0 if side or not self.able() else self.idle + TICK
        self.longest = max(self.longest, self.idle)
        if side and side != (self.sides[-1] if self.sides else ""):
            self.sides.append(side)


@pytest.mark.parametrize("seed", range(6))
def test_two_sides_never_work_at_once(seed):
    """An hour has more than 12 turns, none of them overlap, and each side has three or more."""
    world = World(seed)
    for kind in (Ours, Ours, Go):
        world.start(kind)
    world.live()
    assert len(world.sides) > 12
    assert world.longest < 120, "a Lease that its holder cannot use"
    assert all(world.sides.count(side) > 2 for side in (*world.redis, "go"))
