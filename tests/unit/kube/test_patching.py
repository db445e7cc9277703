"""A patch in memory has the same effect as at the API server."""

from __future__ import annotations

import pytest

from workers.kube.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from workers.kube.errors import ConflictError, InvalidError
from workers.kube.patching import patched

ITEM = {
    "metadata": {"uid": "u", "finalizers": ["a", "b"], "annotations": {"x": "1"}},
    "status": {"conditions": [{"type": "A", "status": "True", "reason": "r"}]},
}


@pytest.mark.parametrize(
    ("kind", "patch", "place", "after"),
    [
        (MERGE_PATCH, {"metadata": {"annotations": {"x": None}}}, "annotations", {}),
        (MERGE_PATCH, {"metadata": {"finalizers": ["c"]}}, "finalizers", ["c"]),
        (MERGE_PATCH, {"metadata": {"finalizers": None}}, "finalizers", None),
        (STRATEGIC_PATCH, {"metadata": {"finalizers": ["c"]}}, "finalizers", ["a", "b", "c"]),
        (
            STRATEGIC_PATCH,
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
            "finalizers",
            ["b"],
        ),
        (
            STRATEGIC_PATCH,
            {"metadata": {"$setElementOrder/finalizers": ["b", "a"], "labels": {"l": "1"}}},
            "labels",
            {"l": "1"},
        ),
        (
            JSON_PATCH,
            [
                {"op": "test", "path": "/metadata/annotations/x", "value": "1"},
                {"op": "add", "path": "/metadata/annotations/a~1b", "value": "2"},
            ],
            "annotations",
            {"x": "1", "a/b": "2"},
        ),
        (JSON_PATCH, [{"op": "remove", "path": "/metadata/finalizers/0"}], "finalizers", ["b"]),
        (
            JSON_PATCH,
            [{"op": "add", "path": "/metadata/finalizers/-", "value": "c"}],
            "finalizers",
            ["a", "b", "c"],
        ),
        (
            JSON_PATCH,
            [{"op": "replace", "path": "/metadata/finalizers/1", "value": "c"}],
            "finalizers",
            ["a", "c"],
        ),
    ],
)
def test_metadata_after_a_patch(kind, patch, place, after):
    """Lists are replaced, merged or edited, depending on the kind of patch."""
    result = patched(ITEM, patch, kind)
    assert result["metadata"].get(place) == after
    assert ITEM["metadata"]["finalizers"] == ["a", "b"], "the given object is left alone"


def test_conditions_are_merged_by_type():
    """The type is the API server's merge key for conditions."""
    change = {"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B"}]}}
    assert patched(ITEM, change, STRATEGIC_PATCH)["status"]["conditions"] == [
        {"type": "A", "status": "False", "reason": "r"},
        {"type": "B"},
    ]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/metadata/uid", "value": "v"},
        {"op": "test", "path": "/metadata/finalizers/0", "value": "b"},
        {"op": "remove", "path": "/metadata/labels"},
        {"op": "replace", "path": "/metadata/labels", "value": {}},
        {"op": "remove", "path": "/metadata/finalizers/7"},
        {"op": "add", "path": "/metadata/nothing/here", "value": 1},
    ],
)
def test_json_patch_that_does_not_fit(operation):
    """The error is the server's 422."""
    with pytest.raises(InvalidError):
        patched(ITEM, [operation], JSON_PATCH)


def test_another_object_of_that_name():
    """A uid in a merge patch is a precondition."""
    with pytest.raises(ConflictError):
        patched(ITEM, {"metadata": {"uid": "v"}}, MERGE_PATCH)
