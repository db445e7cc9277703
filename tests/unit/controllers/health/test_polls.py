"""Polls of one driver against an API server in memory, one after the other."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from csi_client.errors import UNAVAILABLE, CsiError
from tests.support.fake_context import DRIVER, FakeWorld
from workers.controllers.health import controller as module
from workers.controllers.health.controller import CONTROLLER
from workers.controllers.health.reading import Way, way_of
from workers.controllers.health.rules import poll_key
from workers.controllers.health.settings import HealthSettings
from workers.kube import paths
from workers.kube.errors import ForbiddenError

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
    """Claims a and b with the handles ha and hb; the driver finds all volumes healthy."""

    def __init__(self, *capabilities, is_dropped=False, stored=None, **settings):
        super().__init__(
            capabilities=capabilities,
            settings={"health": replace(HealthSettings(), **settings)},
        )
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
        """What the driver says from now on, by CSI 1.13: `a=[SLOW]`."""
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
        """What the driver says by CSI 1.12: `a="text"` is abnormal, None says nothing."""
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
        """One poll; forgets earlier requests, calls and events."""
        self.api.requests.clear()
        self.client.calls.clear()
        self.events.seen.clear()
        return self.sync(CONTROLLER, poll_key(DRIVER)).reason

    def stored(self, name="a"):
        """The conditions in the claim's status."""
        claim = self.api.of(paths.CLAIMS, name, "n")
        return (claim["status"].get("healthStatus") or {}).get("healthConditions", [])

    def value(self, name, **labels):
        """A metric's value."""
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
    world = HealthWorld(*capabilities, reads_conditions=reads_conditions)
    settings = replace(HealthSettings(), reads_conditions=reads_conditions)
    assert way_of(world.driver, settings) is way
    assert CONTROLLER.serves(world.driver) is (way is not None)
    periods = [one.every_seconds for one in CONTROLLER.periodic(world.context, world.driver)]
    assert periods == ([] if way is None else [300 if way.is_list else 60])


@BOTH
def test_vh030_a_condition_is_stored_once(capabilities):
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW])
    world.poll()
    assert (world.stored("a"), world.stored("b")) == (STORED, [])
    world.poll()
    assert world.api.writes == []


@BOTH
def test_vh031_a_changed_message_is_written(capabilities):
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW])
    world.poll()
    world.report(a=[{**SLOW, "message": "slower"}])
    world.poll()
    assert world.stored()[0]["message"] == "slower"


@BOTH
def test_vh011_a_report_replaces_what_is_stored(capabilities):
    world = HealthWorld(*capabilities, stored=STORED)
    world.report(a=[GONE])
    world.poll()
    assert [one["reason"] for one in world.stored()] == ["NotFound"]


@BOTH
def test_vh022_recovery_is_written_at_once(capabilities):
    """By a list, the driver confirms it."""
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW])
    world.poll()
    world.report()
    world.poll()
    assert world.stored() == []
    assert world.client.methods[-1] == "ControllerGetVolumeHealth"


@BOTH
def test_vh012_what_an_earlier_process_stored_recovers_too(capabilities):
    """Nothing is remembered: the first poll reads all claims."""
    world = HealthWorld(*capabilities, stored=STORED)
    world.report()
    world.poll()
    assert world.stored() == []


def test_vh012_a_listed_volume_without_conditions_has_recovered():
    world = HealthWorld(*LIST, stored=STORED)
    world.report(a=[])
    world.poll()
    assert (world.stored(), world.client.methods) == ([], ["ControllerListVolumeHealth"])


def test_vh012_a_missing_volume_that_is_not_healthy_is_kept():
    world = HealthWorld(*LIST, stored=STORED)
    world.report(a=[SLOW])
    world.client.respond({"ControllerListVolumeHealth": [{}]})
    world.poll()
    assert (world.stored(), world.api.writes) == (STORED, [])


@pytest.mark.parametrize("capabilities", [("LIST_VOLUME_HEALTH",), OLD_LIST])
def test_vh012_two_lists_without_the_volume(capabilities):
    """A driver that cannot be asked about one volume."""
    world = HealthWorld(*capabilities, stored=STORED, reads_conditions=True)
    world.report()
    world.condition(a="missing")
    world.poll()
    assert world.stored() == STORED
    world.poll()
    assert world.stored() == []


def test_vh012_a_volume_that_comes_back_is_not_missing():
    world = HealthWorld("LIST_VOLUME_HEALTH", stored=STORED)
    for conditions in ({}, {"a": [SLOW]}, {}):
        world.report(**conditions)
        world.poll()
        assert world.stored() == STORED


@pytest.mark.parametrize("capabilities", [LIST, GET, OLD_LIST, OLD_GET])
@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL", "NOT_FOUND", "UNIMPLEMENTED"])
def test_vh013_a_failed_call_is_no_recovery(capabilities, code):
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
    world = HealthWorld(*LIST, stored=STORED)
    pages = {"": {"entries": [], "next_token": "2"}, "2": {"code": "ABORTED"}}
    world.client.respond({"ControllerListVolumeHealth": [{"pages": pages}]})
    assert world.poll() == "listing failed"
    assert world.stored() == STORED


