"""A process dies before each step of a reconcile; another one finishes (MR-033, I-1 to I-7).

A first run of each scenario counts the steps. Then the scenario runs once per step: with a death
just before it, with each possible action of a user, and with or without the data in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.support.fake_context import Death
from tests.support.resizer_world import GIB, ResizerWorld
from workers.kube import paths

NOTE = "volume.alpha.kubernetes.io/pre-resize-capacity"
UNCERTAIN = {"code": "DEADLINE_EXCEEDED"}


class Storage:
    """A driver that records its state, and the targets whose answers the worker may not have got.

    A plan is {} (succeed), a step with a code (fail without effect) or ("after", step): the change
    is made and its answer is lost.
    """

    def __init__(self, world: ResizerWorld, *, node_part: bool) -> None:
        self.world = world
        self.node_part = node_part
        self.size = GIB
        self.tier = "a"
        self.plans: dict[str, list[Any]] = {"expand": [], "modify": []}
        self.unheard: dict[str, Any] = {}
        self.answered: set[str] = set()
        world.answers(self.expand)
        world.modifies(self.modify)

    def expand(self, request: Any) -> dict[str, Any]:
        wanted = request.capacity_range.required_bytes
        self._check("expand", wanted)
        return self._answer(
            "expand",
            lambda: setattr(self, "size", max(self.size, wanted)),
            lambda: {"capacity_bytes": self.size, "node_expansion_required": self.node_part},
        )

    def modify(self, request: Any) -> dict[str, Any]:
        wanted = request.mutable_parameters["tier"]
        self._check("modify", wanted)
        return self._answer("modify", lambda: setattr(self, "tier", wanted), dict)

    def _check(self, kind: str, wanted: Any) -> None:
        """I-2: Check that all calls from an uncertain to a final result have the same target."""
        assert self.unheard.get(kind, wanted) == wanted, "a second target while the first may run"
        self.unheard[kind] = wanted

    def _answer(
        self, kind: str, work: Callable[[], None], answer: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        plan = self.plans[kind].pop(0) if self.plans[kind] else {}
        if isinstance(plan, tuple):
            work()
            return plan[1]
        if plan.get("code"):
            if plan["code"] != "DEADLINE_EXCEEDED":
                self.answered.add(kind)
            return plan
        work()
        self.answered.add(kind)
        return answer()

    def heard(self, kinds: set[str]) -> None:
        """Forget the targets whose answers the next worker knows."""
        for kind in kinds & self.answered:
            self.unheard.pop(kind, None)
        self.answered.clear()


class Life:
    """One claim with its storage; `live` reconciles until no work is left."""

    def __init__(self, scenario: str) -> None:
        options = SCENARIOS[scenario]
        self.world = ResizerWorld()
        for name in "abc":
            self.world.attributes_class(name, tier=name)
        self.storage = Storage(self.world, node_part=options.get("node_part", True))
        self.storage.plans |= {kind: list(plans) for kind, plans in options["plans"].items()}
        fields = {"status": {"currentVolumeAttributesClassName": "a"}}
        self.world.claim(
            options.get("size", 1), 1, volumeAttributesClassName=options.get("class", "a"), **fields
        )
        self.largest = 0

    def live(self) -> None:
        """Reconcile until no work is left; time passes during pauses."""
        for _ in range(30):
            try:
                outcome = self.world.run()
            except Death:
                self.storage.heard(self._written())
                raise
            finally:
                self._never_shrinks()
            self.storage.heard({"expand", "modify"})
            self.world.let_pass(outcome.delay_seconds + 1)
            if outcome.action.value == "done" and not self._node_part():
                return
        raise AssertionError(f"it does not come to rest: {outcome}")

    def _node_part(self) -> bool:
        """Finish kubelet's part, if there is one (R-070)."""
        state = self.world.state()
        if state.part != "NodeResizePending":
            return False
        size = {"storage": f"{state.pvcap}Gi"}
        status = {"capacity": size, "allocatedResourceStatuses": None, "conditions": None}
        self.world.edit({"status": status})
        return True

    def _written(self) -> set[str]:
        """Return the kinds of calls whose outcome is written in the claim."""
        state, status = self.world.state(), self.world.seen["status"]
        modify = status.get("modifyVolumeStatus", {}).get("status")
        found = set() if state.part == "ControllerResizeInProgress" else {"expand"}
        return found if modify == "InProgress" else found | {"modify"}

    def _never_shrinks(self) -> None:
        """I-3: Check that the volume does not shrink."""
        size = self.world.state().pvcap
        assert size >= self.largest
        self.largest = size

    def settled(self) -> None:
        """I-4, I-5: Check that sizes and classes of driver, volume and claim agree."""
        state, status = self.world.state(), self.world.seen["status"]
        assert state.pvcap == self.storage.size / GIB
        assert (state.cap, state.part) == (state.pvcap, "")
        assert self.world.annotation(NOTE, self.world.stored) is None
        spec = int(self.world.seen["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
        assert spec <= state.pvcap
        assert "modifyVolumeStatus" not in status
        assert status["currentVolumeAttributesClassName"] == self.storage.tier
        assert self.world.seen["spec"]["volumeAttributesClassName"] == self.storage.tier
        left = self.world.conditions().keys() & {"ControllerResizeError", "ModifyVolumeError"}
        assert not left
        assert self.world.queue.marks == {}


SCENARIOS: dict[str, dict[str, Any]] = {
    "growth": {"size": 5, "plans": {}},
    "growth without node part": {"size": 5, "plans": {}, "node_part": False},
    "uncertain, then done": {"size": 5, "plans": {"expand": [("after", UNCERTAIN), UNCERTAIN]}},
    "final, then done": {"size": 5, "plans": {"expand": [{"code": "INTERNAL"}]}},
    "infeasible, then done": {"size": 5, "plans": {"expand": [{"code": "OUT_OF_RANGE"}]}},
    "class": {"class": "b", "plans": {}},
    "class uncertain": {"class": "b", "plans": {"modify": [("after", UNCERTAIN), UNCERTAIN]}},
    "class final": {"class": "b", "plans": {"modify": [{"code": "INTERNAL"}]}},
    "class infeasible": {"class": "b", "plans": {"modify": [{"code": "INVALID_ARGUMENT"}]}},
    "both": {"size": 5, "class": "b", "plans": {}},
    "both, one fails": {
        "size": 5,
        "class": "b",
        "plans": {"expand": [{"code": "INTERNAL"}], "modify": [("after", UNCERTAIN)]},
        "node_part": False,
    },
}


def lives(scenario: str) -> Iterator[tuple[Life, str]]:
    """Yield one life per step, whose owner died just before that step."""
    for effect in count():
        life = Life(scenario)
        life.world.steps.dies_before = effect
        try:
            life.live()
        except Death as death:
            life.world.steps.dies_before = None
            yield life, str(death)
        else:
            assert effect > 2, "the scenario reaches no effects"
            life.settled()
            return


@pytest.mark.parametrize("is_kept", [True, False], ids=["Redis kept", "Redis lost"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_tr158_death_before_each_effect(scenario, is_kept):
    """MR-021, I-7: The next owner reaches the same state as an owner that never died."""
    for life, died_at in lives(scenario):
        if not is_kept:
            life.world.queue.marks.clear()
        life.live()
        assert died_at
        life.settled()


@pytest.mark.parametrize("is_kept", [True, False], ids=["Redis kept", "Redis lost"])
@pytest.mark.parametrize("size", [3, 9], ids=["lowered", "raised"])
@pytest.mark.parametrize("scenario", [name for name, o in SCENARIOS.items() if "size" in o])
def test_death_and_the_user_wants_another_size(scenario, size, is_kept):
    """I-2, I-3: No second size is requested while the first call may run.

    The volume never shrinks.
    """
    for life, _ in lives(scenario):
        if not is_kept:
            life.world.queue.marks.clear()
        if size > life.world.state().cap:
            life.world.resize(size)
        life.live()
        life.settled()


@pytest.mark.parametrize("scenario", [name for name, o in SCENARIOS.items() if "class" in o])
def test_death_and_the_class_is_deleted(scenario):
    """DR-027: The parameters are recorded before the call.

    After a death between the claim's state and that record, the parameters are lost and the class
    is needed again.
    """
    for life, died_at in lives(scenario):
        life.world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
        life.world.choose("c")
        is_open = life.world.seen["status"].get("modifyVolumeStatus", {}).get("status")
        if is_open == "InProgress" and not life.world.queue.marks:
            assert died_at == "record-call"
            life.world.attributes_class("b", tier="b")
        life.live()
        life.settled()


@pytest.mark.parametrize("is_kept", [True, False], ids=["Redis kept", "Redis lost"])
@pytest.mark.parametrize("scenario", [name for name, o in SCENARIOS.items() if "class" in o])
def test_death_and_the_user_wants_another_class(scenario, is_kept):
    """I-2, I-5: The first class is finished before the second is requested."""
    for life, _ in lives(scenario):
        if not is_kept:
            life.world.queue.marks.clear()
        life.world.choose("c")
        life.live()
        life.settled()
