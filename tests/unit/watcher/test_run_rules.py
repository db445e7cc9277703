"""The whole watcher: when it does what, what it reports about itself, and how it ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.watcher.test_run import FakeRedis, make
from watcher import run
from watcher.counting import CountingSink
from watcher.machine import Stream
from watcher.run import recovery_seconds
from workers.kube import paths
from workers.kube.objects import Claim
from workers.observability.metrics import Metrics
from workers.queue.keys import claim_key
from workers.spec import Scope

KEY = claim_key("d", "ns", "one", "u1")


@pytest.mark.parametrize(("resync", "seconds"), [(0, 60), (30, 30), (60, 60), (900, 60)], ids=str)
def test_m010_lost_attempts_are_looked_for_each_minute_or_oftener(resync, seconds):
    """M-010 step 6: this also happens without a resync."""
    assert recovery_seconds(resync) == seconds


@pytest.mark.parametrize(("seconds", "has_resync"), [(0, False), (900, True)])
def test_a_resync_may_be_switched_off(seconds, has_resync):
    """`--resync-period=0` disables only this loop; the others always start, in this order."""
    loops = ["outbox", "keeper", "recovery", "history", "prune", "old kinds"]
    loops += ["resync"] if has_resync else []
    assert list(make(FakeRedis(), resync_seconds=seconds).loops) == loops


class FakeLoop:
    """A loop that only records its calls."""

    def __init__(self, name="", told=None, *, is_failing=False, problem=""):
        self.name, self.told = name, [] if told is None else told
        self.is_failing, self.problem = is_failing, problem

    def __getattr__(self, what):
        return lambda *with_: self.told.append((self.name, what, *with_))


def following(error="", is_synced=True):
    health = SimpleNamespace(error=error, is_synced=is_synced, is_watching=not error)
    return SimpleNamespace(health=health)


DOWN = {"is_failing": True, "problem": "redis: away"}


@pytest.mark.parametrize(
    ("keeper", "outbox", "reflectors", "text"),
    [
        pytest.param({}, {}, {"a": following()}, "", id="all well"),
        pytest.param({}, {}, {}, "waiting for Redis", id="not seen yet"),
        pytest.param(
            DOWN, {}, {"a": following()}, "waiting for Redis: redis: away", id="the keeper fails"
        ),
        pytest.param(
            {}, DOWN, {"a": following()}, "waiting for Redis: redis: away", id="the outbox fails"
        ),
        pytest.param(
            {"is_failing": True}, {}, {"a": following()}, "waiting for Redis", id="nobody knows why"
        ),
        pytest.param(
            {}, {}, {"a": following(), "b": following("no right")}, "b: no right", id="an error"
        ),
        pytest.param(
            {},
            {},
            {"a": following(is_synced=False), "b": following("no right", is_synced=False)},
            "a: not listed yet; b: no right",
            id="two of them",
        ),
    ],
)
def test_readiness_says_what_keeps_events_from_the_queue(keeper, outbox, reflectors, text):
    """An operator reads this text in the answer of the probe."""
    watcher = make(FakeRedis())
    watcher.loops |= {"keeper": FakeLoop(**keeper), "outbox": FakeLoop(**outbox)}
    watcher.reflectors = reflectors
    assert watcher.check_ready() == text
    assert watcher.is_down is (bool(keeper) or bool(outbox))


@pytest.mark.parametrize(
    ("reflectors", "waits", "is_synced"),
    [
        pytest.param({"a": following()}, False, True, id="listed and sent"),
        pytest.param({}, False, False, id="nothing is followed"),
        pytest.param({"a": following(), "b": following(is_synced=False)}, False, False, id="lists"),
        pytest.param({"a": following()}, True, False, id="sends"),
    ],
)
def test_in_step_is_a_watcher_whose_lists_are_in_redis(reflectors, waits, is_synced):
    watcher = make(FakeRedis())
    watcher.reflectors = reflectors
    if waits:
        watcher.outbox.add([KEY])
    assert watcher.is_synced is is_synced


def test_a_stop_ends_every_thread_and_waits_no_longer_than_said(monkeypatch):
    """All threads are asked to stop before any is waited for, and no watch starts afterwards."""
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: 100.0))
    told, watcher = [], make(FakeRedis())
    watcher.loops = {name: FakeLoop(name, told) for name in "ab"}
    watcher.reflectors = {"c": FakeLoop("c", told)}
    watcher.stop(timeout_seconds=2.0)
    stops, joins = [(name, "stop") for name in "abc"], [(name, "join", 2.0) for name in "ab"]
    assert told == [*stops, *joins]
    stream = Stream("x", paths.CLAIMS, Claim, metadata_only=False, scope=Scope())
    assert watcher._follow(stream, None) is None
    assert list(watcher.reflectors) == ["c"]


@pytest.mark.parametrize("metrics", [None, Metrics()], ids=["uncounted", "counted"])
def test_what_is_followed_is_counted_where_there_are_metrics(monkeypatch, metrics):
    """Metrics use the plain resource name; liveness sees the thread under the stream's name."""
    made, told, sink = [], [], object()

    class Reflector:
        run = None

        def __init__(self, *arguments, **options):
            made.append((arguments, options))

    monkeypatch.setattr(run, "Reflector", Reflector)
    monkeypatch.setattr(run, "Loop", lambda name, *_, **__: FakeLoop(name, told))
    watcher = make(FakeRedis(), metrics=metrics)
    scope = Scope("ns1", "a=b")
    stream = Stream("claims ns1", paths.CLAIMS, Claim, metadata_only=True, scope=scope)
    told.clear()
    assert watcher._follow(stream, sink) is watcher.reflectors["claims ns1"]
    assert told == [("watch claims ns1", "start")]
    (_, path, kind, receiver), options = made[0]
    assert (path, kind) == ("/api/v1/namespaces/ns1/persistentvolumeclaims", Claim)
    assert (options["metadata_only"], options["label_selector"]) == (True, "a=b")
    assert (receiver is sink) is (metrics is None)
    assert isinstance(receiver, CountingSink) is (metrics is not None)
    options["on_progress"]()
    assert told[1:] == [("watch claims ns1", "beat")]


