"""Between passes in one slot: which lease is given back, and how often."""

from __future__ import annotations

import pytest

from tests.unit.engine.frame_world import NOT_BEGUN, Following, World, follower
from workers.engine.outcome import done
from workers.queue.keys import Key


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_what_fails_when_asked_to_stay_leaves_no_lease(world, error, nth):
    Following(world, *(follower(Key("work", "d", f"a/{n}", "v")) for n in range(5)))
    calls = []

    def may_stay(_tenant):
        calls.append(1)
        if len(calls) == nth:
            raise error("x")
        return True

    world.context.cpu.may_stay = may_stay
    with pytest.raises(error):
        world.run(done())
    assert len(world.seen) == nth
    assert world.queue.ended[nth:] == [NOT_BEGUN]
    assert world.context.seats.taken("d") == 0
    assert world.context.cpu._inside == 0
