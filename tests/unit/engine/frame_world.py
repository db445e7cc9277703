"""One process around the frame of passes: a queue in memory that gives one lease, a driver `d`."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

from tests.support.fake_context import FakeLease
from workers.config.settings import Settings
from workers.engine import frame
from workers.engine.context import Context
from workers.engine.frame import AWAY_SECONDS
from workers.observability import trail
from workers.queue.keys import Key
from workers.queue.leases import CURRENT
from workers.spec import Kind, Spec

WORK, LOOSE = Key("work", "d", "a/b", "u"), Key("loose", "", "a/b", "u")
KINDS = (
    Kind("work", "t", "work-queue", noun="pvc"),
    Kind("loose", "t", "loose-queue", has_driver=False),
)
SPEC = Spec("one", "", KINDS, (), dict, part_of="whole")
NEXT = Key("work", "d", "a/next", "v")
# Nothing of the key has failed (G5).
NOT_BEGUN = ("release", {"delay_seconds": AWAY_SECONDS, "count": False})


class Queue:
    """Gives one lease and notes what becomes of it; `broken` is raised at the end of a lease."""

    def __init__(self):
        self.lease = FakeLease(WORK, fails=0, memo="", mark={})
        self.lease.waited_seconds = 3.0
        self.broken = None
        self.ended = []
        self.notes = []

    def take_any(self, key, locks, rules):
        self.locks, self.rules = locks, rules
        if self.lease is not None:
            self.lease.key = key
        return self.lease

    def _end(self, *what, **how):
        self.ended.append((*what, how) if how else what)
        self.notes = [note.split(" ", 1)[1] for note in trail.collected()]
        if self.broken is not None and what[0] != "release":
            raise self.broken
        return SimpleNamespace(is_owner=True)

    def done(self, lease, **how):
        return self._end("done", **how)

    def fail(self, lease, **how):
        return self._end("fail", **how)

    def block(self, lease, lock):
        return self._end("block", lock)

    def release(self, lease, **how):
        lease.is_released = True
        return self._end("release", **how)


class World:
    """One process with one driver, `d`, and a controller of the test's own."""

    def __init__(self):
        self.queue, self.seen = Queue(), []
        self.driver = SimpleNamespace(name="d", settings=SimpleNamespace(controllers={}))
        self.context = Context(
            settings=Settings(),
            kube=None,
            effects=SimpleNamespace(reach=lambda step, lease: None),
            queue=self.queue,
            catalog=None,
            driver_of={"d": self.driver}.get,
        )

    def run(self, outcome, key=WORK):
        """One pass; an exception is raised in it."""

        def sync(context, driver, key, lease):
            self.seen.append((driver, CURRENT.get()))
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        controller = SimpleNamespace(spec=SPEC, locks=lambda key, driver: (), sync=sync)
        frame.run(self.context, {"work": controller, "loose": controller}, key.text)
        return self.queue.ended

    def counted(self, metric, /, **labels):
        return self.context.metrics.registry.get_sample_value(metric, labels) or 0


def follower(key=NEXT, locks=()):
    lease = FakeLease(key, fails=0, memo="", mark={})
    lease.locks = locks
    return lease


class Following:
    """A world whose threads go on with `leases`, one after the other."""

    def __init__(self, world, *leases):
        self.world, self.leases = world, list(leases)
        self.rules, self.shown = [], []
        world.context.wants_next = lambda lease: True
        world.context.shown = self.show
        end = world.queue._end

        def ended(*what, **how):
            if (lease := CURRENT.get()) is not None:
                self.rules.append(lease.rules)
                lease.successor = self.leases.pop(0) if self.leases else None
            return end(*what, **how)

        world.queue._end = ended

    @contextmanager
    def show(self, task, key):
        self.shown.append((task, key))
        yield
