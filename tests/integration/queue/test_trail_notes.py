"""Each step of a key leaves a note with its time, the only source of `csi-fleet explain`."""

from __future__ import annotations

import pytest

from tests.support.taking import take
from workers.queue.holding import owner_of
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, claim_key
from workers.queue.locks import Lock
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts

START = 1_700_000_000_000
HOLDER = claim_key("d", "ns", "holder", "uid-holder")


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


def told(bench, name="a") -> list[str]:
    """Return the notes of a claim, oldest first."""
    notes = f"{NAMES['trail'].full}claims|ns/{name}|uid-{name}"
    return [raw.decode() for raw in bench.client.lrange(notes, 0, -1)]


@pytest.fixture
def queue(start_queue):
    return start_queue()


# The script's arguments after the owner and "next", and the notes that the script writes.
ENDS = {
    "done": (("done", "", "", ""), ["done"]),
    "failed": (("fail", 1000, 9000, 0, 0, ""), ["failed 1 1000"]),
    "given up": (("fail", 1000, 9000, 0, 2, ""), ["failed 2 -1"]),
    "later": (("release", 2000, 0), ["released 2000"]),
    "at once": (("release", 0, 0), ["released 0", "queued"]),
    "busy": (("block", "x:held"), ["released 0", f"blocked {HOLDER.text}"]),
    "free again": (("block", "x:free"), ["released 0", "queued"]),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_pass_is_told_from_its_first_add_to_how_it_ended(bench, queue, how):
    """The notes of the pass carry their ages; a note without an age is left out."""
    scripts = Scripts(bench.client, lambda: bench.now_ms)
    queue.add([HOLDER])
    assert bench.run_next(queue, "held")
    queue.add([claim("a")])
    bench.advance(1)
    lease = bench.run_next(queue)
    if how == "given up":
        bench.client.hset(NAMES["fails"].full, claim("a").text, 2)
    bench.advance(2)
    (name, *args), ending = ENDS[how]
    scripts.run(name, *owner_of(lease), 0, *args, "250 rpc CreateVolume OK", "without an age")
    assert told(bench) == [
        f"{START} queued",
        f"{START + 1000} taken {lease.session.process_id}",
        f"{START + 2750} rpc CreateVolume OK",
        *(f"{START + 3000} {note}" for note in ending),
    ]


def test_the_way_back_after_a_failure_is_a_retry(bench, queue):
    queue.add([claim("a")])
    queue.fail(bench.run_next(queue), base_seconds=1, cap_seconds=1)
    bench.advance(1)
    queue.pump(period_seconds=0)
    assert told(bench)[-1] == f"{START + 1000} queued retry"


def test_a_key_that_finds_its_lock_busy_tells_who_holds_it(bench, queue):
    queue.add([claim("a"), claim("b")])
    assert bench.run_next(queue, "pv")
    assert take(queue, claim("b"), Lock("pv")) is None
    assert told(bench, "b") == [f"{START} queued", f"{START} blocked {claim('a').text}"]


@pytest.mark.parametrize("how", ["closed", "died", "broken"])
def test_a_lease_that_was_taken_back_tells_whose_it_was(bench, start_queue, how):
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    lease = bench.run_next(one)
    process = lease.session.process_id
    if how == "closed":
        one.close()
    elif how == "broken":
        bench.client.hset(NAMES["leases"].full, claim("a").text, "no lease")
        process = ""
    else:
        bench.advance(4.1)
    two.pump(period_seconds=0)
    assert told(bench)[2:] == [f"{bench.now_ms} lost {process}", f"{bench.now_ms} queued"]


def test_a_lease_that_came_back_after_a_loss_of_data_tells_so(bench, queue):
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    bench.client.flushall()
    queue.heartbeat()
    assert told(bench) == [f"{START} restored {lease.session.process_id}"]


def test_an_intent_is_told_of_a_key_only(bench, queue):
    """An intent without a key, as recovery writes some, leaves no note."""
    store = IntentStore(bench.client, driver="d")
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    store.begin("pvc-a", {"stage": "calling"}, lease)
    assert [note.partition(" ")[2] for note in told(bench)][2:] == ["intent"]
    store.put("pvc-a", {"stage": "failed"}, lease)  # this begins no call
    assert [note.partition(" ")[2] for note in told(bench)][2:] == ["intent"]
    store.begin("pvc-b", {"stage": "calling"})
    assert len(bench.client.keys(NAMES["trail"].full + "*")) == 1
