"""Volume names, and the driver names that a worker accepts."""

from __future__ import annotations

import pytest

from tests.support.translate_objects import Attempt, make_claim, make_class
from workers.errors import AttemptError, State
from workers.translate.names import known_names, volume_name


@pytest.mark.parametrize(
    ("prefix", "length", "uid", "name"),
    [
        pytest.param("test", 5, "testid", "test-testi", id="T-001 fixture F"),
        pytest.param("test", -1, "a-b", "test-a-b", id="T-016 whole uid"),
        pytest.param("test", 3, "ab-cd-ef", "test-abc", id="T-016 dashes do not count"),
        pytest.param("pvc", 32, "9b2f0c1e-0000-4000-8000-000000000001",
                     "pvc-9b2f0c1e000040008000000000000001", id="T-016 all digits"),
    ],
)  # fmt: skip
def test_name_is_prefix_and_uid(prefix, length, uid, name):
    """P-121: the uid is shortened if a length is given, and then loses its dashes."""
    assert volume_name(prefix, length, uid) == name


def test_t014_claim_without_uid_is_final():
    attempt = Attempt()
    with pytest.raises(AttemptError, match=r"^corrupted PVC object, it is missing UID$") as caught:
        attempt.provision(make_claim(uid=""), make_class())
    assert caught.value.state is State.FINISHED
    assert attempt.request is None


def test_t015_empty_prefix():
    with pytest.raises(AttemptError, match=r"^volume name prefix cannot be of length 0$") as caught:
        volume_name("", -1, "u")
    assert caught.value.state is State.FINISHED


@pytest.mark.parametrize("length", [-2, 0, 7, 33])
def test_impossible_length_fails_the_attempt_and_not_the_process(length):
    """D-005: csi-provisioner panics, or with 0 gives every claim the same name."""
    with pytest.raises(AttemptError, match=f"UUID length {length} is not possible") as caught:
        volume_name("test", length, "testid")
    assert caught.value.state is State.FINISHED


def test_no_in_tree_name_is_not_the_empty_name():
    """A volume without any annotation must not match an absent in-tree name."""
    assert known_names("a") == {"a"}
    assert known_names("a", "b") == {"a", "b"}
