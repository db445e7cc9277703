"""How long a failing attach waits, with a real queue."""

from __future__ import annotations

from tests.support.attach_world import AttachWorld
from tests.support.taking import take
from workers.controllers.attacher.spec import AttacherSettings
from workers.engine.frame import RETRY_MAX_SECONDS
from workers.engine.outcome import Action
from workers.queue.workqueue import WorkQueue

RETRY = Action.RETRY


def test_ta035_twelve_failures(redis_client):
    """DA-009, A-043: The delays are 1, 2, 4, ... 256, 300, 300 s.

    csi-fleet's own writes cause no attempt in between.
    """
    world = AttachWorld()
    world.add_volume()
    refusal = [{"code": "INTERNAL", "times": 99}]
    world.client.respond({"ControllerPublishVolume": refusal})
    key = world.add_attachment()
    now = [1_700_000_000_000]
    queue = WorkQueue(redis_client, publish=lambda _: None, now_ms=lambda: now[0])
    queue.register_process()
    queue.set_limits(key.lane, 10)
    queue.add([key])
    delays = []
    for _ in range(12):
        lease = take(queue, key)
        assert lease is not None
        outcome = world.run(key)
        assert (outcome.action, outcome.base_seconds, outcome.cap_seconds) == (RETRY, None, None)
        # The engine then applies the intervals of the settings, see
        # tests/unit/engine/test_frame.py.
        settings = AttacherSettings()
        delay = queue.fail(
            lease,
            base_seconds=settings.retry_interval_start_seconds,
            cap_seconds=settings.retry_interval_max_seconds,
        ).delay_seconds
        assert delay is not None
        delays.append(delay)
        now[0] += round(delay * 1000)
        queue.heartbeat()
        queue.pump(period_seconds=0)
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert delays[-1] == RETRY_MAX_SECONDS
