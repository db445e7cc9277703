"""Successive polls of one driver, with an API server in memory."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from csi_client.errors import UNAVAILABLE, CsiError
from tests.support.fake_context import DRIVER, Death, FakeWorld
from workers.controllers.health import controller as module
from workers.controllers.health import reading
from workers.controllers.health.controller import CONTROLLER, MOST_KNOWN, Poll
from workers.controllers.health.decide import Owned
from workers.controllers.health.reading import Way, way_of
from workers.controllers.health.settings import HealthSettings
from workers.controllers.health.spec import poll_key
from workers.engine.live import DriverPass
from workers.engine.outcome import Action
from workers.errors import DriverAway, LeaseLost
from workers.kube import paths
from workers.kube.errors import ForbiddenError, Unreachable
from workers.queue.leases import CURRENT
from workers.queue.marks import LONGEST_MARK
from workers.queue.records import encode

LIST = ("LIST_VOLUME_HEALTH", "GET_VOLUME_HEALTH")
GET = ("GET_VOLUME_HEALTH",)
OLD_LIST = ("VOLUME_CONDITION", "LIST_VOLUMES")
OLD_GET = ("VOLUME_CONDITION", "GET_VOLUME")
SLOW = {"status": "DEGRADED", "reason": "Slow", "message": "a disk is slow"}
GONE = {"status": "INACCESSIBLE", "reason": "NotFound"}
STORED = [{"status": "Degraded", "reason": "Slow", "message": "a disk is slow"}]
WARNING = ("Warning", "VolumeConditionAbnormal", "a disk is slow")
RECOVERED = ("Normal", "VolumeConditionNormal", "The Volume returns to the healthy state")


class HealthWorld(FakeWorld):
    """Claims a and b with the handles ha and hb; the driver reports all volumes as healthy."""

    def __init__(self, *capabilities, is_dropped=False, stored=None, **settings):
        super().__init__(
            capabilities=capabilities,
            settings={"health": replace(HealthSettings(), **settings)},
        )
        self.context.parts = {"health": CONTROLLER.build(None, {})}
        self.passes = 0  # after which volumes were left
        for name in ("a", "b"):
            claim = {
                "metadata": {"name": name, "namespace": "n", "uid": f"u{name}"},
                "status": {"phase": "Bound"},
            }
            if name == "a" and stored:
                claim["status"]["healthStatus"] = {"healthConditions": stored}
            self.api.add(paths.CLAIMS, claim)
            self.api.add(
                paths.VOLUMES,
                {
                    "metadata": {"name": f"pv-{name}"},
                    "spec": {
                        "csi": {"driver": DRIVER, "volumeHandle": f"h{name}"},
                        "claimRef": {"namespace": "n", "name": name, "uid": f"u{name}"},
                    },
                    "status": {"phase": "Bound"},
                },
            )
        self.is_dropped = is_dropped
        merge = self.api.kube.merge

        def stored_or_not(resource, item, change, **how):
            found = merge(resource, item, change, **how)
            if not self.is_dropped:
                return found
            name = item["metadata"]["name"]
            self.api.change(resource, name, {"status": {"healthStatus": None}}, "n")
            return self.api.of(resource, name, "n")

        self.api.kube.merge = stored_or_not

    def report(self, **conditions):
        """Set the driver's reports by CSI 1.13, for example `a=[SLOW]`."""
        entries = [
            {"volume_id": f"h{name}", "health_statuses": found}
            for name, found in conditions.items()
        ]
        scripts = {"ControllerListVolumeHealth": [{"entries": entries}]}
        for name in ("a", "b"):
            found = {"volume_id": f"h{name}", "health_statuses": conditions.get(name, [])}
            scripts[f"ControllerGetVolumeHealth:h{name}"] = [{"volume_health": found}]
        self.client.respond(scripts)

    def condition(self, **texts):
        """Set the driver's reports by CSI 1.12: `a="text"` is abnormal, None means no report."""
        answers = {"a": "", "b": "", **texts}

        def status(text):
            if text is None:
                return {}
            return {"volume_condition": {"abnormal": bool(text), "message": text or "fine"}}

        self.client._fillers.pop("ListVolumes", None)
        entries = [
            {"volume": {"volume_id": f"h{name}"}, "status": status(text)}
            for name, text in answers.items()
            if text != "missing"
        ]
        self.client.respond({"ListVolumes": [{"entries": entries}]})
        for name, text in answers.items():
            answer = {"volume": {"volume_id": f"h{name}"}, "status": status(text)}
            self.client.respond({f"ControllerGetVolume:h{name}": [answer]})

    def poll(self):
        """Poll once, without the earlier requests, calls and events."""
        self.api.requests.clear()
        self.client.calls.clear()
        self.events.seen.clear()
        while (outcome := self.sync(CONTROLLER, poll_key(DRIVER))).action is Action.WAIT:
            self.passes += 1
        return outcome.reason

    def stored(self, name="a"):
        """Return the conditions in the claim's status."""
        claim = self.api.of(paths.CLAIMS, name, "n")
        return (claim["status"].get("healthStatus") or {}).get("healthConditions", [])

    def value(self, name, **labels):
        """Return a metric's value."""
        return self.context.metrics.registry.get_sample_value(
            name, {"driver_name": DRIVER, **labels}
        )


