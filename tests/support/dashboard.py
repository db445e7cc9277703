"""What each query of the dashboard must show, counted independently of the exported metrics.

The sources are the drivers' own counts, the API server's audit log, the workers' logs, the
structures in Redis, and the processes. `TRUTHS` has a function for each query of each panel, in the
order of the panels; each function returns bounds by labels. Rates are compared as counts over the
observed time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.monitored import WATCHERS, WORKERS, Monitored, is_alive
from tests.support.prometheus import SCRAPE_SECONDS, Labels

Bounds = tuple[float, float]
Truth = Callable[["Seen"], dict[Labels, Bounds]]

_CLAIM_EDGES: Final = (0.0, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_CALL_EDGES: Final = (0.0, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
# This count is so large that twice as many, the result of counting in both watchers, is out of
# bounds.
ENOUGH: Final = 8


@dataclass
class Seen:
    """The true state between two times, and at the second time.

    Attributes:
        figures: the drivers' own counts at both times.
        states: the number of keys by state, read several times around the second time.
        waits: the longest time from the creation of a claim until it was seen as Bound, by role.
        made, deleted: the volumes that were created and deleted between the two times, by role.
        delays: seconds that a driver needs for a volume, by role.
        oldest: when the first key that still waits was added, by role.
        paused: pauses by role.
    """

    world: Monitored
    since: float
    until: float
    figures: tuple[Mapping[str, Any], Mapping[str, Any]]
    states: list[dict[str, int]]
    sizes: list[dict[str, int]]
    waits: dict[str, float]
    delays: dict[str, float]
    made: dict[str, int]
    deleted: dict[str, int]
    oldest: dict[str, float]
    paused: dict[str, str]

    @property
    def seconds(self) -> float:
        return self.until - self.since

    def ended(self, role: str, call: str) -> int:
        """Return how many calls of a role's driver had this result, such as `CreateVolume OK`."""
        before, after = (one[self.world.driver(role)]["ended"] for one in self.figures)
        return int(after.get(call, 0)) - int(before.get(call, 0))

    def logged(self, message: str) -> list[dict[str, Any]]:
        return self.world.log_lines(message, self.since, self.until)


def labels(**found: str) -> Labels:
    """Return the figures in the form of a query's answer."""
    return frozenset(found.items())


def about(count: float, slack: float = 2) -> Bounds:
    """Return bounds for a count that is computed from a rate.

    The rate is extrapolated by up to two scrapes, and one more call may be running. The first event
    of a kind in a worker is not included.
    """
    return 0.7 * count - slack - len(WORKERS), 1.3 * count + slack


def each(counts: Mapping[Labels, float]) -> dict[Labels, Bounds]:
    """Return the bounds of those figures that are large enough to tell once from twice."""
    found = {name: about(count) for name, count in counts.items() if count >= ENOUGH}
    assert found, f"too few to tell anything: {dict(counts)}"
    return found


def between(values: Iterable[float], slack: float) -> Bounds:
    """Return bounds for a figure that changes while it is read."""
    found = list(values)
    return min(found) - slack, max(found) + slack


def _edges(edges: tuple[float, ...], least: float, most: float) -> Bounds:
    """Return the bounds of the histogram buckets that contain these values, and therefore the
    quantile."""
    low = edges[max(0, bisect_left(edges, least) - 1)]
    return low, edges[min(len(edges) - 1, bisect_left(edges, most))]


def _claims(seen: Seen) -> dict[Labels, Bounds]:
    return {
        labels(driver_name=seen.world.driver(role)): _edges(
            _CLAIM_EDGES, seen.delays.get(role, 0), wait + 1
        )
        for role, wait in seen.waits.items()
    }


def _calls(seen: Seen) -> dict[Labels, Bounds]:
    found = {}
    for role, wait in seen.waits.items():
        name = {"driver_name": seen.world.driver(role)}
        delay = seen.delays.get(role, 0)
        key = labels(**name, method_name="/csi.v1.Controller/CreateVolume")
        found[key] = _edges(_CALL_EDGES, delay, max(wait, delay + 0.1))
    return found


def _volumes(counts: Callable[[Seen], Mapping[str, int]]) -> Truth:
    return lambda seen: each(
        {labels(**{"class": seen.world.classes[role]}): n for role, n in counts(seen).items()}
    )


def _failures(role: str, call: str) -> Truth:
    return lambda seen: each(
        {labels(**{"class": seen.world.classes[role]}): seen.ended(role, call)}
    )


def _codes(seen: Seen) -> dict[Labels, Bounds]:
    names = {"OK": "OK", "RESOURCE_EXHAUSTED": "ResourceExhausted"}
    found: Counter[Labels] = Counter()
    for role in ("steady", "full", "stuck"):
        driver = seen.world.driver(role)
        for call in seen.figures[1][driver]["ended"]:
            key = labels(driver_name=driver, grpc_status_code=names[call.split(" ")[1]])
            found[key] += seen.ended(role, call)
    return each(found)


def _states(seen: Seen) -> dict[Labels, Bounds]:
    return {
        labels(state=state): between((one[state] for one in seen.states), 4)
        for state in seen.states[0]
    }


