"""An attachment vanishes without its detach (DA-033) while the API server is unavailable."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.unit.controllers.attacher.test_vanishing import (  # noqa: F401 - the fixture is used
    PUBLISH,
    UNPUBLISH,
    VA,
    clock,
    drop,
    new_world,
)
from workers.errors import ApiError
from workers.kube.errors import ServerError

AWAY = ServerError(503, "ServiceUnavailable", "restarting")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_da033_the_api_server_is_away_when_its_end_is_asked_for(number, monkeypatch):
    """The object is gone before its status is written, and `number` reads of it return 503."""
    world = new_world()
    key = world.add_attachment()
    reach = world.api._reach
    left, gone = [number], []

    def told(verb, path, body=None):
        if verb == "patch" and path.endswith(f"{VA}/status") and not gone:
            gone.append(True)
            drop(world)
        elif verb == "get" and path.endswith(VA) and gone and left[0]:
            left[0] -= 1
            raise AWAY
        reach(verb, path, body)

    monkeypatch.setattr(world.api, "_reach", told)
    for _ in range(4):  # the engine retries a second later
        with suppress(ApiError):
            world.run(key)
    assert gone
    assert world.calls[0] == PUBLISH
    assert world.calls[-1] == UNPUBLISH, "nobody takes it off any more"
