"""Verdicts on a case with a shadow next to the sidecar: agreement, difference, not comparable."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from tests.support import shadow_parity
from tests.support.shadow_agreement import agreement_of

PV = "/api/v1/persistentvolumes/pvc-1"
REQUEST = {"name": "pvc-1", "capacity_range": {"required_bytes": 1073741824}, "secrets": "***"}
CREATE = {"method": "CreateVolume", "request": REQUEST}
SPEC = {"csi": {"driver": "d", "volumeHandle": "h"}}
VOLUME = {"metadata": {"name": "pvc-1", "uid": "u", "resourceVersion": "1"}, "spec": SPEC}


def asked(request=None, *, method="CreateVolume", code="OK", has_volume=False):
    """A call as the runner's driver logs it: numbers as text, secrets in full."""
    request = request or {
        "name": "pvc-1",
        "capacity_range": {"required_bytes": "1073741824"},
        "secrets": {"key": "value"},
    }
    return {"method": method, "request": request, "code": code, "has_volume": has_volume}


def waiting(base=None, wanted=VOLUME, calls=(CREATE,)):
    calls = [{**one, "method": f"Controller/{one['method']}"} for one in calls]
    return {"path": PV, "base": base, "wanted": wanted, "calls": calls, "at": 0.0}


def case(*, agrees=0, notes=(), open_=(), live=None, **told):
    """The runner's file of one case."""
    report = {"counts": {"agrees": agrees}, "differences": list(notes), "waiting": list(open_)}
    return {
        "id": "basic-01",
        "recorded": {},
        "unlike": [],
        "shadow": {
            "exit_code": None,
            "handshake": ["Probe", "GetPluginInfo"],
            "called": [],
            "would": [],
            "asked": [],
            "wrote": [],
            "foreseen": [],
            "report": {"d": report},
            "live": {PV: live},
            **told,
        },
    }


def test_equal_requests_and_objects_agree():
    """Numbers and secrets have two spellings, which are not a difference."""
    found = agreement_of(case(would=[CREATE, CREATE], asked=[asked(), asked()], agrees=1))
    assert (found.verdict, found.compared) == ("agrees", 2)


def test_both_doing_nothing_agree():
    """This is a claim that neither of them provisions."""
    assert agreement_of(case()).verdict == "agrees"


@pytest.mark.parametrize(
    ("told", "difference"),
    [
        pytest.param(
            {
                "would": [{**CREATE, "request": {**REQUEST, "parameters": {"a": "b"}}}],
                "asked": [asked()],
            },
            "CreateVolume pvc-1: parameters.a: b, -",
            id="another request",
        ),
        pytest.param(
            {"would": [CREATE]}, "CreateVolume pvc-1: not asked by the sidecar", id="ours alone"
        ),
        pytest.param({"asked": [asked()]}, "unforeseen: CreateVolume pvc-1", id="theirs alone"),
        pytest.param(
            {"asked": [asked({"volume_id": "h"}, method="DeleteVolume", has_volume=True)]},
            "unforeseen: DeleteVolume h",
            id="a deletion of theirs alone",
        ),
        pytest.param({"wrote": [PV]}, f"unforeseen write: {PV}", id="a write of theirs alone"),
        pytest.param(
            {"notes": [{"verdict": "differs", "path": PV, "found": ["a: 1, 2"]}]},
            f"differs {PV}: a: 1, 2",
            id="the report's",
        ),
        pytest.param({"open_": [waiting(calls=())]}, f"open {PV}: not done", id="nobody asked"),
        pytest.param(
            {
                "open_": [waiting(VOLUME, None)],
                "would": [CREATE],
                "asked": [asked()],
                "live": VOLUME,
            },
            f"open {PV}: not done",
            id="the driver is done, the object is not gone",
        ),
    ],
)
def test_a_difference_is_told(told, difference):
    """One side does something that the other does not do, or does differently."""
    found = agreement_of(case(**told))
    assert (found.verdict, found.differences) == ("differs", [difference])


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(
            {"open_": [waiting()], "would": [CREATE], "asked": [asked(code="INTERNAL")]},
            id="the driver failed",
        ),
        pytest.param(
            {"open_": [waiting()], "would": [CREATE], "asked": [asked()]}, id="answer not taken"
        ),
        pytest.param(
            {
                "would": [CREATE],
                "asked": [asked(), asked({"volume_id": "h"}, method="DeleteVolume")],
            },
            id="a refused volume is deleted again",
        ),
        pytest.param(
            {
                "would": [CREATE],
                "asked": [
                    asked(code="INTERNAL"),
                    asked({"name": "pvc-1", "parameters": {"n": "2"}}),
                ],
            },
            id="asked otherwise after an error",
        ),
    ],
)
def test_what_follows_from_the_drivers_answer_is_no_difference(told):
    """A shadow never gets that answer; the request before it was the same."""
    found = agreement_of(case(**told))
    assert (found.verdict, found.compared, len(found.drivers)) == ("agrees", 1, 1)


