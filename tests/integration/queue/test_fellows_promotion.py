"""A promoted replica that lags has the workers of some time ago, not those that work now."""

from __future__ import annotations

import pytest

from tests.support.redis_sentinel import ReplicatedRedis
from tests.support.waiting import let_pass, wait_until
from workers.errors import QueueUnavailable
from workers.queue.connection import connect
from workers.queue.fellows import LeaseFellows

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("began", ["after the replica was cut", "before"])
def test_a_lagging_replica_hides_a_fellow(redis_binary, tmp_path, began):
    """A worker is not the last one on a lagging replica,
    where the fellow's entry is missing or has expired.
    """
    with ReplicatedRedis(redis_binary, tmp_path) as replicated:
        client = connect(replicated.url)
        one, two = (LeaseFellows(client, settle_seconds=1) for _ in range(2))
        one.works("lease", "w1", 60)
        if began == "before":
            two.works("lease", "w2", 1)
        let_pass(1.5)
        replicated.cut_replicas()
        two.works("lease", "w2", 60)  # it is allowed to work for a minute from now
        before = replicated.kill_master()
        replicated.wait_promoted(before)

        def said():
            try:
                one.works("lease", "w1", 60)
            except QueueUnavailable:
                return False
            return True

        wait_until(said, 30, "the new master answers")
        assert not one.is_last("lease", "w1"), "the other works"