@pytest.fixture
def quiet(monkeypatch):
    """Return a watcher whose loops only record their calls, with no copy in a ConfigMap."""
    monkeypatch.setattr(run, "restore_intents", lambda *_: [])
    watcher = make(FakeRedis(), presence=SimpleNamespace(announce=lambda role: None))
    watcher.told = []
    watcher.loops = {name: FakeLoop(name, watcher.told) for name in watcher.loops}
    return watcher


def test_what_redis_may_have_lost_is_looked_for_at_once(quiet):
    """This covers attempts and the watcher's own presence, at the start and in each new epoch."""
    quiet.machine.begin = quiet.machine.relist_catalog = quiet.outbox.add_everything = lambda: None
    for is_first in (True, False):
        quiet.told.clear()
        quiet._redis_seen(is_first)
        assert sorted(quiet.told) == [("presence", "wake"), ("recovery", "wake")]


def test_m010_a_new_driver_s_attempts_are_looked_for(quiet):
    """M-010: only copies of known drivers are restored; a driver that left changes nothing."""
    quiet.machine.set_records = lambda records: setattr(quiet.machine, "records", records)
    for records, woken in ((["a"], 1), (["a"], 1), ([], 1), (["b"], 2)):
        quiet._drivers_changed({name: {} for name in records})
        assert quiet.told.count(("recovery", "wake")) == woken


def test_m010_records_without_a_key_get_theirs_back(monkeypatch):
    """M-010: each run uses the rules' own function for the claim of a volume."""
    told = []
    monkeypatch.setattr(run, "restore_intents", lambda *_: [])
    recovery = SimpleNamespace(run=told.append)
    watcher = make(FakeRedis(), recovery=recovery, resync_seconds=30)
    assert watcher._recover() == 30
    assert told == [watcher._keys_of_unsaved]


def test_m016_a_resync_adds_everything_undecided(monkeypatch):
    """M-016: this repeats every period."""
    watcher, told = make(FakeRedis(), resync_seconds=900), []
    monkeypatch.setattr(watcher.outbox, "add_everything", lambda: told.append(1))
    assert [watcher._resync() for _ in range(2)] == [900, 900]
    assert told == [1, 1]


def test_too_much_that_waited_leads_to_new_lists_of_all(quiet):
    """The cache is missing the dropped entries, so it is incomplete until they are listed."""
    told = []
    quiet.reflectors = {"a": object(), "b": object()}
    quiet._catalog = SimpleNamespace(mark_incomplete=lambda kinds: told.append(list(kinds)))
    quiet.machine = SimpleNamespace(catalog_kinds={"nodes": "a"}, relist=told.extend)
    quiet.outbox._on_cut()
    assert told == [["nodes"], "a", "b"]


@pytest.mark.parametrize(
    ("waits", "asked_for", "expected"),
    [
        pytest.param(False, [], ["classes", "nodes"], id="all that is written"),
        pytest.param(False, ["list-of-nodes"], ["classes"], id="a list is still to come"),
        pytest.param(False, ["list-of-nodes", "list-of-classes"], None, id="both are"),
        pytest.param(True, [], None, id="something waits to be sent"),
    ],
)
def test_cor4_a_kind_that_the_catalog_lacks_is_listed_again(quiet, waits, asked_for, expected):
    """COR-4: its source is listed again, unless a list of it is already on its way."""
    asked, listed = [], []

    def incomplete(kinds, epoch):
        asked.append((sorted(kinds), epoch))
        return ["classes"]

    quiet.keeper.epoch = "e1"
    quiet._catalog = SimpleNamespace(incomplete=incomplete)
    quiet.machine = SimpleNamespace(
        catalog_kinds={"classes": "list-of-classes", "nodes": "list-of-nodes"},
        is_asked=lambda name: name in asked_for,
        relist=listed.extend,
    )
    quiet.reflectors = {"list-of-classes": following(), "list-of-nodes": following("away")}
    if waits:
        quiet.outbox.add([KEY])
    quiet._check_catalog()
    assert asked == ([] if expected is None else [(expected, "e1")])
    assert listed == ([] if expected is None else ["list-of-classes"])
    # While something waits, this is reported after it.
    assert quiet.outbox._pending.fresh == (["classes"], "e1")