def test_open_prediction_that_came_true_agrees():
    """The judge runs every two seconds, and a case may end in between."""
    found = agreement_of(case(open_=[waiting()], live=deepcopy(VOLUME)))
    assert (found.verdict, found.compared) == ("agrees", 1)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"called": [asked()]}, id="called the driver"),
        pytest.param({"handshake": ["NodeGetInfo"]}, id="asked more than it may"),
        pytest.param({"exit_code": 1}, id="ended"),
    ],
)
def test_what_a_shadow_must_never_do(told):
    """Each of these actions fails the run, even if everything else agrees."""
    assert agreement_of(case(would=[CREATE], asked=[asked()], **told)).verdict == "broken"


def test_a_sidecar_disturbed_by_its_shadow_is_told():
    """The sidecar's calls and objects must equal those of the record."""
    assert agreement_of({**case(), "unlike": [".pv: unexpected"]}).verdict == "broken"


def test_node_deployment_is_refused():
    """The reason is in docs/shadow.md: What it cannot show."""
    found = agreement_of({**case(exit_code=2), "flags": {"node-deployment": "true"}})
    assert (found.verdict, found.refused) == ("not comparable", "node deployment")


def test_capacity_is_not_comparable():
    """The driver's answer determines all of it."""
    found = agreement_of(case(asked=[asked({"parameters": {}}, method="GetCapacity")]))
    assert found.verdict == "not comparable"


def test_differences_need_an_id_of_the_page(monkeypatch):
    """A record names its own defect, and the table names others; the page must have the id."""
    found = agreement_of(case(wrote=[PV]))
    assert shadow_parity.unnamed(found) == found.differences
    found.defect = "D-001"
    assert shadow_parity.unnamed(found) == []
    found.defect = ""
    monkeypatch.setattr(shadow_parity, "NAMED", (("basic-.*", "unforeseen write", "D-999"),))
    assert shadow_parity.unnamed(found) == found.differences


def test_only_writes_of_the_shadow_are_told():
    """They come from the API server's audit log."""

    def entry(verb, user="shadow", group=""):
        return json.dumps(
            {
                "verb": verb,
                "user": {"username": user},
                "requestURI": "/x",
                "objectRef": {"apiGroup": group},
            }
        )

    lines = [
        entry("watch"),
        entry("create", "admin"),
        entry("create", group="authorization.k8s.io"),
    ]
    assert shadow_parity.written([*lines, entry("patch")]) == ["patch /x"]


def test_table_has_the_counts_and_the_ids(tmp_path, monkeypatch):
    """Text outside the marks is kept."""
    page = tmp_path / "shadow.md"
    page.write_text(f"before\n{shadow_parity.BEGIN}\nold\n{shadow_parity.END}\nafter\n")
    monkeypatch.setattr(shadow_parity, "PAGE", page)
    good, bad = agreement_of(case(would=[CREATE], asked=[asked()])), agreement_of(case(wrote=[PV]))
    bad.case, bad.defect = "basic-02", "D-001"
    shadow_parity.write_table([good, bad])
    text = page.read_text()
    assert "| basic | 2 | 1 | 1 | 0 | 1 |" in text
    assert "- basic-02: D-001" in text
    assert "old" not in text
    assert (text[:6], text[-6:]) == ("before", "after\n")
