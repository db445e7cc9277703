"""Key text round-trips, whatever the object's name is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.queue.keys import Key, claim_key, lane_name, volume_key

PARTS = st.text(max_size=20)


@given(kind=st.text(min_size=1, max_size=8), driver=PARTS, object_=PARTS, uid=PARTS)
def test_text_round_trips(kind: str, driver: str, object_: str, uid: str) -> None:
    key = Key(kind, driver, object_, uid)
    assert Key.parse(key.text) == key
    assert key.text.startswith(key.lane + "|")


def test_readable_form_and_parts() -> None:
    key = claim_key("csi.example.com", "shop", "data", "u-1")
    assert key.text == "claims|csi.example.com|shop/data|u-1"
    assert (key.lane, key.tenant) == ("claims|csi.example.com", "shop")
    assert volume_key("d", "pvc-1").tenant == ""
    assert volume_key("d", "pvc-1", "shop").tenant == "shop"
    assert lane_name("volumes", "d") == volume_key("d", "pvc-1").lane


@pytest.mark.parametrize("text", ["", "a|b|c", "a|b|c|d|e", "|d|o|u"])
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a queue key"):
        Key.parse(text)
