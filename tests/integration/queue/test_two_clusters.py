"""Two clusters share one Redis: each uses its own names, and neither sees the other's keys."""

from __future__ import annotations

from tests.support.taking import take
from workers.queue.connection import connect
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key
from workers.queue.names import Names
from workers.queue.pauses import Pauses
from workers.queue.periods import Periods
from workers.queue.workqueue import WorkQueue

KEY = claim_key("d", "default", "data", "uid-1")
OTHER = Names("csifleet-b:")


def make_queue(client, woken):
    queue = WorkQueue(client, publish=woken.extend)
    queue.register_process()
    queue.set_limits(KEY.lane, 1)
    return queue


def test_neither_sees_the_others_work(redis_client, redis_server):
    with connect(redis_server.unix_url, names=OTHER) as second:
        mine, others = [], []
        ours, theirs = make_queue(redis_client, mine), make_queue(second, others)
        ours.add([KEY])
        assert (mine, others) == (["drv.d"], [])
        assert take(ours, KEY) is not None
        assert theirs.stats()[KEY.lane].running == 0
        theirs.add([KEY])
        assert others == ["csifleet-b:drv.d"]
        assert take(theirs, KEY) is not None, "the same key runs in both"
        IntentStore(second, driver="d").put("pv", {"key": KEY.text})
        assert IntentStore(redis_client, driver="d").get("pv") is None
        assert Periods(second).is_due("sweep", 60)
        assert Periods(redis_client).is_due("sweep", 60)
        theirs.mirror_pauses("1", {"class gold": "0 maintenance"})
        assert Pauses(second).classes().keys() == {"gold"}
        assert Pauses(redis_client).classes() == {}
        for name in second.scan_iter(match="csifleet-b:*"):
            second.delete(name)
