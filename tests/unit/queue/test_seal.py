"""SEC-2: a record that no csi-fleet worker wrote is refused, wherever it was copied from."""

from __future__ import annotations

import pytest

from workers.config.load import parse
from workers.errors import ConfigError
from workers.queue.seal import UNCHECKED, Seal, content, new_key

OLD, NEW = "0" * 64, "1" * 64
RECORD = b'{"key": "a:b"}'


def stored(*lines, tenant="team-a"):
    return Seal.of_lines(lines).close("intents", "pvc-1", tenant, RECORD)


@pytest.mark.parametrize(
    ("lines", "value", "is_ours"),
    [
        pytest.param([NEW], stored(NEW), True, id="ours"),
        pytest.param([NEW], stored(OLD), False, id="another key's"),
        pytest.param([NEW, OLD], stored(OLD), True, id="the key of before, kept for a while"),
        pytest.param([NEW], stored(), False, id="unsigned"),
        pytest.param([NEW], RECORD, False, id="of a release without seals"),
        pytest.param([NEW, "unsigned"], RECORD, True, id="the same while workers change over"),
        pytest.param([NEW, "unsigned"], stored(OLD), False, id="signed by others all the same"),
        pytest.param([], stored(), True, id="nobody has a key"),
        pytest.param([], stored(NEW), True, id="who has no key, a tool of an operator, cannot say"),
        pytest.param([NEW], b"", False, id="nothing"),
        pytest.param([NEW], b":::", False, id="no record"),
        pytest.param([NEW], stored(NEW)[:-1] + b" ", False, id="one byte changed"),
        pytest.param([NEW], stored(NEW).replace(b"team-a", b"team-b"), False, id="another tenant"),
    ],
)  # fmt: skip
def test_what_counts(lines, value, is_ours):
    assert Seal.of_lines(lines).is_ours("intents", "pvc-1", value) is is_ours


@pytest.mark.parametrize(("place", "name"), [("unsaved", "pvc-1"), ("intents", "pvc-2")])
def test_a_record_counts_only_where_it_was_written(place, name):
    assert not Seal.of_lines([NEW]).is_ours(place, name, stored(NEW))


def test_parts_of_a_record_cannot_be_moved_into_its_name():
    """Two ways to split the same text never have the same MAC."""
    seal = Seal.of_lines([NEW])
    one = seal.close("intents", "pvc-1", "a", b"{}")
    assert not seal.is_ours("intents", "pvc", one.replace(b":a:", b":-1a:"))


@pytest.mark.parametrize("value", [stored(NEW), stored(), RECORD])
def test_who_only_looks_reads_all(value):
    assert content(value) == RECORD
    assert UNCHECKED.is_ours("intents", "pvc-1", stored()) is True


def test_keys_come_from_a_file_and_are_not_shown(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{NEW}\n\n{OLD}\nunsigned\n")
    argv = ["--redis-url=redis://localhost", f"--records-key-file={path}"]
    settings = parse("worker", argv, {})
    assert settings.redis.record_keys == (NEW, OLD, "unsigned")
    assert NEW not in repr(settings)
    assert NEW not in repr(Seal.of_lines(settings.redis.record_keys))


def test_each_start_makes_its_own():
    assert new_key() != new_key()
    assert Seal.of_lines([new_key()]).is_strict


@pytest.mark.parametrize(
    ("lines", "is_strict"),
    [([], False), (["", " "], False), (["unsigned"], False), ([NEW], True), ([f" {NEW} "], True),
     ([NEW, OLD], True), ([NEW, "unsigned"], False)],
)  # fmt: skip
def test_records_without_a_mac_are_refused_by_who_has_keys_only(lines, is_strict):
    seal = Seal.of_lines(lines)
    assert (seal.is_strict, UNCHECKED.is_strict) == (is_strict, False)
    assert seal.is_ours("intents", "pvc-1", RECORD) is not is_strict


def test_a_short_key_is_refused():
    environ = {"CSI_FLEET_REDIS_URL": "redis://localhost", "CSI_FLEET_RECORDS_KEY": "secret"}
    with pytest.raises(ConfigError, match="shorter than 32 characters"):
        parse("worker", [], environ)


def test_a_worker_with_a_password_but_no_key_says_what_that_means():
    environ = {"CSI_FLEET_REDIS_URL": "redis://:hush@localhost"}
    assert "records in Redis are not signed" in "".join(parse("worker", [], environ).warnings)
