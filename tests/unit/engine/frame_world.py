"""One process around the frame: an in-memory queue that hands out leases, and a driver `d`."""

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
from workers.queue.kinds import place_of
from workers.queue.leases import CURRENT
from workers.spec import Kind, Spec

WORK, LOOSE = Key("claims", "d", "a/b", "u"), Key("bindings", "", "a/b", "u")
KINDS = (
    Kind("claims", "t", "work-queue", noun="pvc"),
    Kind("bindings", "t", "loose-queue", has_driver=False),
)
SPEC = Spec("one", "", KINDS, (), dict, part_of="whole")
# The release does not count as a failure of the key (G5).
NOT_BEGUN = ("release", {"delay_seconds": AWAY_SECONDS, "count": False})


def lease_of(key=WORK):
    lease = FakeLease(key, fails=0, memo="", mark={})
    lease.waited_seconds = 3.0
    return lease


class Queue:
    """A queue that hands out the leases in `due` and records how each lease ends.

    `broken` is raised when a lease ends. `refused` maps `take` and `enter` to the error they raise.
    """

    def __init__(self):
        self.due = []
        self.busy = False
        self.broken, self.refused = None, {}
        self.asked, self.ended, self.notes = [], [], []

    def take(self, driver, kinds, *, is_woken):
        self.asked.append((driver, tuple(kinds), is_woken))
        if "take" in self.refused:
            raise self.refused["take"]
        return self.due.pop(0) if self.due else None

    def enter(self, lease, locks):
        self.locks = locks
        if "enter" in self.refused:
            raise self.refused["enter"]
        lease.is_released = self.busy
        return not self.busy

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
    """One process with one driver, `d`, and a controller that the test supplies."""

    def __init__(self):
        self.queue, self.seen, self.shown = Queue(), [], []
        self.driver = SimpleNamespace(name="d", settings=SimpleNamespace(controllers={}))
        self.context = Context(
            settings=Settings(),
            kube=None,
            effects=SimpleNamespace(reach=lambda step, lease: None),
            queue=self.queue,
            catalog=None,
            driver_of={"d": self.driver}.get,
            shown=self.show,
        )
        self.locks = lambda key, driver: ()

    @contextmanager
    def show(self, task, key):
        outcomes = []
        self.shown.append((task, key, outcomes))
        yield outcomes.append

    def run(self, outcome, key=WORK, *others):
        """Wake a thread while these keys are due; each reconcile returns or raises `outcome`."""
        self.queue.due = [lease_of(one) for one in (key, *others)]
        return self.wake(outcome, place_of(key.driver, key.kind))

    def wake(self, outcome, place):
        """Wake a thread and return how each lease ended."""

        def sync(context, driver, key, lease):
            self.seen.append((driver, CURRENT.get()))
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        controller = SimpleNamespace(spec=SPEC, locks=self.locks, sync=sync)
        frame.run(self.context, {"claims": controller, "bindings": controller}, place)
        return self.queue.ended

    def counted(self, metric, /, **labels):
        return self.context.metrics.registry.get_sample_value(metric, labels) or 0
