"""The records of shadow mode: bounded, checked when read, and separate for each driver."""

from __future__ import annotations

import json

import pytest

from workers.queue import shadows
from workers.queue.names import NAMES
from workers.queue.shadows import SYSTEM, Shadows

DRIVER, PATH = "d.example.org", "/api/v1/persistentvolumes/pvc-1"
MONTH = 30 * 86_400
FAMILIES = ("shadow_open", "shadow_known", "shadow_counts", "shadow_notes")


@pytest.fixture
def store(redis_client):
    return Shadows(redis_client)


def record(uid=None, at=1.0):
    base = None if uid is None else {"metadata": {"uid": uid}}
    return {"base": base, "wanted": None, "calls": [{"method": "m"}], "at": at}


def note(at=1.0):
    return {"at": at, "found": ["it"]}


@pytest.mark.parametrize(("driver", "name"), [(DRIVER, DRIVER), ("", SYSTEM)])
def test_each_driver_has_records_of_its_own(store, driver, name):
    """Each driver has its own records, and so have
    objects without a driver, under a reserved name.
    """
    store.put(driver, PATH, record("u"))
    store.put(driver, "/other", record("u", 0.5))
    assert store.find(driver, PATH) == store.find(name, PATH) == record("u")
    assert store.open(driver) == store.open(name) == {PATH: record("u"), "/other": record("u", 0.5)}
    assert [one["path"] for one in store.waiting(name)] == ["/other", PATH]
    assert store.is_known(driver, PATH)
    assert store.is_known(name, PATH)
    assert store.close(driver, PATH, "differs", note())
    assert store.close(name, "/other", "agrees", None)
    store.tell(driver, "/third", "unforeseen", None)
    told = {
        "counts": {"differs": 1, "agrees": 1, "unforeseen": 1},
        "open": 0,
        "differences": [{"path": PATH, "verdict": "differs", **note()}],
    }
    assert store.report(driver) == store.report(name) == told
    assert store.drivers() == [name]
    assert store.is_known(driver, "/third"), "judged though it was not foreseen"
    assert not store.is_known("another", PATH)
    assert (store.find("another", PATH), store.open("another")) == (None, {})


def test_a_verdict_counts_once_and_an_agreement_leaves_no_note(store):
    store.put(DRIVER, PATH, record())
    assert store.close(DRIVER, PATH, "agrees", None)
    assert not store.close(DRIVER, PATH, "differs", note())
    assert store.report(DRIVER) == {"counts": {"agrees": 1}, "open": 0, "differences": []}


@pytest.mark.parametrize("act", ["put", "tell", "count", "close"])
def test_all_records_end_a_month_after_the_last(store, redis_client, act):
    """All records expire a month after the last change, so
    a removed shadow installation leaves nothing behind.
    """
    store.put(DRIVER, PATH, record())
    store.tell(DRIVER, PATH, "differs", note())
    names = [NAMES[family].full + DRIVER for family in FAMILIES]
    for name in names:
        assert MONTH - 60 < redis_client.ttl(name) <= MONTH
        redis_client.expire(name, 60)
    {
        "put": lambda: store.put(DRIVER, PATH, record()),
        "tell": lambda: store.tell(DRIVER, PATH, "differs", note()),
        "count": lambda: store.count(DRIVER, "dropped"),
        "close": lambda: store.close(DRIVER, PATH, "agrees", None),
    }[act]()
    renewed = {name.split(":")[1] for name in names if redis_client.ttl(name) > 60}
    assert (
        renewed
        == {
            "put": {"shadow_open", "shadow_known"},
            "tell": {"shadow_known", "shadow_counts", "shadow_notes"},
            "count": {"shadow_counts"},
            "close": {"shadow_known", "shadow_counts"},
        }[act]
    )


ITEM = {"metadata": {"uid": "u"}}