def _ages(seen: Seen) -> dict[Labels, Bounds]:
    return {
        labels(kind="claims", driver_name=seen.world.driver(role)): (
            seen.until - since - 2 - SCRAPE_SECONDS,
            seen.until - since + 1,
        )
        for role, since in seen.oldest.items()
    }


def _attempts(seen: Seen) -> dict[Labels, Bounds]:
    found = Counter(
        labels(kind=line["key"].partition("|")[0], outcome=line["outcome"])
        for line in seen.logged("pass ended")
    )
    return each(found)


def _used(seen: Seen) -> dict[Labels, Bounds]:
    driver = seen.world.driver("hang")
    lane = f"claims|{driver}"
    used = int(seen.world.client.zcard(f"csifleet:leased:{lane}"))
    return {labels(kind="claims", driver_name=driver): (used, used)}


def _limits(seen: Seen) -> dict[Labels, Bounds]:
    return {
        labels(kind="claims", driver_name=seen.world.driver(role)): (limit, limit)
        for role, limit in seen.world.limits.items()
    }


def _pauses(seen: Seen) -> dict[Labels, Bounds]:
    return {
        labels(driver_name=seen.world.driver(role), pause=pause): (1, 1)
        for role, pause in seen.paused.items()
    }


def _requests(seen: Seen) -> dict[Labels, Bounds]:
    last = f"last_over_time(csi_fleet_api_requests_total[{round(5 * SCRAPE_SECONDS)}s])"
    series = f"count by (verb, resource, code) ({last})"
    before, after = (seen.world.prometheus.query(series, at) for at in (seen.since, seen.until))
    made = Counter(
        labels(verb=one.verb, resource=one.resource, code=one.code)
        for one in seen.world.requests_made(seen.since, seen.until)
    )
    # If a process made such a request for the first time, no rate shows the first sample.
    known = {key for key, processes in after.items() if before.get(key, 0) >= processes}
    return each({key: count for key, count in made.items() if key in known})


def _requests_per_volume(seen: Seen) -> dict[Labels, Bounds]:
    made = seen.world.requests_made(seen.since, seen.until)
    volumes = [
        one
        for one in made
        if (one.verb, one.resource, one.code) == ("create", "persistentvolumes", "201")
    ]
    assert len(volumes) >= ENOUGH
    ratio = len(made) / len(volumes)
    return {labels(): (0.6 * ratio, 1.5 * ratio)}


def _processes(seen: Seen) -> dict[Labels, Bounds]:
    living = sum(is_alive(seen.world.processes[name]) for name in WORKERS)
    return {labels(): (living, living)}


def _drivers(seen: Seen) -> dict[Labels, Bounds]:
    """Return bounds for all drivers except the one that no worker serves."""
    served = len([role for role in seen.world.roles if role != "left"]) + len(seen.world.plugins)
    return {labels(): (served, served)}


def _connected(seen: Seen) -> dict[Labels, Bounds]:
    """Return bounds for all drivers except those that are gone, never existed, or are not
    served."""
    away = {"gone", "left"}
    served = len([role for role in seen.world.roles if role not in away])
    return {labels(): (served + len(seen.world.plugins),) * 2}


def _watchers(seen: Seen) -> dict[Labels, Bounds]:
    living = sum(is_alive(seen.world.processes[name]) for name in WATCHERS)
    return {labels(): (living, living)}


def _memory(seen: Seen) -> dict[Labels, Bounds]:
    facts: Any = seen.world.client.info("memory")
    used = facts["used_memory"] / facts["maxmemory"]
    return {labels(): (0.5 * used, 2 * used)}


def _size(name: str) -> Truth:
    return lambda seen: {labels(): between((one[name] for one in seen.sizes), 4)}


def _logged(message: str) -> Truth:
    return lambda seen: {
        key: about(count)
        for key, count in Counter(
            labels(kind=line["key"].partition("|")[0]) for line in seen.logged(message)
        ).items()
    }


def _nothing(_: Seen) -> dict[Labels, Bounds]:
    return {}


TRUTHS: Final[dict[str, tuple[Truth, ...]]] = {
    "Failing": (_size("fails"),),
    "Given up": (_size("abandoned"),),
    "Unsaved volumes": (_size("unsaved"),),
    "Drivers connected": (_connected,),
    "Watchers": (_watchers,),
    "Redis memory": (_memory,),
    "Claim to volume, seconds": (_claims, _claims),
    "Volumes per second": (
        _volumes(lambda seen: seen.made),
        _volumes(lambda seen: seen.deleted),
    ),
    "Keys by state": (_states,),
    "Age of the next key": (_ages,),
    "Attempts by outcome": (_attempts,),
    "Failures": (
        _failures("full", "CreateVolume RESOURCE_EXHAUSTED"),
        _failures("stuck", "DeleteVolume RESOURCE_EXHAUSTED"),
    ),
    "CSI calls, p99": (_calls,),
    "CSI calls by code": (_codes,),
    "In use and limit": (_used, _limits),
    "Pauses": (_pauses,),
    "API requests per saved volume": (_requests_per_volume,),
    "API requests by answer": (_requests,),
    "Processes, open attempts, unsaved": (
        _processes,
        _drivers,
        _size("intents"),
        _size("unsaved"),
    ),
    "Losses": (_logged("lease lost"), _nothing, _logged("unexpected error")),
}
