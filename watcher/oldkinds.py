"""Logs an error if a watched kind is served only in a version that csi-fleet does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.kube.versions import outdated
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.kube.paths import Resource
    from workers.kube.reading import KubeReader

_log = get_logger(__name__)

# The interval while a kind's first list is due, and the interval afterwards.
_SOON_SECONDS: Final = 2.0
_LATER_SECONDS: Final = 60.0


class OldKinds:
    """Checks the watched kinds that are not served; logs each problem once.

    Args:
        kube: reads from the API server.
        missing: returns the watched kinds that the API server does not serve.
        is_listed: returns True once it is known which watched kinds are served.
    """

    def __init__(
        self,
        kube: KubeReader,
        missing: Callable[[], Iterable[Resource]],
        is_listed: Callable[[], bool],
    ) -> None:
        self._kube = kube
        self._missing = missing
        self._is_listed = is_listed
        self._logged: set[str] = set()

    def step(self) -> float:
        """Log new problems; return the seconds until the next check."""
        if not self._is_listed():
            return _SOON_SECONDS
        problems = set(outdated(self._kube, self._missing()))
        for problem in sorted(problems - self._logged):
            _log.error("the installed CRDs are too old", err=problem)
        self._logged = problems
        return _LATER_SECONDS
