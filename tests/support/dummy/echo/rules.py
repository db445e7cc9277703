"""Maps events to keys for the echo controller: each claim gives one key for each driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.kube import paths
from workers.kube.objects import Claim
from workers.queue.keys import Key
from workers.spec import Forget, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.paths import Resource
    from workers.spec import Records, Told


class EchoRules:
    """Remembers the existing claims."""

    def __init__(self) -> None:
        self._queues: list[str] = []
        self._claims: dict[str, Claim] = {}
        self._listed: set[str] | None = None

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Return the keys of every claim, for a new set of drivers."""
        self._queues = [record["queue_name"] for record in drivers]
        return self.all_keys()

    def seen(self, resource: Resource, item: Claim, *, is_listed: bool) -> Iterable[Told]:
        """Remember the claim and return its keys."""
        del resource
        place = f"{item.metadata.namespace}/{item.metadata.name}"
        self._claims[place] = item
        if is_listed and self._listed is not None:
            self._listed.add(place)
        return self._keys(place)

    def gone(self, resource: Resource, item: Claim) -> Iterable[Told]:
        """Forget a claim and the state of its keys."""
        del resource
        place = f"{item.metadata.namespace}/{item.metadata.name}"
        keys = self._keys(place)
        self._claims.pop(place, None)
        return [Forget(key) for key in keys]

    def begin_list(self, resource: Resource) -> None:
        """Begin a list, in which no claim has been seen yet."""
        del resource
        self._listed = set()

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Forget the claims that the list did not contain."""
        lost = [self._claims[place] for place in set(self._claims) - (self._listed or set())]
        self._listed = None
        return [told for item in lost for told in self.gone(resource, item)]

    def all_keys(self) -> list[Key]:
        """Return the keys of all claims."""
        return [key for place in self._claims for key in self._keys(place)]

    def _keys(self, place: str) -> list[Key]:
        uid = self._claims[place].metadata.uid if place in self._claims else ""
        return [Key("echoes", queue, place, uid) for queue in self._queues]


WATCHES: Final = (Watch(paths.CLAIMS, Claim),)