BOTH = pytest.mark.parametrize("capabilities", [LIST, GET], ids=["list", "get"])


@pytest.mark.parametrize(
    ("capabilities", "reads_conditions", "way"),
    [
        ((), True, None),
        (LIST, False, Way.LIST_HEALTH),
        (GET, False, Way.GET_HEALTH),
        ((*LIST, *OLD_LIST), True, Way.LIST_HEALTH),
        ((*GET, *OLD_LIST), True, Way.GET_HEALTH),
        (OLD_LIST, True, Way.LIST_CONDITIONS),
        (OLD_GET, True, Way.GET_CONDITIONS),
        ((*OLD_LIST, *OLD_GET), True, Way.LIST_CONDITIONS),
        (OLD_LIST, False, None),
        (("LIST_VOLUMES", "GET_VOLUME"), True, None),
        (("VOLUME_CONDITION",), True, None),
    ],
)
def test_vh001_how_a_driver_is_asked(capabilities, reads_conditions, way):
    """VHT-001, VH-001, VH-002, VHD-010."""
    world = HealthWorld(*capabilities, reads_conditions=reads_conditions)
    assert way_of(world.driver) is way
    assert CONTROLLER.serves(world.driver) is (way is not None)
    periods = [one.every_seconds for one in CONTROLLER.periodic(world.context, world.driver)]
    assert periods == ([] if way is None else [300 if way.is_list else 60])


@BOTH
def test_vh030_a_condition_is_stored_once(capabilities):
    """VHT-010, VH-030, VH-031."""
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW])
    world.poll()
    assert (world.stored("a"), world.stored("b")) == (STORED, [])
    world.poll()
    assert world.api.writes == []


@BOTH
def test_vh031_a_changed_message_is_written(capabilities):
    """VHT-011, VH-031."""
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW])
    world.poll()
    world.report(a=[{**SLOW, "message": "slower"}])
    world.poll()
    assert world.stored()[0]["message"] == "slower"


@BOTH
def test_vh011_a_report_replaces_what_is_stored(capabilities):
    """VHT-012, VH-011."""
    world = HealthWorld(*capabilities, stored=STORED)
    world.report(a=[GONE])
    world.poll()
    assert [one["reason"] for one in world.stored()] == ["NotFound"]


@BOTH
def test_vh022_recovery_is_written_at_once(capabilities):
    """VHT-013, VH-012, VH-022.

    After a list without conditions, the driver confirms the recovery.
    """
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW])
    world.poll()
    world.report()
    world.poll()
    assert world.stored() == []
    assert world.client.methods[-1] == "ControllerGetVolumeHealth"


