"""Finalizer lists: which entries change and which stay."""

from __future__ import annotations

import pytest

from workers.kube.finalizers import added, removed, with_finalizer, without_finalizer


@pytest.mark.parametrize(
    ("change", "before", "after", "modified"),
    [
        pytest.param(removed, None, [], False, id="C-079 remove from nil"),
        pytest.param(removed, [], [], False, id="C-079 remove from empty"),
        pytest.param(removed, ["f"], [], True, id="C-079 remove only element"),
        pytest.param(removed, ["a", "f", "b"], ["a", "b"], True, id="C-079 remove one of many"),
        pytest.param(removed, ["a"], ["a"], False, id="C-079 remove absent"),
        pytest.param(added, None, ["f"], True, id="C-079 add to nil"),
        pytest.param(added, [], ["f"], True, id="C-079 add to empty"),
        pytest.param(added, ["a", "f"], ["a", "f"], False, id="C-079 add existing"),
        pytest.param(added, ["a"], ["a", "f"], True, id="C-079 add to others"),
    ],
)
def test_lists(change, before, after, modified):
    """The result is a new list, and the input is not modified."""
    original = None if before is None else list(before)
    result, is_modified = change(before, "f")
    assert (result, is_modified) == (after, modified)
    assert before == original
    assert result is not before


def test_objects_are_copied_not_changed():
    claim = {"metadata": {"name": "c", "finalizers": ["a"]}, "spec": {}}
    changed = with_finalizer(claim, "f")
    assert changed["metadata"] == {"name": "c", "finalizers": ["a", "f"]}
    assert claim["metadata"]["finalizers"] == ["a"]
    assert with_finalizer(changed, "f") is None
    assert without_finalizer(claim, "f") is None
    assert without_finalizer(changed, "f") == claim
