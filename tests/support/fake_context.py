"""What one reconcile of any controller sees, in memory: context, driver, lease, queue, events.

```
world = FakeWorld(capabilities={"PUBLISH_UNPUBLISH_VOLUME"}, settings={"attacher": settings})
world.api.add(paths.VOLUMES, {...})
world.client.respond({"ControllerPublishVolume": [{"code": "INTERNAL", "times": 2}, {}]})
outcome = world.sync(CONTROLLER, key)            # one pass; fails, memo and mark are carried on
assert world.client.methods == ["ControllerPublishVolume"]
```
The script of answers has the format of the parity runner's driver: per method (`Method`, or
`Method:id` for calls about one object) a list of steps, each used `times` times, the last for
ever. A step may also be an exception or a callable of the request that returns a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import Message

from csi_client import answers, errors
from csi_client.errors import CsiError
from tests.support.fake_cluster import FakeCatalog, FakeEvents
from tests.support.memory_api import MemoryApi
from workers.engine.effects import Effects
from workers.engine.outcome import Ended
from workers.errors import LeaseLost
from workers.observability.metrics import Metrics
from workers.queue.keys import Key
from workers.queue.leases import CatalogState, Session
from workers.queue.locks import Lock, Mode
from workers.queue.seal import Seal

DRIVER = "csi/test"
PLUGIN = frozenset({"CONTROLLER_SERVICE"})
_NUMBERS = {_name.upper(): _number for _number, _name in errors.CODE_NAMES.items()}

SEAL = Seal.of_lines(["0" * 64])

Step = Mapping[str, Any] | Exception | Callable[[Any], Any]


class ScriptedClient:
    """A driver whose answers are scripted; `calls` contains (method, request) in order."""

    def __init__(self, responses: Mapping[str, list[Step]] | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.timeouts: list[float | None] = []
        self.published: dict[str, set[str]] = {}
        self._scripts: dict[str, list[Any]] = {}
        self._used: dict[str, int] = {}
        self._fillers: dict[str, Callable[[Any, Any, Any], None]] = {
            "ControllerPublishVolume": self._publish,
            "ControllerUnpublishVolume": self._unpublish,
            "ListVolumes": self._list,
        }
        self.respond(responses or {})

    @property
    def methods(self) -> list[str]:
        """Return the methods that were called, in order."""
        return [method for method, _ in self.calls]

    def requests(self, method: str) -> list[Any]:
        """Return the requests of one method."""
        return [request for name, request in self.calls if name == method]

    def respond(self, responses: Mapping[str, list[Any]]) -> None:
        """Set new answers from now on, for the named methods only."""
        for name, steps in responses.items():
            self._scripts[name], self._used[name] = list(steps), 0

    def call(
        self,
        method: str,
        request: Message,
        answer_type: type[Message],
        *,
        timeout_seconds: float | None = None,
        **_: Any,
    ) -> Any:
        """Answer as scripted; if a method has no script, publications are recorded and listed."""
        name = method.rpartition("/")[2]
        self.calls.append((name, request))
        self.timeouts.append(timeout_seconds)
        step = self._step(name, request)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Message):
            return self._checked(method, request, step)
        if "pages" in step:
            step = step["pages"].get(getattr(request, "starting_token", ""), {})
        if step.get("code"):
            code = _NUMBERS[step["code"].replace("_", "")]
            raise CsiError(code, step.get("message", ""), rpc=f"/csi.v1.{method}")
        answer = answer_type()
        fill = self._fillers.get(name)
        if fill is not None:
            fill(request, step, answer)
        else:
            content = {key: value for key, value in step.items() if key not in {"times", "delay"}}
            json_format.ParseDict(content, answer)
        return self._checked(method, request, answer)

    @staticmethod
    def _checked(method: str, request: Message, answer: Message) -> Message:
        """Raise the errors that the real client raises."""
        answers.check(request, answer, rpc=f"/csi.v1.{method}", driver="the script")
        return answer

    def _step(self, name: str, request: Any) -> Any:
        fields = ("volume_id", "snapshot_id", "group_snapshot_id", "name")
        subject = next((getattr(request, f) for f in fields if getattr(request, f, "")), "")
        script = next((s for s in (f"{name}:{subject}", name) if s in self._scripts), None)
        if script is None:
            return {}
        steps = self._scripts[script]
        step: Any = steps[0] if steps else {}
        self._used[script] += 1
        times = int(step.get("times", 1)) if isinstance(step, Mapping) else 1
        if len(steps) > 1 and self._used[script] >= times:
            steps.pop(0)
            self._used[script] = 0
        if callable(step) and not isinstance(step, Exception):
            step = step(request)
        return {} if step is None else step

    def _publish(self, request: Any, step: Any, answer: Any) -> None:
        answer.publish_context.update(step.get("publish_context", {}))
        self.published.setdefault(request.volume_id, set()).add(request.node_id)

    def _unpublish(self, request: Any, _step: Any, _answer: Any) -> None:
        self.published.get(request.volume_id, set()).discard(request.node_id)

    def _list(self, _request: Any, step: Any, answer: Any) -> None:
        truth = [
            {"volume_id": volume, "published_node_ids": sorted(nodes)}
            for volume, nodes in sorted(self.published.items())
        ]
        for item in step.get("entries", truth):
            entry = answer.entries.add()
            if item.get("no_volume"):
                continue
            entry.volume.volume_id = item["volume_id"]
            if not item.get("no_status"):
                entry.status.SetInParent()
                entry.status.published_node_ids.extend(item.get("published_node_ids", []))
        answer.next_token = step.get("next_token", "")


class FakeLease:
    """A held lease; `is_lost` makes `check` raise."""

    def __init__(
        self,
        key: Key,
        *,
        fails: int,
        memo: str,
        mark: Mapping[str, Any],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.key, self.fails, self.memo = key, fails, memo
        self.session = Session(clock=clock)
        self.mark: Mapping[str, Any] = mark
        self.is_lost = self.is_released = False
        self.takes_next = False
        self.fence, self.token, self.domain = 1, "t", ""
        self.waited_seconds, self.seen = 0.0, 0
        self.catalog = CatalogState("e", {}, frozenset({"classes", "csinodes", "nodes"}))

    def is_held(self) -> bool:
        """Return True if a write is still allowed."""
        return not self.is_lost

    def check(self) -> None:
        """Raise LeaseLost once `is_lost` is set."""
        if self.is_lost:
            raise LeaseLost(f"lease of {self.key.text} is lost")


class FakeQueue:
    """The locks, marks and added keys of one process; `busy` are the locks that another key
    holds."""

    def __init__(self) -> None:
        self.added: list[tuple[str, float]] = []
        self.marks: dict[str, dict[str, Any]] = {}
        self.busy: dict[str, Mode] = {}
        self.held: dict[str, Mode] = {}
        self.acquired: list[Lock] = []

    def add(self, keys: Iterable[Key], *, delay_seconds: float = 0.0) -> None:
        """Remember the added keys."""
        self.added += [(key.text, delay_seconds) for key in keys]

    def mark(self, lease: FakeLease, mark: Mapping[str, Any]) -> None:
        """Store the key's mark; {} removes it."""
        lease.check()
        lease.mark = dict(mark)
        if mark:
            self.marks[lease.key.text] = dict(mark)
        else:
            self.marks.pop(lease.key.text, None)

    def sealed_copy(self, key: Key, record: bytes) -> bytes:
        """Sign a record as in production, with a key of this worker."""
        return SEAL.close("marks", key.text, key.tenant, record)

    def is_our_copy(self, key: Key, stored: bytes) -> bool:
        """Verify a signature as in production."""
        return SEAL.is_ours("marks", key.text, stored)

    def marks_of(self, keys: Iterable[Key]) -> list[dict[str, Any]]:
        """Return the marks of several keys."""
        return [dict(self.marks.get(key.text, {})) for key in keys]

    def acquire(self, lease: FakeLease, *locks: Lock) -> Lock | None:
        """Return None if all locks are granted, otherwise the busy one."""
        lease.check()
        for lock in locks:
            other = self.busy.get(lock.name)
            if other is not None and Mode.EXCLUSIVE in {other, lock.mode}:
                return lock
        for lock in locks:
            self.held[lock.name] = lock.mode
            self.acquired.append(lock)
        return None

    def unlock(self, lease: FakeLease, name: str) -> None:
        """Release a lock early."""
        lease.check()
        self.held.pop(name, None)


