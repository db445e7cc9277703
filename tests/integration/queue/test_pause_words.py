"""What an operator says of a class or driver holds, whatever happens in that moment (COR-14).

When a word was said and what it does reach Redis as one command, so that no other word can come
between: a pause within a resume was deleted for all workers, a resume within a pause forgotten.
"""

from __future__ import annotations

import pytest

from workers.queue.names import redis_key
from workers.queue.pauses import Pauses
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration

WORDS = {
    "pause a class": lambda pauses: pauses.pause_class("gold", "why"),
    "resume a class": lambda pauses: pauses.resume_class("gold"),
    "pause a driver": lambda pauses: pauses.pause_driver("d", "why"),
    "resume a driver": lambda pauses: pauses.resume_driver("d"),
}
NO_WORDS = {"HELLO", "CLIENT", "TIME", "HGETALL"}  # of a new connection, and reads
END = "the end"


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_a_word_is_one_command(redis_client, word):
    pauses = Pauses(redis_client, WorkQueue(redis_client, publish=print))
    pauses.pause_class("gold", "before")
    pauses.pause_driver("d", "before")
    seen = []
    with redis_client.monitor() as monitor:
        word(pauses)
        redis_client.echo(END)
        while (command := monitor.next_command())["command"] != f"ECHO {END}":
            if command["client_type"] != "lua":
                seen.append(command["command"].split()[0])
    assert len([name for name in seen if name not in NO_WORDS]) == 1, seen


def said_in_the_past(client, name, until_ms=1):
    """A pause whose time is over; 0: it has no end."""
    client.hset(redis_key(client, "class_pauses"), name, f"{until_ms} why")


def test_a_pause_said_while_an_old_one_ends_holds(redis_client, monkeypatch):
    """Any worker reads about once a second, also between the operator's word and its end."""
    said_in_the_past(redis_client, "fast")
    reads = redis_client.hgetall

    def read(name):
        found = reads(name)
        monkeypatch.setattr(redis_client, "hgetall", reads)
        Pauses(redis_client).pause_class("fast", "disaster: delete nothing")
        return found

    monkeypatch.setattr(redis_client, "hgetall", read)
    assert Pauses(redis_client).classes() == {}
    assert "fast" in Pauses(redis_client).classes()


@pytest.mark.parametrize(("until_ms", "is_paused"), [(0, True), (9 * 10**12, True), (1, False)])
def test_an_operator_is_told_whether_a_class_was_paused(redis_client, until_ms, is_paused):
    """A pause whose time is over is none; nothing of it is left afterwards."""
    said_in_the_past(redis_client, "fast", until_ms)
    pauses = Pauses(redis_client)
    assert pauses.resume_class("fast") is is_paused
    assert pauses.resume_class("fast") is False
    assert not redis_client.exists(redis_key(redis_client, "class_pauses"))