@BOTH
def test_vh012_what_an_earlier_process_stored_recovers_too(capabilities):
    """VHT-014, VH-012, VHD-006: No state is kept: the first poll reads all claims."""
    world = HealthWorld(*capabilities, stored=STORED)
    world.report()
    world.poll()
    assert world.stored() == []


def test_vh012_a_listed_volume_without_conditions_has_recovered():
    """VHT-015, VH-012."""
    world = HealthWorld(*LIST, stored=STORED)
    world.report(a=[])
    world.poll()
    assert (world.stored(), world.client.methods) == ([], ["ControllerListVolumeHealth"])


def test_vh012_a_missing_volume_that_is_not_healthy_is_kept():
    """VHT-016, VH-012."""
    world = HealthWorld(*LIST, stored=STORED)
    world.report(a=[SLOW])
    world.client.respond({"ControllerListVolumeHealth": [{}]})
    world.poll()
    assert (world.stored(), world.api.writes) == (STORED, [])


@pytest.mark.parametrize("capabilities", [("LIST_VOLUME_HEALTH",), OLD_LIST])
def test_vh012_two_lists_without_the_volume(capabilities):
    """VHT-017, VH-012: The driver cannot be called for a single volume."""
    world = HealthWorld(*capabilities, stored=STORED, reads_conditions=True)
    world.report()
    world.condition(a="missing")
    world.poll()
    assert world.stored() == STORED
    world.poll()
    assert world.stored() == []


def test_vh012_a_volume_that_comes_back_is_not_missing():
    """VHT-018, VH-012."""
    world = HealthWorld("LIST_VOLUME_HEALTH", stored=STORED)
    for conditions in ({}, {"a": [SLOW]}, {}):
        world.report(**conditions)
        world.poll()
        assert world.stored() == STORED


@pytest.mark.parametrize("capabilities", [LIST, GET, OLD_LIST, OLD_GET])
@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL", "NOT_FOUND", "UNIMPLEMENTED"])
def test_vh013_a_failed_call_is_no_recovery(capabilities, code):
    """VHT-019, VH-013."""
    world = HealthWorld(*capabilities, stored=STORED, reads_conditions=True)
    failure = {"code": code, "message": "no"}
    names = ("ControllerListVolumeHealth", "ControllerGetVolumeHealth", *("ListVolumes",))
    world.client.respond({name: [failure] for name in (*names, "ControllerGetVolume")})
    world.poll()
    assert (world.stored(), world.api.writes) == (STORED, [])
    world.report()
    world.condition()
    world.poll()
    assert world.stored() == []


def test_vh013_a_failed_page_changes_nothing():
    """VHT-020, VH-013."""
    world = HealthWorld(*LIST, stored=STORED)
    pages = {"": {"entries": [], "next_token": "2"}, "2": {"code": "ABORTED"}}
    world.client.respond({"ControllerListVolumeHealth": [{"pages": pages}]})
    assert world.poll() == "listing failed"
    assert world.stored() == STORED


def test_vh013_a_repeated_page_token_ends_the_list():
    """VHT-021, VH-013."""
    world = HealthWorld(*LIST, stored=STORED)
    pages = {"": {"next_token": "2"}, "2": {"next_token": "2"}}
    world.client.respond({"ControllerListVolumeHealth": [{"pages": pages}]})
    assert world.poll() == "listing failed"


def test_all_pages_count():
    """VHT-023, VH-013."""
    world = HealthWorld(*LIST)
    entry = {"volume_id": "ha", "health_statuses": [SLOW]}
    pages = {"": {"next_token": "2"}, "2": {"entries": [entry]}}
    world.client.respond({"ControllerListVolumeHealth": [{"pages": pages}]})
    world.poll()
    assert world.stored() == STORED


