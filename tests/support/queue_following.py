"""What a script that goes on with another key may have done, checked and told to the model.

Which of several keys was admitted or tried is the scripts' choice; here it is checked to be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.queue_keys import LISTS, lanes_beside, tickets_of
from tests.support.queue_model import QueueModel, lane_of, modes
from tests.support.queue_state import read_hash, scores
from workers.queue.keys import Key
from workers.queue.leases import Lease
from workers.queue.locks import Lock
from workers.queue.workqueue import WorkQueue

TRIES = 3


@dataclass(frozen=True, slots=True)
class Following:
    """One call that may go on.

    Attributes:
        queue: of the process that would work on the key.
        key: whose message was read, or whose lease ends.
        lease: reads the one it went on with, once the call is over; None for none.
        has_message: a message was read for it.
    """

    queue: WorkQueue
    key: Key
    lease: Callable[[], Lease | None]
    has_message: bool = False


def follow(
    client: Any,
    model: QueueModel,
    call: Following,
    locks: Mapping[str, Sequence[Lock]],
    now: int,
) -> list[str]:
    """The model goes the same way.

    Returns:
        The keys that are ticketed no more, and for which no message was read.
    """
    lease, lanes = call.lease(), lanes_beside(call.key)
    process = call.queue._leases.session.process_id
    ready = set(scores(client, "ready", lanes)) | set(scores(client, "retry", lanes))
    blocked = set(read_hash(client, "blocked")) - set(model.blocked)
    put_back = {key for key in ready & set(model.ticketed) if lane_of(key) in model.paused}
    tried = sorted(
        (blocked | put_back) & set(model.ticketed),
        key=lambda key: (model.ticketed[key], lanes.index(lane_of(key)), key),
    )
    for key in tried:
        assert not model.take(process, key, modes(locks[key]), now), f"{key} was free"
    waiting = {key: at for key, at in model.ticketed.items() if lane_of(key) in lanes}
    if lease is None:
        is_silent = now < model.quiet or not model.is_alive
        assert not waiting or len(tried) >= TRIES or is_silent, f"none of {waiting} followed"
        return tried[call.has_message :]
    key = lease.key.text
    assert waiting[key] == min(waiting.values()), f"{key} came before older ones: {waiting}"
    assert model.take(process, key, modes(locks[key]), now)
    assert modes(lease.locks) == modes(locks[key])
    return [*tried, key][call.has_message :]


class Messages:
    """Each message in Celery's lists stands for one ticketed key.

    Made before a script runs, and asked after it.
    """

    def __init__(self, client: Any, model: QueueModel) -> None:
        self._client, self._model = client, model
        self._ticketed = dict(model.ticketed)
        self._before = self._lengths()

    def _lengths(self) -> dict[str, int]:
        return {name: self._client.llen(name) for name in LISTS}

    def check_repeated(self, keys: set[str], now: int) -> None:
        """A sweep sends again what is missing, after two seconds."""
        missing = Counter(map(tickets_of, self._ticketed))
        missing.subtract(self._before)
        for name, count in Counter(map(tickets_of, keys)).items():
            assert count <= missing[name], f"tickets that wait in {name} are sent again"
        assert all(now - self._ticketed[key] >= 2000 for key in keys)

    def check_spared(self, admitted: set[str], consumed: list[str]) -> None:
        """What went on without a message spares one: of what was admitted, or one that waits."""
        after, waiting = self._lengths(), Counter(map(tickets_of, self._model.ticketed))
        for name in LISTS:
            wanted = sum(tickets_of(key) == name for key in consumed)
            new = sum(tickets_of(key) == name for key in admitted)
            spared = new - (after[name] - self._before[name])
            assert 0 <= spared <= wanted, f"{name}: {spared} messages spared"
            assert spared == wanted or after[name] <= waiting[name], f"{name}: one too many"
