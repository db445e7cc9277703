"""Redis may hold anything, so texts and numbers are read with care."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.queue.scripts import (
    GROWING,
    Scripts,
    script_names,
    text,
    whole,
)


@pytest.mark.parametrize(
    ("value", "shown"), [(None, ""), (b"a", "a"), ("b", "b"), (b"\xffx", "\\xffx"), (b"", "")]
)
def test_a_reply_as_text(value, shown):
    assert text(value) == shown


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((None, None), (b"", None), (b"0", 0), ("12", 12), (b"007", 7)),
        *((b"-1", None), (b"1.5", None), (b"1e3", None), (" 1", None)),
        pytest.param("\u0663", None, id="a digit of another script"),
        pytest.param("\u00b2", None, id="a square"),
        pytest.param(b"9" * 19, 10**19 - 1, id="64 bits"),
        pytest.param(b"9" * 20, None, id="more than 64 bits"),
    ],
)
def test_a_number_is_one_that_we_write(value, number):
    assert whole(value) == number


@pytest.mark.parametrize("name", script_names())
def test_where_memory_is_full_only_what_brings_new_work_is_refused(name):
    """Redis itself refuses a function without the flag `allow-oom`."""
    function = Scripts(SimpleNamespace())._function(name)
    assert function.endswith("_always") is (name not in GROWING)


def test_each_life_of_redis_has_a_name_of_its_own():
    scripts = Scripts(SimpleNamespace())
    assert scripts.new_life() != scripts.new_life()