def test_vh013_a_repeated_page_token_ends_the_list():
    world = HealthWorld(*LIST, stored=STORED)
    pages = {"": {"next_token": "2"}, "2": {"next_token": "2"}}
    world.client.respond({"ControllerListVolumeHealth": [{"pages": pages}]})
    assert world.poll() == "listing failed"


def test_all_pages_count():
    world = HealthWorld(*LIST)
    entry = {"volume_id": "ha", "health_statuses": [SLOW]}
    pages = {"": {"next_token": "2"}, "2": {"entries": [entry]}}
    world.client.respond({"ControllerListVolumeHealth": [{"pages": pages}]})
    world.poll()
    assert world.stored() == STORED


@BOTH
def test_vh023_an_unknown_type_is_an_event_once(capabilities):
    """Beside a known one, which is stored."""
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
    world = HealthWorld(*capabilities, stored=STORED)
    world.report(a=[{"status": 99, "reason": "New"}])
    world.poll()
    assert world.stored() == []


@BOTH
def test_vh032_a_dropped_field_is_noticed(capabilities):
    """VHD-002, VHD-012: one write, then none for half an hour; events show the change."""
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
    """The first poll has to read the claims once."""
    world = HealthWorld(*LIST)
    world.report()
    world.poll()
    assert world.poll() == "all volumes are healthy"
    assert world.api.requests == []


def test_vhd004_a_driver_that_does_not_answer_is_left_alone():
    world = HealthWorld(*GET, worker_threads=1)
    world.client.respond({"ControllerGetVolumeHealth": [CsiError(UNAVAILABLE, "away")]})
    world.poll()
    assert len(world.client.calls) == 1


def test_a_driver_is_asked_about_as_many_volumes_at_once_as_its_limits_allow():
    """`serial: true` is a limit of one for each operation."""
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
    monkeypatch.setattr(module, "MOST_KNOWN", 1)
    monkeypatch.setattr(module, "GET_AT_MOST", 1)
    world = HealthWorld(*LIST)
    world.report(a=[SLOW], b=[SLOW])
    world.poll()
    assert "known" not in world.queue.marks.get(poll_key(DRIVER).text, {})
    world.report()
    world.poll()
    assert (world.stored("a"), world.stored("b")) == ([], [])


@pytest.mark.parametrize("capabilities", [OLD_LIST, OLD_GET], ids=["list", "get"])
def test_vhd011_events_of_a_volume_condition(capabilities):
    """One for each change; the status holds it as well."""
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
    world = HealthWorld(*capabilities, stored=STORED, reads_conditions=True)
    world.condition(a=None)
    world.poll()
    assert (world.stored(), world.events.seen) == (STORED, [])


@BOTH
def test_csi_1_13_has_no_events_while_the_status_is_stored(capabilities):
    world = HealthWorld(*capabilities)
    for conditions in ({"a": [SLOW]}, {}):
        world.report(**conditions)
        world.poll()
        assert world.events.seen == []


@BOTH
def test_a_claim_made_again_is_not_the_volumes(capabilities):
    """VH-010: the uid of the claimRef counts."""
    world = HealthWorld(*capabilities)
    world.api.change(paths.CLAIMS, "a", {"metadata": {"uid": "other"}}, "n")
    world.report(a=[SLOW])
    world.poll()
    assert world.stored() == []


@BOTH
def test_a_refused_write_is_tried_at_the_next_poll(capabilities):
    """The other claims are written."""
    world = HealthWorld(*capabilities)
    world.report(a=[SLOW], b=[SLOW])
    world.api.fail("patch", "persistentvolumeclaims/a", ForbiddenError(403, "Forbidden", "no"))
    world.poll()
    assert (world.stored("a"), world.stored("b")) == ([], STORED)
    world.poll()
    assert world.stored("a") == STORED


def test_a_refused_recovery_is_tried_at_the_next_poll():
    world = HealthWorld(*LIST, stored=STORED)
    world.report()
    world.api.fail("patch", "persistentvolumeclaims/a", ForbiddenError(403, "Forbidden", "no"))
    world.poll()
    world.poll()
    assert world.stored() == []


def test_vh050_probes_are_counted():
    world = HealthWorld(*GET)
    world.report(a=[SLOW])
    world.client.respond({"ControllerGetVolumeHealth:hb": [{"code": "INTERNAL"}]})
    world.poll()
    for result in ("success", "error"):
        labels = {"method": "ControllerGetVolumeHealth", "result": result}
        assert world.value("csi_volume_health_probe_total", **labels) == 1
    assert world.value("csi_controller_volume_health_status", status="Degraded") == 1
    assert world.value("csi_controller_volume_health_status", status="DataLoss") == 0
