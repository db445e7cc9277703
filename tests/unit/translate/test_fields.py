"""Reading objects of any shape raises a clear AttemptError, never KeyError or TypeError."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.translate_objects import make_claim
from workers.errors import AttemptError, IgnoredError, State
from workers.translate import claims, clones, snapshots, sources, volumes
from workers.translate.fields import (
    describe,
    flag,
    has_finalizer,
    object_list,
    optional_mapping,
    optional_text,
    text,
    text_list,
    text_map,
    value_at,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("obj", [{}, {"spec": None}, {"spec": {}}, {"spec": {"name": None}}])
def test_null_anywhere_counts_as_absent(obj):
    assert optional_text(obj, "spec", "name") is None
    assert text(obj, "spec", "name") == ""
    assert text_list(obj, "spec", "name") == []
    assert text_map(obj, "spec", "name") == {}
    assert object_list(obj, "spec", "name") == []
    assert flag(obj, "spec", "name") is False
    assert optional_mapping(obj, "spec", "name") is None


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (text, 5, "field spec.x is a number, expected a string"),
        (text, 5.5, "field spec.x is a number, expected a string"),
        (text, ["a"], "field spec.x is a list, expected a string"),
        (flag, "true", "field spec.x is a string, expected a boolean"),
        (text_list, "abc", "field spec.x is a string, expected a list"),
        (text_list, [1], "field spec.x.[] is a number, expected a string"),
        (text_map, [], "field spec.x is a list, expected an object"),
        (text_map, {"k": True}, "field spec.x.k is a boolean, expected a string"),
        (object_list, ["a"], "field spec.x.[] is a string, expected an object"),
        (optional_mapping, "a", "field spec.x is a string, expected an object"),
    ],
)
def test_a_field_of_another_type_is_named(read, value, message):
    claim = make_claim(x=value)
    with pytest.raises(AttemptError) as caught:
        read(claim, "spec", "x")
    assert caught.value.message == f"PersistentVolumeClaim fake-ns/fake-pvc: {message}"
    assert caught.value.state is State.NO_CHANGE


def test_what_lies_above_the_field_is_named_too():
    with pytest.raises(AttemptError, match="object: field spec is a string, expected an object"):
        value_at({"spec": "hello"}, "spec", "name")


def test_copies_are_returned():
    obj = {"l": ["a"], "m": {"b": "1", "a": None}}
    text_list(obj, "l").append("b")
    text_map(obj, "m")["c"] = "2"
    assert obj == {"l": ["a"], "m": {"b": "1", "a": None}}
    assert list(text_map(obj, "m").items()) == [("a", ""), ("b", "1")]


@pytest.mark.parametrize(
    ("obj", "name"),
    [
        ({}, "object"),
        (None, "object"),
        ({"kind": "PersistentVolume", "metadata": {"name": "v"}}, "PersistentVolume v"),
        ({"metadata": "x"}, "object"),
    ],
)
def test_objects_are_named_as_far_as_known(obj, name):
    assert describe(obj) == name


def test_finalizers_of_an_object_without_any():
    assert not has_finalizer({}, "f")
    assert has_finalizer({"metadata": {"finalizers": ["e", "f"]}}, "f")


SOURCE = sources.DataSource("VolumeSnapshot", "s", "", "ns", "ns", "c")
READERS = [
    claims.claim_class_name,
    lambda o: claims.should_provision(o, o, known_names={"d"}),
    lambda o: claims.check_qualifies(o, "d"),
    claims.check_selector,
    claims.selected_node,
    claims.requested_bytes,
    claims.access_modes,
    claims.claim_reference,
    lambda o: sources.normalise(o, cross_namespace=True),
    lambda o: snapshots.content_name(SOURCE, o),
    lambda o: snapshots.content_source(
        SOURCE, snapshot=o, content=o, claim=o, class_name="", driver_name="d"
    ),
    lambda o: clones.source_volume_name(SOURCE, o, o),
    lambda o: clones.content_source(
        SOURCE, source_claim=o, source_volume=o, claim=o, driver_name="d"
    ),
    lambda o: volumes.is_ours(o, {"d"}),
    volumes.finalizer_action,
    volumes.should_delete,
    volumes.volume_handle,
    volumes.deletion_secret,
    lambda o: volumes.deletion_secret_of_class(o, o),
]
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "kind": JSON,
        "metadata": JSON
        | st.dictionaries(
            st.sampled_from(["name", "annotations", "finalizers", "deletionTimestamp"]), JSON
        ),
        "spec": JSON
        | st.dictionaries(
            st.sampled_from(
                ["volumeName", "storageClassName", "accessModes", "resources", "dataSource", "csi"]
            ),
            JSON,
        ),
        "status": JSON | st.dictionaries(st.sampled_from(["phase", "readyToUse"]), JSON),
        "parameters": JSON,
    },
)


@given(st.sampled_from(READERS), FIELDS)
def test_objects_of_any_shape_end_in_our_errors_only(read, obj):
    """Hostile or foreign objects must not crash the worker's thread (contract of part C)."""
    with suppress(AttemptError, IgnoredError):
        read(obj)