class Steps:
    """Records the name of every effect; just before the n-th, the process dies or its lease is
    lost."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.dies_before: int | None = None
        self.loses_before: int | None = None

    def reach(self, step: str, lease: FakeLease) -> None:
        """Check the lease, as in production."""
        if len(self.reached) == self.dies_before:
            raise Death(step)
        lease.is_lost = lease.is_lost or len(self.reached) == self.loses_before
        self.reached.append(step)
        lease.check()


class Death(BaseException):
    """Ends the simulated process; no handler of the product catches it."""


@dataclass
class FakeWorld:
    """One API server, one driver and one process; reconciles run one after the other."""

    driver_name: str = DRIVER
    plugin: Iterable[str] = PLUGIN
    capabilities: Iterable[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    node: Iterable[str] = ()
    expansion_modes: Iterable[str] = ()
    in_tree_name: str | None = None
    has_driver: bool = True
    per_node: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api, self.client, self.queue = MemoryApi(), ScriptedClient(), FakeQueue()
        self.steps, self.events, self.catalog = Steps(), FakeEvents(), FakeCatalog()
        self.fails: dict[str, int] = {}
        self.memos: dict[str, str] = {}
        self.passed = 0.0  # seconds by which the tests have advanced the time
        names = frozenset(self.capabilities) | frozenset(self.plugin)
        self.driver: Any = (
            SimpleNamespace(
                name=self.driver_name,
                queue_name=self.driver_name,
                in_tree_name=self.in_tree_name,
                client=self.client,
                plugin_capabilities=frozenset(self.plugin),
                controller_capabilities=frozenset(self.capabilities),
                node_capabilities=frozenset(self.node),
                expansion_modes=frozenset(self.expansion_modes),
                event_source=self.driver_name,
                settings=SimpleNamespace(
                    controllers=dict(self.settings),
                    gates=SimpleNamespace(volume_attributes_class=True),
                    node=SimpleNamespace(enabled=False),
                ),
                supports=lambda name: name in names,
                timeout_seconds=lambda _operation, _class_name="": None,
                per_node=lambda operation: self.per_node.get(operation, 0),
                limits=dict(self.limits),
            )
            if self.has_driver
            else None
        )
        self.context: Any = SimpleNamespace(
            kube=self.api.kube,
            queue=self.queue,
            effects=Effects(
                self.api.kube,
                cast("Any", self.events),
                cast("Any", self.queue),
                cast("Any", self.steps),
            ),
            catalog=self.catalog,
            settings=SimpleNamespace(controllers=dict(self.settings)),
            metrics=Metrics(),
            pauses=None,
        )

    def lease(self, key: Key) -> FakeLease:
        """Return a new lease of the key, with the state that its last reconcile left."""
        return FakeLease(
            key,
            fails=self.fails.get(key.text, 0),
            memo=self.memos.get(key.text, ""),
            mark=self.queue.marks.get(key.text, {}),
            clock=lambda: time.time() + self.passed,
        )

    def sync(self, controller: Any, key: Key) -> Any:
        """Reconcile the key once; the locks that it took are free afterwards."""
        lease = self.lease(key)
        try:
            outcome = controller.sync(self.context, self.driver, key, cast("Any", lease))
        except Ended as ended:  # as the frame does
            outcome = ended.outcome
        finally:
            self.queue.held.clear()
        word = outcome.action.value
        if word == "retry":
            self.fails[key.text] = lease.fails + 1
            self.memos[key.text] = outcome.memo
        elif word == "done":
            self.fails.pop(key.text, None)
            self.memos.pop(key.text, None)
        return outcome


def in_seconds(seconds: float) -> float:
    """Return a time of the wall clock, for marks that contain one."""
    return time.time() + seconds
