"""Migration cases recorded from csi-provisioner, recomputed from their own inputs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.migration_records import records
from workers.errors import AttemptError
from workers.migration.classes import is_migrated, translate_class
from workers.migration.plugins import in_tree_name, in_tree_source, of_driver
from workers.migration.to_csi import volume_to_csi
from workers.migration.to_in_tree import volume_to_in_tree

Json = dict[str, Any]

CASES: list[Json] = records()
PREFIX = "csi.storage.k8s.io/"


def sent(case: Json, method: str) -> Json | None:
    """Return the first request of one method."""
    return next((call for call in case["requests"] if call["method"] == method), None)


def unreserved(parameters: Json | None) -> Json:
    """Return the parameters without the reserved keys, which are handled elsewhere (P-126)."""
    return {k: v for k, v in (parameters or {}).items() if not k.startswith(PREFIX)}


def parameters_of(case: Json) -> Json:
    """Return the parameters the driver must get; P-602 decides if the class is translated."""
    storage_class: Json = case["storage_class"]
    if is_migrated(storage_class, case["driver"]):
        storage_class = translate_class(storage_class, storage_class["provisioner"])
    return unreserved(storage_class.get("parameters"))


def csi_form(case: Json) -> Json:
    """Return the volume of P-170 that results from the driver's answer, before translation."""
    request = sent(case, "CreateVolume")
    assert request is not None
    answer = case["answer"]
    csi: Json = {
        "driver": case["driver"],
        "volumeHandle": answer["volume_id"],
        "volumeAttributes": dict(answer.get("volume_context", {})),
    }
    fs_type = request["volume_capabilities"][0]["mount"].get("fs_type")
    if fs_type:
        csi["fsType"] = fs_type
    topologies = answer.get("accessible_topology") or []
    if topologies == "preferred0":
        topologies = [request["accessibility_requirements"]["preferred"][0]["segments"]]
    spec: Json = {"csi": csi}
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]}
                for key, value in sorted(segments.items())
            ]
        }
        for segments in topologies
    ]
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": request["name"]}, "spec": spec}


def comparable(pv: Json, driver: str) -> Json:
    """Return what translation decides about a volume; the order of expressions has no meaning."""
    plugin = of_driver(driver)
    assert plugin is not None
    required = pv["spec"].get("nodeAffinity", {}).get("required", {})
    annotation = "kubernetes.io/azure-file-resource-group"
    return {
        "csi": pv["spec"].get("csi"),
        "source": pv["spec"].get(plugin.source_field),
        "labels": pv["metadata"].get("labels", {}),
        "resource_group": pv["metadata"].get("annotations", {}).get(annotation),
        "terms": [
            sorted(term["matchExpressions"], key=lambda expression: str(expression["key"]))
            for term in required.get("nodeSelectorTerms", [])
        ],
    }


def only(cases: list[Json]) -> pytest.MarkDecorator:
    """Return a mark that runs the test once per case."""
    assert cases
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["id"])


CREATED = [case for case in CASES if sent(case, "CreateVolume")]
MIGRATED = [c for c in CREATED if is_migrated(c["storage_class"], c["driver"])]
STORED = [case for case in MIGRATED if case["volumes"]]
UNTRANSLATABLE = [case for case in MIGRATED if not case["volumes"]]
REFUSED = [case for case in CASES if case["failures"] and case not in CREATED]
DELETED = [case for case in CASES if sent(case, "DeleteVolume")]


@only(CREATED)
def test_the_driver_sees_the_recorded_parameters(case: Json) -> None:
    """P-602, P-603: this includes the native class, which is not translated (T-182)."""
    request = sent(case, "CreateVolume")
    assert request is not None
    assert parameters_of(case) == unreserved(request.get("parameters"))


@only(STORED)
def test_the_recorded_volume_is_stored(case: Json) -> None:
    """P-606..P-608: source, labels, affinity and annotation match."""
    stored = volume_to_in_tree(csi_form(case), case["driver"])
    expected = comparable(case["volumes"][0], case["driver"])
    assert comparable(stored, case["driver"]) == expected


@only(DELETED)
def test_the_recorded_volume_is_deleted(case: Json) -> None:
    """P-610..P-612: the handle built from the stored volume matches."""
    request = sent(case, "DeleteVolume")
    assert request is not None
    pv = case["volumes"][0]
    assert in_tree_source(pv) == in_tree_name(case["driver"])
    csi = volume_to_csi(pv)["spec"]["csi"]
    assert (csi["driver"], csi["volumeHandle"]) == (case["driver"], request["volume_id"])


@only(UNTRANSLATABLE)
def test_an_untranslatable_answer_gives_the_recorded_error(case: Json) -> None:
    """P-605: the error is the text of the event."""
    with pytest.raises(AttemptError) as caught:
        volume_to_in_tree(csi_form(case), case["driver"])
    # The recorded text shortens the dump of the volume in the same way.
    message = re.sub(r"PV:\{TypeMeta:.*?\}\. Error", "PV:<PV>. Error", caught.value.message)
    assert [message] == case["failures"]


@only(REFUSED)
def test_a_refused_class_gives_the_recorded_error(case: Json) -> None:
    """P-604: no CreateVolume was sent."""
    with pytest.raises(AttemptError) as caught:
        translate_class(case["storage_class"], case["storage_class"]["provisioner"])
    assert [caught.value.message] == case["failures"]


def test_every_recorded_case_is_looked_at() -> None:
    """A new record must belong to one of the groups above."""
    looked_at = {case["id"] for group in (CREATED, REFUSED, DELETED) for case in group}
    assert looked_at == {case["id"] for case in CASES}