@BOTH
def test_vh023_an_unknown_type_is_an_event_once(capabilities):
    """VHT-025, VH-023, VHD-005: The known type beside it is stored."""
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW, {"status": 99, "reason": "New", "message": "text"}])
    world.poll()
    assert world.stored() == STORED
    ((kind, reason, text),) = world.events.seen
    assert (kind, reason) == ("Warning", "UnknownVolumeHealthCondition")
    assert text.endswith("unknown to this monitor: 99 (reason: New): text")
    world.poll()
    assert world.events.seen == []
    assert world.value("csi_volume_health_unknown_condition_total", status="99") == 1


@BOTH
def test_vh023_an_unknown_type_keeps_nothing(capabilities):
    """VHT-026, VH-023."""
    world = HealthWorld(*capabilities, stored=STORED)
    world.report(a=[{"status": 99, "reason": "New"}])
    world.poll()
    assert world.stored() == []


@BOTH
def test_vh032_a_dropped_field_is_noticed(capabilities):
    """VHT-027, VH-032, VHD-002, VHD-012.

    One write is tried, then none for half an hour; events show the changes.
    """
    world = HealthWorld(*capabilities, is_dropped=True)
    world.report(a=[SLOW], b=[SLOW])
    world.poll()
    assert [one.verb for one in world.api.writes] == ["patch"]
    assert world.events.seen == [WARNING, WARNING]
    assert world.value("csi_volume_health_status_writes_dropped_total") == 1
    world.poll()
    assert (world.api.writes, world.events.seen) == ([], [])
    assert world.value("csi_controller_volume_health_status", status="Degraded") == 2
    world.report(b=[SLOW])
    world.poll()
    assert (world.api.writes, world.events.seen) == ([], [RECOVERED])


def test_vhd002_the_field_is_tried_again_and_then_written_everywhere():
    """VHT-028, VH-032, VHD-002."""
    world = HealthWorld(*LIST, is_dropped=True)
    world.report(a=[SLOW], b=[SLOW])
    world.poll()
    world.passed = 1801.0
    world.poll()
    assert len(world.api.writes) == 1
    assert world.stored() == []
    world.passed = 3700.0
    world.is_dropped = False
    world.poll()
    assert (world.stored("a"), world.stored("b")) == (STORED, STORED)


def test_vhd001_healthy_volumes_cost_no_request():
    """VHT-032, VHD-001: Only the first poll has to read the claims."""
    world = HealthWorld(*LIST)
    world.report()
    world.poll()
    assert world.poll() == "all volumes are healthy"
    assert world.api.requests == []


def test_vhd004_a_driver_that_does_not_answer_is_left_alone(monkeypatch):
    """VHT-033, VHD-004."""
    monkeypatch.setattr(module, "SILENT_CALLS", 1)
    world = HealthWorld(*GET, worker_threads=1)
    world.client.respond({"ControllerGetVolumeHealth": [CsiError(UNAVAILABLE, "away")]})
    world.poll()
    assert len(world.client.calls) == 1


def test_vhd004_one_silent_volume_hides_no_other():
    """VHT-034, VHD-004: Its call may be the first of the poll, and the only one at that time."""
    world = HealthWorld(*GET, worker_threads=1)
    world.report(b=[SLOW])
    world.client.respond({"ControllerGetVolumeHealth:ha": [CsiError(UNAVAILABLE, "away")]})
    world.poll()
    assert world.stored("b") == STORED


def test_vhd004_a_driver_that_confirms_nothing_is_left_alone(monkeypatch):
    """VHT-035, VHD-004: Its list is empty: thousands of volumes may have to be asked about."""
    monkeypatch.setattr(module, "SILENT_CALLS", 1)
    world = HealthWorld(*LIST, stored=STORED, worker_threads=1)
    world.report(a=[SLOW], b=[SLOW])
    world.poll()
    silence = CsiError(UNAVAILABLE, "away")
    world.client.respond(
        {f"ControllerGetVolumeHealth:{handle}": [silence] for handle in ("ha", "hb")}
    )
    world.client.respond({"ControllerListVolumeHealth": [{}]})
    world.poll()
    assert world.client.methods == ["ControllerListVolumeHealth", "ControllerGetVolumeHealth"]
    assert (world.stored("a"), world.stored("b")) == (STORED, STORED)
    world.report()
    world.poll()
    assert (world.stored("a"), world.stored("b")) == ([], [])


