"""A CreateSnapshot that only looks whether a reported snapshot is ready makes one all the same.

"A call whose process died, or whose connection broke, may make the snapshot once more after its
deletion; so that waits for the call's deadline" (docs/snapshots.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.unit.controllers.snapshotter.test_crash_points import Life
from tests.unit.controllers.snapshotter.test_overtaken_calls import dies_in_its_call, quick

BROKEN = CsiError(errors.UNAVAILABLE, "Socket closed", from_transport=True)


def breaks(life: Life) -> Any:
    """The connection breaks while the driver works; returns what lets the driver end that call."""
    out: list[Any] = []
    client, call = life.world.client, life.world.client.call

    def begun(_method: str, request: Any, *_args: Any, **_kwargs: Any) -> Any:
        out.append(request)
        raise BROKEN

    client.call = begun  # type: ignore[method-assign]
    life.world.run_content()
    client.call = call  # type: ignore[method-assign]
    return lambda: life.storage.create(out[0])


@pytest.mark.parametrize("is_ready_first", [True, False])
@pytest.mark.parametrize("unheard", [dies_in_its_call, breaks], ids=["dead", "broken"])
def test_a_look_without_an_end_is_waited_for(unheard, is_ready_first):
    life = Life(["uploading"])
    life.world.run_content()
    assert life.world.content()["status"]["snapshotHandle"] == "id-1"
    ends = unheard(life)
    if is_ready_first:
        life.world.run_content()
        assert life.world.content()["status"]["readyToUse"] is True
    life.user_deletes()
    quick(life)
    ends()  # within its deadline
    quick(life)
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"
