"""Go's spelling of values inside messages."""

from __future__ import annotations

import pytest

from workers.translate.go_text import parse_bool, quote, quote_list


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", '""'),
        ("plain", '"plain"'),
        ('a"b', '"a\\"b"'),
        ("a\\b", '"a\\\\b"'),
        ("a\nb\tc\r", '"a\\nb\\tc\\r"'),
        ("\a\b\f\v", '"\\a\\b\\f\\v"'),
        ("\x00\x7f\x80", '"\\x00\\x7f\\u0080"'),
        ("\u00e9\u4e16", '"\u00e9\u4e16"'),
        ("\u00a0\u200b", '"\\u00a0\\u200b"'),
        ("\U000e0001", '"\\U000e0001"'),
        ("it's", '"it\'s"'),
    ],
)
def test_quote_is_go_strconv_quote(text, quoted):
    assert quote(text) == quoted


def test_list_of_quoted_texts_has_no_commas():
    """P-135: the form is `["a" "b"]`."""
    assert quote_list(["a", "b"]) == '["a" "b"]'
    assert quote_list([]) == "[]"


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_true_spellings(text):
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_false_spellings(text):
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "tRUE", " true", "2"])
def test_other_spellings_are_refused_in_gos_words(text):
    with pytest.raises(ValueError) as caught:
        parse_bool(text)
    assert str(caught.value) == f'strconv.ParseBool: parsing "{text}": invalid syntax'
