"""Detects if etcd has been restored to an older state: all known resourceVersions are then invalid.

After a restore from a backup, the same resourceVersions are used again for different states. A
watch that continues from the old, higher version is silent until the cluster has passed that
version, and entries of the shared cache that look newer take precedence over the current ones. So
every few seconds, this module requests the current version of one kind, one kind after another, and
compares it with the newest version that the kind's watch has seen. It does the same if Redis has
entries that are newer than a complete list. An API server that lags behind may return an old
version, so a second response must confirm the first.
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

# One kind per step is enough, because bookmarks keep all watches within a minute of the current
# version.
LOOK_SECONDS: Final = 5.0
SECOND_LOOK_SECONDS: Final = 2.0


class History:
    """Compares known resourceVersions with the current ones.

    Args:
        reflectors: the watcher's reflectors by name; more may be added later.
        epoch: returns the current epoch of Redis.
        end_life: ends the given epoch, if it has not ended yet, and drops the entries in Redis that
            have a resourceVersion.
        relist: lists the kinds with the given names again.
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
        """Interrupt a comparison that is waiting for its second response."""
        self._stopped.set()

    def life_began(self) -> None:
        """Note that an epoch has begun: Redis is empty, but watches may still be ahead of etcd."""
        self._is_new_life = True

    def step(self) -> float:
        """Compare the next kind; return the seconds until the next step.

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
        """Check whether a resourceVersion in Redis is higher than the current one of this kind.

        Raises the same exceptions as `step`.
        """
        epoch = self._epoch()
        if self._is_beyond(name, version):
            self._went_back(name, epoch)

    def _is_ahead(self, name: str) -> bool:
        # The watch's version is read first, so the current version must be at least as high.
        return self._is_beyond(name, self._reflectors[name].health.version)

    def _is_beyond(self, name: str, version: str) -> bool:
        # A version that is not a number cannot be ordered, so it is not compared.
        newest = number(version)
        for is_second in (False, True):
            if not newest or (is_second and self._stopped.wait(SECOND_LOOK_SECONDS)):
                return False
            try:
                present = number(self._reflectors[name].present_version())
            except NotFoundError:  # the kind is no longer served
                return False
            if not 0 < present < newest:
                return False
        return True

    def _went_back(self, name: str, epoch: str) -> None:
        _log.warning(
            "resourceVersions decreased, as after a restore of etcd; listing all objects again",
            resource=name,
        )
        self._end_life(epoch)
        self._relist(list(self._reflectors))
