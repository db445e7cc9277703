"""Has etcd gone back? Then nothing that was learnt by resourceVersions counts any more.

After a restore from a backup, resourceVersions that were seen come again and mean other objects.
A watch that continues from the old, higher version is silent until the cluster has passed it, and
what the catalog holds of that time wins over the present. So every few seconds this module asks for
the version of the present, one kind after the other, and compares it with the newest that its watch
brought. It does the same when Redis holds entries newer than a complete list. One
answer may come from a server that lags, so a second one must agree.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from workers.kube.errors import NotFoundError
from workers.observability.logging import get_logger
from workers.queue.catalog import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from workers.kube.watch import Reflector

_log = get_logger(__name__)

# One kind each time: bookmarks keep all of them within a minute of the present, so any shows it.
LOOK_SECONDS: Final = 5.0
SECOND_LOOK_SECONDS: Final = 2.0


class History:
    """Compares what is known with the present.

    Args:
        reflectors: the watcher's, by name; may grow.
        epoch: returns the life of Redis known now.
        end_life: ends that life, with all that it knows by versions, unless it is over already.
        relist: lists kinds again, by name.
    """

    def __init__(
        self,
        reflectors: Mapping[str, Reflector[Any]],
        *,
        epoch: Callable[[], str],
        end_life: Callable[[str], object],
        relist: Callable[[Iterable[str]], object],
    ) -> None:
        self._reflectors = reflectors
        self._epoch = epoch
        self._end_life = end_life
        self._relist = relist
        self._turn = 0
        self._is_new_life = False
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End a look that waits for its second answer."""
        self._stopped.set()

    def life_began(self) -> None:
        """A new life of Redis holds nothing of an earlier history; our watches still may."""
        self._is_new_life = True

    def step(self) -> float:
        """Look at the next kind; returns the seconds until the next step.

        Raises:
            ApiError: the API server does not answer.
            QueueUnavailable: Redis does not answer.
        """
        names, epoch = list(self._reflectors), self._epoch()
        if self._is_new_life:
            self._relist([name for name in names if self._is_ahead(name)])
            self._is_new_life = False
        elif names:
            self._turn = (self._turn + 1) % len(names)
            if self._is_ahead(names[self._turn]):
                self._went_back(names[self._turn], epoch)
        return LOOK_SECONDS

    def compare(self, name: str, version: str) -> None:
        """Look whether a version that Redis holds of this kind is of the future.

        Raises as `step` does.
        """
        epoch = self._epoch()
        if self._is_beyond(name, version):
            self._went_back(name, epoch)

    def _is_ahead(self, name: str) -> bool:
        # Read before the present is asked for, which is then no older.
        return self._is_beyond(name, self._reflectors[name].health.version)

    def _is_beyond(self, name: str, version: str) -> bool:
        # Only numbers have an order.
        newest = number(version)
        for is_second in (False, True):
            if not newest or (is_second and self._stopped.wait(SECOND_LOOK_SECONDS)):
                return False
            try:
                present = number(self._reflectors[name].present_version())
            except NotFoundError:  # the kind is served no more
                return False
            if not 0 < present < newest:
                return False
        return True

    def _went_back(self, name: str, epoch: str) -> None:
        _log.warning(
            "resourceVersions went back, as after a restore of etcd: everything is listed again",
            resource=name,
        )
        self._end_life(epoch)
        self._relist(list(self._reflectors))
