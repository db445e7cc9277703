"""docs/architecture.md, "The way of a claim": the Redis column lists the commands Redis gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.crash_world import DRIVER, UID, CrashWorld
from workers.engine.steps import Step
from workers.queue.keys import claim_key
from workers.queue.names import PREFIX

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
KEY = claim_key(DRIVER, "default", "data", UID)
READS = {"EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HSCAN"}
READS |= {"MGET", "SCARD", "SISMEMBER", "SMEMBERS", "TTL", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANK"}
READS |= {"ZRANGEBYLEX", "ZRANGEBYSCORE", "ZSCORE", "ZMSCORE", "TYPE", "TIME", "LRANGE"}
# Commands since the previous mark belong to these rows of the table.
ROWS = {
    "add": (4, 5),
    Step.RECORD_INTENT: (8,),
    Step.CREATE_VOLUME: (10,),
    Step.RECORD_VOLUME: (),
    Step.SAVE_VOLUME: (11,),
    Step.FORGET_INTENT: (12,),
    Step.FINISH_KEY: (),
    "end": (13,),
}


def written_by_the_page(row: int) -> set[str]:
    """Return the keys and key families that a row names as written or removed from."""
    (line,) = re.findall(rf"^\| {row} \|.*$", PAGE.read_text("utf-8"), re.MULTILINE)
    cell = re.split(r"(?<!\\)\|", line)[4]
    written = re.sub(r"\(.*?\)", "", cell).partition("reads ")[0]
    return {name.partition(":")[0] for name in re.findall(r"`([^`]+)`", written)}


@pytest.fixture
def told(redis_client) -> dict[str, set[str]]:
    """Return csi-fleet's keys that were written up to each mark while one claim is processed."""
    world = CrashWorld(redis_client)
    world.add_claim()
    owner = world.owner()
    reach = owner.runtime.effects.steps.reach

    def marked(step, lease):
        redis_client.echo(f"MARK {step}")
        reach(step, lease)

    owner.runtime.effects.steps.reach = marked
    found: dict[str, set[str]] = {}
    with redis_client.monitor() as monitor:
        world.watcher_queue().add_events({KEY: "7"})
        redis_client.echo("MARK add")
        world._work(owner, world.messages.pop())
        redis_client.echo("MARK end")
        written: set[str] = set()
        while "end" not in found:
            verb, _, rest = monitor.next_command()["command"].partition(" ")
            if verb == "ECHO":
                found[rest.removeprefix("MARK ")], written = written, set()
            elif rest.startswith(f"{PREFIX}clock "):
                pass  # written by whichever script runs 250 ms after the last write
            elif verb not in READS and rest.startswith(PREFIX):
                written.add(re.split("[: ]", rest.removeprefix(PREFIX))[0])
    return found


def test_the_page_tells_which_keys_a_claim_touches(told):
    expected = {
        str(mark): {name for row in rows for name in written_by_the_page(row)}
        for mark, rows in ROWS.items()
    }
    assert told == expected