@pytest.mark.parametrize(
    ("known", "base", "kept"),
    [
        pytest.param({"base": ITEM}, {**ITEM, "x": 1}, ITEM, id="the same object: the earlier"),
        pytest.param({"base": None}, ITEM, None, id="it was not there yet"),
        pytest.param({"base": {"metadata": {"uid": "v"}}}, ITEM, ITEM, id="another of that name"),
        pytest.param({"base": ITEM}, None, None, id="gone meanwhile"),
        pytest.param({"base": "text"}, ITEM, ITEM, id="no object"),
        pytest.param({"base": {"metadata": "text"}}, ITEM, ITEM, id="no metadata"),
        pytest.param({"base": {"metadata": {}}}, {"metadata": {}}, {"metadata": {}}, id="no uid"),
        pytest.param({"base": {"a": 1, "metadata": {}}}, {"metadata": {}},
            {"a": 1, "metadata": {}}, id="neither has a uid"),
        pytest.param("{oops", ITEM, ITEM, id="unreadable"),
    ],
)  # fmt: skip
def test_of_an_open_prediction_the_base_stays_while_it_is_the_same_object(
    store, redis_client, known, base, kept
):
    value = known if isinstance(known, str) else json.dumps({**record(), **known})
    redis_client.hset(NAMES["shadow_open"].full + DRIVER, PATH, value)
    store.put(DRIVER, PATH, {**record(), "base": base, "at": 2.0})
    written = json.loads(redis_client.hget(NAMES["shadow_open"].full + DRIVER, PATH))
    assert (written["base"], written["at"]) == (kept, 2.0)


@pytest.mark.parametrize("driver", [DRIVER, ""])
def test_no_more_than_so_many_wait_but_an_open_one_is_replaced(store, monkeypatch, driver):
    """The number of open predictions is limited, because a sidecar that hangs must not fill Redis.

    An open prediction can be replaced.
    """
    monkeypatch.setattr(shadows, "MOST_OPEN", 2)
    for path in ("/a", "/b", "/c", "/a"):
        store.put(driver, path, record(at=3.0))
    assert store.open(driver).keys() == {"/a", "/b"}
    assert store.report(driver)["counts"] == {"dropped": 1}
    assert not store.is_known(driver, "/c")


def test_only_the_last_differences_are_kept_and_shown(store, redis_client, monkeypatch):
    monkeypatch.setattr(shadows, "MOST_NOTES", 3)
    for number in range(5):
        store.tell(DRIVER, f"/{number}", "differs", note())
        store.put(DRIVER, f"/{number}", record(at=number))
    assert redis_client.llen(NAMES["shadow_notes"].full + DRIVER) == 3
    assert [one["path"] for one in store.waiting(DRIVER)] == ["/0", "/1", "/2"]
    monkeypatch.setattr(shadows, "MOST_NOTES", 2)
    shown = [one["path"] for one in store.report(DRIVER)["differences"]]
    assert shown == ["/4", "/3"], "the newest first"


@pytest.mark.parametrize(
    "value",
    [
        "{oops",
        "{}",
        json.dumps({**record(), "at": "soon"}),
        json.dumps({**record(), "calls": [{}]}),
        json.dumps({**record(), "base": {}}),
    ],
)
def test_what_is_no_prediction_is_not_told(store, redis_client, value):
    store.put(DRIVER, "/good", record())
    redis_client.hset(NAMES["shadow_open"].full + DRIVER, PATH, value)
    assert store.find(DRIVER, PATH) is None
    redis_client.hset(NAMES["shadow_open"].full + DRIVER, PATH, value)
    assert store.open(DRIVER) == {"/good": record()}


def test_a_count_that_is_no_number_is_none(store, redis_client):
    counts = NAMES["shadow_counts"].full + DRIVER
    redis_client.hset(counts, mapping={"agrees": "x", "differs": "7"})
    assert store.report(DRIVER)["counts"] == {"agrees": 0, "differs": 7}
    assert store.drivers() == [DRIVER]