@pytest.mark.parametrize(
    ("capabilities", "operation"), [(GET, "get-volume-health"), (OLD_GET, "get-volume")]
)
def test_vhd014_other_calls_get_their_turn_between_two_calls(capabilities, operation):
    """VHT-036, VHD-014: `serial: true` is a limit of one for each operation."""
    world = HealthWorld(*capabilities, stored=STORED, reads_conditions=True)
    world.driver.limits = {operation: 1}
    world.report(b=[SLOW])
    world.condition(b="a disk is slow")
    world.poll()
    assert (world.passes, len(world.client.calls)) == (1, 2)
    assert (world.stored("a"), bool(world.stored("b"))) == ([], True)
    assert world.value("csi_controller_volume_health_status", status="Degraded") == 1


def test_vhd014_another_worker_makes_the_next_pass():
    """VHT-037, VHD-014: It lists the volumes itself, and asks only about those that are left."""
    world = HealthWorld(*GET, worker_threads=1)
    world.report(a=[SLOW], b=[SLOW])
    key = poll_key(DRIVER)
    assert world.sync(CONTROLLER, key).action is Action.WAIT
    world.context.parts["health"].clear()
    assert world.sync(CONTROLLER, key).action is Action.DONE
    assert [one.volume_id for _, one in world.client.calls] == ["ha", "hb"]
    assert (world.stored("a"), world.stored("b")) == (STORED, STORED)


def test_vhd006_a_poll_of_several_passes_reads_all_claims_once():
    """VHT-039, VHD-006: It finds what an earlier process stored, and asks one volume at a time."""
    world = HealthWorld(*GET, worker_threads=1, stored=STORED)
    world.report()
    world.poll()
    assert world.stored() == []
    read = [one.path.rpartition("/")[2] for one in world.api.requests if one.verb == "get"]
    assert read == ["persistentvolumes", "a", "b", "a"]


def test_what_cannot_be_written_in_time_is_written_later(monkeypatch):
    """VHT-045, VH-013."""
    monkeypatch.setattr(module, "MOST_SECONDS", -3600)
    world = HealthWorld(*LIST)
    world.report(a=[SLOW])
    world.poll()
    assert world.stored() == []
    monkeypatch.undo()
    world.poll()
    assert world.stored() == STORED


def test_vhd013_a_node_is_not_polled():
    """VHT-002, VHD-013."""
    world = HealthWorld(*LIST)
    world.driver.settings.node.enabled = True
    assert not CONTROLLER.serves(world.driver)
    assert list(CONTROLLER.periodic(world.context, world.driver)) == []


def test_vh013_a_driver_that_crashes_over_one_volume_is_asked_again_at_the_next_poll():
    """VHT-024, VH-013: The reports about the other volumes count."""
    world = HealthWorld(*GET)
    world.report(b=[SLOW])
    world.client.respond({"ControllerGetVolumeHealth:ha": [DriverAway("not connected")]})
    assert world.poll() == "1 volumes are unhealthy"
    assert world.stored("b") == STORED
    world = HealthWorld(*LIST)
    world.client.respond({"ControllerListVolumeHealth": [DriverAway("not connected")]})
    assert world.poll() == "listing failed"


def test_vh013_a_list_without_end_fails(monkeypatch):
    """VHT-022, VH-013: Each page has a new token."""
    monkeypatch.setattr(reading, "MOST_SECONDS", 0.05)
    world = HealthWorld(*LIST, stored=STORED)
    numbers = iter(range(1_000_000))
    world.client.respond(
        {"ControllerListVolumeHealth": [lambda _: {"next_token": f"t{next(numbers)}"}]}
    )
    assert world.poll() == "listing failed"
    assert world.stored() == STORED


