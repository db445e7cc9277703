"""A CreateSnapshot that only polls a reported snapshot can still make one.

"A call whose process died, or whose connection broke, may make the snapshot once more after its
deletion. So the deletion waits for the call's deadline" (docs/snapshots.md).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.unit.controllers.snapshotter.test_crash_points import Life
from tests.unit.controllers.snapshotter.test_overtaken_calls import (
    dies_in_its_call,
    leaves_nothing,
    quick,
)
from workers.kube.errors import ApiError, Unreachable

BROKEN = CsiError(errors.UNAVAILABLE, "Socket closed", from_transport=True)


def breaks(life: Life) -> Any:
    """Break the connection during the call.

    Return a function that lets the driver finish the call.
    """
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
    leaves_nothing(life, ends)


def test_an_answer_that_is_stored_late_ends_no_later_call():
    """The API server answers a status write with 504 and stores it during the next call.

    docs/snapshots.md: "A call whose process died, or whose connection broke, may make the snapshot
    once more after its deletion. So the deletion waits for the call's deadline."
    """
    life = Life([])
    world = life.world
    patch = world.api.patch
    late: list = []

    def unheard(path, body, content_type):
        if path.endswith("/status") and not late:
            late.append((path, {"status": body["status"]}, content_type))
            raise Unreachable("timed out")
        return patch(path, body, content_type)

    world.api.patch = unheard
    with suppress(ApiError):
        world.run_content()  # made and recorded; the status is not stored yet
    assert late
    call, out = world.client.call, []

    def breaks(_method, request, *_args, **_kwargs):
        out.append(request)
        patch(*late[0])  # now the status is stored
        raise CsiError(errors.UNAVAILABLE, "Socket closed", from_transport=True)

    world.client.call = breaks
    world.run_content()
    world.client.call = call
    assert out
    assert world.content()["status"]["snapshotHandle"] == "id-1"
    world.run_content()  # the poll answers: ready
    assert world.content()["status"]["readyToUse"] is True
    life.user_deletes()
    for _ in range(4):
        outcome = world.run_content()
        if outcome.delay_seconds > 5:
            break
    life.storage.create(out[0])  # the broken call ends within its deadline
    world.passed += 70
    life.live()
    assert world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"
