"""The locks of keys that nobody has seen yet, as a script will spell them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.queue.keys import Key
from workers.queue.lockrules import lock_rule
from workers.queue.locks import Lock, Mode
from workers.translate.names import volume_name

UID = "3f2b8c1e-7a64-4d0f-9b35-0c1d2e3f4a5b"


@pytest.mark.parametrize(
    ("locks", "rule"),
    [
        pytest.param(lambda key: [Lock(key.object)], "k x:\1", id="object"),
        pytest.param(lambda key: [Lock(f"pvc-{key.uid}")], "k x:pvc-\2", id="uid"),
        pytest.param(lambda key: [Lock("a b", Mode.SHARED)], "k s:a%20b", id="neither"),
        pytest.param(lambda _: [], "k", id="none"),
        pytest.param(
            lambda key: [Lock(f"{key.driver}#{key.object}"), Lock(key.uid, Mode.SHARED)],
            "k x:d#\1 s:\2",
            id="several",
        ),
        pytest.param(lambda key: [Lock(key.uid[:5])], "k -", id="cut"),
        pytest.param(lambda key: [Lock(key.uid.replace("-", ""))], "k -", id="changed"),
        pytest.param(lambda key: [Lock(key.object.upper())], "k -", id="in capitals"),
        pytest.param(lambda key: [Lock(key.object[::-1])], "k -", id="backwards"),
    ],
)
def test_a_rule_is_what_a_controller_says_of_marks(locks, rule):
    assert lock_rule("k", "d", locks) == rule


@given(st.integers(-1, 32), st.sampled_from(["pvc", "a-b", "x y"]))
def test_p121_a_claims_lock_has_a_rule_where_its_uid_is_not_cut(length, prefix):
    """Whatever the flags say: a rule never names another volume than the claim's own."""

    def locks(key):
        try:
            return [Lock(volume_name(prefix, length, key.uid))]
        except Exception:  # noqa: BLE001 - as claim_volume does
            return [Lock(f"claim:{key.uid}")]

    rule = lock_rule("claims", "d", locks)
    (wanted,) = locks(Key("claims", "d", "ns/a", UID))
    assert rule in {"claims -", "claims " + wanted.text.replace(UID, "\2")}
    assert (rule == "claims -") is (length >= 1)
