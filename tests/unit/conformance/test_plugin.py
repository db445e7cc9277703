"""The conformance kit detects the typical mistakes of careless plug-in authors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from workers.conformance.faults import Faulty, LostAnswer
from workers.conformance.plugin import check_provisioner
from workers.conformance.report import Check, Finding, Report, Skipped, Verdict, run_checks
from workers.custom import ProvisionError, ProvisionResult


class Good:
    name = "example.com/good"
    volumes: set[str] = set()  # noqa: RUF012 - the storage, shared by all instances

    def provision(self, options):
        if set(options.parameters) - {"type"}:
            raise ProvisionError("unknown parameter")
        self.volumes.add(options.pv_name)
        return ProvisionResult(self.volume(options))

    def volume(self, options) -> dict[str, Any]:
        return {
            "metadata": {"name": options.pv_name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": {"path": f"/data/{options.pv_name}"},
            },
        }

    def delete(self, volume):
        self.volumes.discard(volume["metadata"]["name"])


class Small(Good):
    def volume(self, options):
        volume = super().volume(options)
        volume["spec"]["capacity"]["storage"] = "1Mi"
        return volume


class Nameless(Good):
    def volume(self, options):
        return super().volume(options) | {"metadata": {"name": "data"}}


class Sourceless(Good):
    def volume(self, options):
        volume = super().volume(options)
        del volume["spec"]["hostPath"]
        return volume


class Keeping(Good):
    def volume(self, options):
        volume = super().volume(options)
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
        return volume


class Changing(Good):
    def provision(self, options):
        options.claim["spec"]["accessModes"].append("x")
        return super().provision(options)


class Forgetful(Good):
    def volume(self, options):
        volume = super().volume(options)
        volume["spec"]["hostPath"]["path"] = f"/data/{uuid.uuid4()}"
        return volume


class Shared(Good):
    def volume(self, options):
        volume = super().volume(options)
        volume["spec"]["hostPath"]["path"] = "/data"
        return volume


class Strict(Good):
    def delete(self, volume):
        self.volumes.remove(volume["metadata"]["name"])


class Jealous(Good):
    def provision(self, options):
        if options.pv_name in self.volumes:
            raise ProvisionError("exists already")
        return super().provision(options)


class Careless(Good):
    def provision(self, options):
        if options.parameters:
            options.parameters["type"]
        return super().provision(options)


CARELESS = [
    pytest.param(Small, {"pv-shape"}, id="too small"),
    pytest.param(Nameless, {"pv-shape"}, id="own name"),
    pytest.param(Sourceless, {"pv-shape", "provision-two-claims"}, id="no source"),
    pytest.param(Keeping, {"pv-shape"}, id="own policy"),
    pytest.param(Changing, {"inputs-unchanged"}, id="changes its inputs"),
    pytest.param(
        Forgetful,
        {
            "provision-repeat",
            "provision-lost-answer",
            "provision-concurrent",
            "delete-then-provision",
        },
        id="a new place each time",
    ),
    pytest.param(Shared, {"provision-two-claims"}, id="one place for all"),
    pytest.param(Strict, {"delete-repeat"}, id="delete fails when gone"),
    pytest.param(
        Jealous,
        {"provision-repeat", "provision-lost-answer", "provision-concurrent"},
        id="provision fails when there",
    ),
    pytest.param(Careless, {"wrong-class"}, id="bare exception"),
]


def test_a_good_plugin_breaks_nothing():
    report = check_provisioner(Good)
    assert report.broken == [], report.text()
    assert Good.volumes == set()


@pytest.mark.parametrize(("plugin", "expected"), CARELESS)
def test_each_mistake_is_found(plugin, expected):
    plugin.volumes = set()
    assert {one.check for one in check_provisioner(plugin).broken} == expected


def test_a_lost_answer_was_work_done():
    done = []
    lossy = Faulty(done.append, errors=[OSError("away")], lose_answers=1)
    with pytest.raises(OSError, match="away"):
        lossy(1)
    with pytest.raises(LostAnswer):
        lossy(2)
    lossy(3)
    assert (done, lossy.calls) == ([2, 3], 3)


def test_the_report_tells_everything_once():
    def skip(_):
        raise Skipped("not here")

    def crash(_):
        raise KeyError("x")

    checks = [Check("a", "why a", print), Check("b", "why b", skip), Check("c", "why c", crash)]
    report = run_checks(checks, "thing", object)
    assert report.findings == [
        Finding("a", Verdict.PASSED),
        Finding("b", Verdict.SKIPPED, "not here"),
        Finding("c", Verdict.BROKEN, "KeyError: 'x'. why c"),
    ]
    text = report.text()
    assert "1 ok, 1 BROKEN, 1 skipped" in text
    assert "KeyError: 'x'. why c" in text
    assert Report("x").broken == []