def test_every_call_belongs_to_the_poll():
    """By its lease a call is ended when this process may work no longer."""
    world, seen = HealthWorld(*GET), []
    world.client.respond({"ControllerGetVolumeHealth": [lambda _: seen.append(CURRENT.get())]})
    lease = world.lease(poll_key(DRIVER))
    token = CURRENT.set(lease)
    world.poll()
    CURRENT.reset(token)
    assert seen == [lease, lease]


def test_a_poll_that_lost_its_lease_calls_no_more():
    """VHT-046, VH-041."""
    world = HealthWorld(*GET, worker_threads=1)
    key = poll_key(DRIVER)
    lease = world.lease(key)
    lease.is_lost = True
    with pytest.raises(LeaseLost):
        CONTROLLER.sync(world.context, world.driver, key, lease)
    assert world.client.calls == []


@BOTH
@pytest.mark.parametrize("how", ["dies", "answer is lost"])
def test_a_status_whose_poll_did_not_end_is_removed_once_the_volume_recovers(capabilities, how):
    """VHT-040, VHD-006: The driver finds the volume healthy at the next poll already."""
    world = HealthWorld(*capabilities)
    world.report()
    world.poll()
    world.report(a=[SLOW])
    if how == "dies":
        world.steps.dies_before = 1 + world.steps.reached.index("remember-health") + 2
        with pytest.raises(Death):
            world.poll()
    else:
        merge = world.api.kube.merge

        def unheard(*args, **how):
            merge(*args, **how)
            raise Unreachable("the connection was closed")

        world.api.kube.merge = unheard
        world.poll()
        world.api.kube.merge = merge
    assert world.stored() == STORED
    world.steps.dies_before = None
    world.report()
    world.poll()
    assert world.stored() == []


def test_vhd006_the_mark_fits_whatever_the_names_are():
    """VHT-041, VHD-006.

    A mark of more than 64 KiB is refused, and the poll would fail each time.
    """
    world = HealthWorld("LIST_VOLUME_HEALTH")
    for number in range(MOST_KNOWN):
        claim = {"metadata": {"name": f"{number:0253}", "namespace": "n" * 63, "uid": str(uuid4())}}
        world.api.add(paths.CLAIMS, claim)
        source = {"driver": DRIVER, "volumeHandle": f"h{number}"}
        spec = {"csi": source, "claimRef": claim["metadata"]}
        volume = {"metadata": {"name": f"pv{number}"}, "spec": spec, "status": {"phase": "Bound"}}
        world.api.add(paths.VOLUMES, volume)
    world.report(**{str(number): [SLOW] for number in range(MOST_KNOWN)})
    world.poll()
    world.report()
    world.poll()
    mark = world.queue.marks[poll_key(DRIVER).text]
    assert (len(mark["known"]), len(mark["missing"])) == (MOST_KNOWN, MOST_KNOWN)
    assert len(encode(mark)) <= LONGEST_MARK


def test_only_the_wanted_claims_are_kept_while_all_are_listed(monkeypatch):
    """And only the fields that are used: a cluster may have 100,000 claims."""
    monkeypatch.setattr(module, "GET_AT_MOST", 0)
    world, key = HealthWorld(*LIST), poll_key(DRIVER)
    work = DriverPass(world.context, key, world.lease(key), paths.CLAIMS, driver=world.driver)
    found = Poll(work, Way.LIST_HEALTH)._claims([Owned("ua", "ha", "n", "a")])
    assert {uid: set(claim) for uid, claim in found.items()} == {"ua": {"metadata", "status"}}


def test_a_driver_is_asked_about_as_many_volumes_at_once_as_its_limits_allow():
    """VHT-038, VHD-014: `serial: true` is a limit of one for each operation."""
    together = []
    for limits in ({}, {"get-volume-health": 1}):
        world = HealthWorld(*GET)
        world.driver.limits = limits
        world.report()
        call, both = world.client.call, threading.Barrier(2)

        def meet(*args, both=both, call=call, limits=limits, **fields):
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
                together.append(limits)
            return call(*args, **fields)

        world.client.call = meet
        world.poll()
        assert len(world.client.calls) == 2
    assert together == [{}, {}]


