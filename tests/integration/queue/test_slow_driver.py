"""COR-2: a driver that needs longer per volume than a call waits is slow, not dead (issue 15)."""

from __future__ import annotations

import pytest

from tests.support.slow_driver import SlowDriver

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("away", [(0.0, 0.0), (100.0, 104.0)], ids=["well", "restarted"])
@pytest.mark.parametrize("rate", [1, 3])
def test_the_breaker_costs_a_slow_driver_nothing(redis_client, rate, away):
    """15 s per volume, --timeout=10s, 300 s: at least 98 % done, the worst within twice."""
    without = SlowDriver(redis_client, rate, away=away, has_breaker=False).run()
    redis_client.flushall()
    found = SlowDriver(redis_client, rate, away=away).run()
    assert without.done > 0.9 * without.claims
    assert found.done >= 0.98 * without.done
    assert found.worst <= 2 * without.worst