def test_vhd006_many_claims_are_listed_and_not_remembered(monkeypatch):
    """VHT-042, VHD-006."""
    monkeypatch.setattr(module, "MOST_KNOWN", 1)
    monkeypatch.setattr(module, "GET_AT_MOST", 1)
    world = HealthWorld(*LIST)
    world.report(a=[SLOW], b=[SLOW])
    world.poll()
    assert world.queue.marks[poll_key(DRIVER).text]["known"] is None
    world.report()
    world.poll()
    assert (world.stored("a"), world.stored("b")) == ([], [])


@pytest.mark.parametrize("capabilities", [OLD_LIST, OLD_GET], ids=["list", "get"])
def test_vhd011_events_of_a_volume_condition(capabilities):
    """VHT-030, VHD-010, VHD-011.

    Each change causes one event; the status has the condition as well.
    """
    world = HealthWorld(*capabilities, reads_conditions=True)
    world.condition(a="a disk is slow")
    world.poll()
    assert world.events.seen == [WARNING]
    assert world.stored() == [{**STORED[0], "reason": "VolumeConditionAbnormal"}]
    world.poll()
    assert world.events.seen == []
    world.condition()
    world.poll()
    assert (world.events.seen, world.stored()) == ([RECOVERED], [])


@pytest.mark.parametrize("capabilities", [OLD_LIST, OLD_GET], ids=["list", "get"])
def test_vhd010_a_volume_without_a_condition_is_left_alone(capabilities):
    """VHT-031, VHD-010."""
    world = HealthWorld(*capabilities, stored=STORED, reads_conditions=True)
    world.condition(a=None)
    world.poll()
    assert (world.stored(), world.events.seen) == (STORED, [])


@BOTH
def test_csi_1_13_has_no_events_while_the_status_is_stored(capabilities):
    """VHT-029, VHD-012."""
    world = HealthWorld(*capabilities)
    for conditions in ({"a": [SLOW]}, {}):
        world.report(**conditions)
        world.poll()
        assert world.events.seen == []


@BOTH
def test_a_claim_made_again_is_not_the_volumes(capabilities):
    """VHT-004, VH-010: The UID in the claimRef counts."""
    world = HealthWorld(*capabilities)
    world.api.change(paths.CLAIMS, "a", {"metadata": {"uid": "other"}}, "n")
    world.report(a=[SLOW])
    world.poll()
    assert world.stored() == []


@BOTH
def test_a_refused_write_is_tried_at_the_next_poll(capabilities):
    """VHT-043, VH-011: The other claims are written."""
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW], b=[SLOW])
    world.api.fail("patch", "persistentvolumeclaims/a", ForbiddenError(403, "Forbidden", "no"))
    world.poll()
    assert (world.stored("a"), world.stored("b")) == ([], STORED)
    world.poll()
    assert world.stored("a") == STORED


def test_a_refused_recovery_is_tried_at_the_next_poll():
    """VHT-044, VH-011."""
    world = HealthWorld(*LIST, stored=STORED)
    world.report()
    world.api.fail("patch", "persistentvolumeclaims/a", ForbiddenError(403, "Forbidden", "no"))
    world.poll()
    world.poll()
    assert world.stored() == []


def test_vh050_probes_are_counted():
    """VHT-047, VH-050."""
    world = HealthWorld(*GET)
    world.report(a=[SLOW])
    world.client.respond({"ControllerGetVolumeHealth:hb": [{"code": "INTERNAL"}]})
    world.poll()
    for result in ("success", "error"):
        labels = {"method": "ControllerGetVolumeHealth", "result": result}
        assert world.value("csi_volume_health_probe_total", **labels) == 1
    assert world.value("csi_controller_volume_health_status", status="Degraded") == 1
    assert world.value("csi_controller_volume_health_status", status="DataLoss") == 0
