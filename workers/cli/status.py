"""`csi-fleet status`: shows drivers, queues, ages, processes and Redis at a glance."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from workers.cli import knowndrivers, terminal
from workers.controllers import catalogue
from workers.errors import TransientError
from workers.explain.words import duration, moment, rfc3339
from workers.queue.inspect import failing_counts, read_age, read_redis, read_sizes
from workers.queue.keys import lane_name
from workers.queue.limits import read_stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workers.cli.tools import Tools
    from workers.queue.limits import LaneStats

WATCH_SECONDS: Final = 2.0
# The number of processes named in a line; `--wide` names all of them.
_SHOWN_PROCESSES: Final = 3
# Watchers and workers report every 5 s, so within this time after a loss of Redis data, all of them
# have reported again.
_BACK_SECONDS: Final = 15
_HEAD: Final = ("DRIVER", "STATE", "READY", "RUNNING", "FAILING", "OLDEST")
_WIDE_HEAD: Final = (
    "DRIVER",
    "STATE",
    "WORK",
    "READY",
    "RETRY",
    "RUNNING",
    "LIMIT",
    "DELAYED",
    "OLDEST",
)
# Shown in place of a driver's name for work that has no driver.
_SYSTEM: Final = "-"
_NUMBERS_FROM: Final = 2
# The order of the rows: states that need action come first.
_ORDER: Final = ("not served", "disconnected", "failing", "paused", "lease elsewhere", "ok")
# If several of these apply, the last one is shown.
_PAUSES: Final = (("lease", "lease elsewhere"), ("driver", "disconnected"), ("operator", "paused"))


def run(tools: Tools) -> int:
    """Run the command; return 0 if all is well, 1 if something needs attention."""
    if driver := tools.settings.tool.driver:
        knowndrivers.served(tools, driver)  # raises if the name is unknown
    while True:
        try:
            report = gather(tools, tools.settings.tool.driver)
        except TransientError as error:
            if not tools.settings.tool.watch:
                raise
            terminal.write_lines([f"! {error}; trying again"], style="bold red")
            time.sleep(WATCH_SECONDS)
            continue
        if tools.is_data:
            tools.write("Status", report)
        else:
            if tools.settings.tool.watch and terminal.is_terminal():
                terminal.clear()
            show(report, is_wide=tools.is_wide)
        if not tools.settings.tool.watch:
            return 1 if report["problems"] else 0
        time.sleep(WATCH_SECONDS)


def gather(tools: Tools, only: str = "") -> dict[str, Any]:
    """Return everything that `status` shows, including with `-o json`; ages are in seconds.

    Args:
        tools: the connections.
        only: the driver to show; "" for all.
    """
    records, stats = tools.registry.alive(), read_stats(tools.redis)
    classes = tools.pauses.classes()
    watchers, workers = tools.presence.alive(), tools.presence.workers()
    names = {unquote(lane.partition("|")[2]) for lane in stats} | records.keys()
    failing = failing_counts(tools.redis)
    # A driver with failing keys but no workers has no queue yet.
    names |= {name for name in failing if name} | ({only} if only else set())
    if only:
        names = {name for name in names if name.partition("@")[0] == only}
    report: dict[str, Any] = {
        "drivers": {
            name or _SYSTEM: _driver(name or _SYSTEM, stats, is_served=name in records)
            | {"failing": failing.get(name, 0)}
            for name in sorted(names)
        },
        "paused_classes": {
            name: {"reason": one.reason, "until": rfc3339(one.until_ms / 1000)}
            for name, one in classes.items()
        },
        "watchers": [f"{one.host}:{one.pid}" for one in watchers if one.role == "watcher"],
        "workers": [f"{one.host}:{one.pid}" for one in workers],
        "beat": tools.presence.has_beat(),
        "troubles": tools.presence.troubles(),
        "counts": read_sizes(tools.redis),
        "redis": read_redis(tools.redis),
        "redis_age": read_age(tools.redis),
    }
    report["problems"] = problems(report)
    return report


def problems(report: dict[str, Any]) -> list[str]:
    """Return what needs action, one line for each problem."""
    found = []
    if not (report["watchers"] or is_new(report)):
        found.append("no watcher is running, so new claims are not noticed")
    if not (report["workers"] or is_new(report)):
        found.append("no worker is running, so nothing is provisioned")
    found += report["troubles"]
    for name, driver in report["drivers"].items():
        waiting = sum(lane["ready"] + lane["retry"] for lane in driver["work"].values())
        if driver["state"] == "not served" and waiting and not is_new(report):
            found.append(
                f"driver {name}: {waiting} keys are waiting, but no worker serves the driver"
            )
        if driver["state"].startswith("disconnected"):
            found.append(f"driver {name}: {driver['state']}")
    counts = report["counts"]
    if counts["unsaved_volumes"]:
        found.append(f"{counts['unsaved_volumes']} volumes exist whose PV has not been saved")
    if counts["abandoned_keys"]:
        found.append(
            f"{counts['abandoned_keys']} keys were given up. Check them with csi-fleet failed"
        )
    if counts["quarantined_records"]:
        found.append(f"{counts['quarantined_records']} unreadable records were set aside in Redis")
    return found


def is_new(report: dict[str, Any]) -> bool:
    """Return True if Redis lost its data recently, so not all processes may have reported again."""
    return bool(report["redis_age"] < _BACK_SECONDS)


def _driver(name: str, stats: dict[str, LaneStats], *, is_served: bool) -> dict[str, Any]:
    work: dict[str, Any] = {}
    pauses: dict[str, str] = {}
    ends: dict[str, float] = {}
    # Include only kinds of key that concern an object, because users do not know the other kinds.
    for kind in (one.name for one in catalogue.kinds().values() if one.noun):
        figures = stats.get(lane_name(kind, "" if name == _SYSTEM else name))
        if figures is None:
            continue
        pauses |= figures.paused
        ends |= figures.paused_until
        work[kind] = {
            "ready": figures.ready,
            "retry": figures.retry,
            "running": figures.running,
            "limit": figures.limits.concurrency if figures.limits else None,
            "delayed": figures.delayed + figures.blocked,
            "oldest": figures.head_age_seconds,
        }
    state = "ok" if is_served else "not served"
    for kind, word in _PAUSES:
        if kind in pauses:
            end = f" until {moment(ends[kind])}" if kind in ends and kind != "driver" else ""
            state = f"{word}{end}: {pauses[kind] or 'no reason given'}"
    return {"state": state, "work": work}


def show(report: dict[str, Any], *, is_wide: bool = False) -> None:
    """Print the problems, the pauses, a line for each driver, and the state of the system."""
    terminal.write_lines((f"! {line}" for line in report["problems"]), style="bold yellow")
    held = list(_held(report))
    terminal.write_lines(held)
    if report["problems"] or held:
        terminal.write()
    if is_wide:
        _show_kinds(report)
    else:
        rows = [line.cells for line in driver_lines(report)]
        nobody = [["none", *["-"] * (len(_HEAD) - 1)]]
        terminal.write_rows(_HEAD, rows or nobody, numbers_from=_NUMBERS_FROM)
    counts = report["counts"]
    terminal.write()
    for name in ("watchers", "workers"):
        found = report[name]
        shown = found if is_wide else found[:_SHOWN_PROCESSES]
        more = f", and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
        terminal.write(f"{name:8} {len(found)}: {', '.join(shown) or 'none'}{more}")
    terminal.write(f"beat     {beat_words(has_beat=report['beat'])}")
    terminal.write(
        f"open attempts {counts['intents']}, unsaved volumes {counts['unsaved_volumes']}, "
        f"failing {counts['failing_keys']}, given up {counts['abandoned_keys']}"
    )
    redis, age = report["redis"], duration(report["redis_age"])
    terminal.write(
        f"redis {redis['version']}, {redis['memory']} used, "
        f"{redis['clients']} clients, eviction {redis['policy']}"
        + (f", lost its data or began {age} ago" if is_new(report) else "")
    )
    if any(line.is_busy for line in driver_lines(report)):
        terminal.write("what waits, and why: csi-fleet pending")


def _held(report: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each driver (with all its nodes) and each class that is paused."""
    lines: dict[tuple[str, str], int] = {}
    for name, driver in report["drivers"].items():
        if driver["state"].startswith(("paused", "lease elsewhere")):
            one = (name.partition("@")[0], driver["state"])
            lines[one] = lines.get(one, 0) + 1
    for (name, state), nodes in lines.items():
        yield f"- driver {name}{f' on {nodes} nodes' if nodes > 1 else ''}: {state}"
    for name, pause in report["paused_classes"].items():
        end = f" until {pause['until']}" if pause["until"] else ""
        yield f"- class {name}: paused{end}: {pause['reason'] or 'no reason given'}"


def beat_words(*, has_beat: bool) -> str:
    """Return a human-readable summary of what is known about beat."""
    return "ticks" if has_beat else "no tick for 15 s"


@dataclass(frozen=True, slots=True)
class DriverLine:
    """The line of one driver in `status`.

    Attributes:
        name: the name of the driver.
        nodes: the number of nodes that serve the driver; 1 for a driver without node deployment.
        state: the driver's state in one or two words.
        why: the reason for the state; "" if there is none.
        oldest: how long the first of the `ready` keys has been waiting, in seconds.
    """

    name: str
    nodes: int
    state: str
    why: str
    ready: int
    running: int
    failing: int
    oldest: float

    @property
    def is_busy(self) -> bool:
        """True if there is work for the driver."""
        return bool(self.ready or self.running or self.failing)

    @property
    def cells(self) -> list[object]:
        """The row of the table."""
        shown = f"{self.name} ({self.nodes} nodes)" if self.nodes > 1 else self.name
        oldest = duration(self.oldest) if self.oldest else "-"
        return [shown, self.state, self.ready, self.running, self.failing, oldest]


def driver_lines(report: dict[str, Any]) -> list[DriverLine]:
    """Return one line per driver, for all its nodes; states that need action come first."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for name, driver in report["drivers"].items():
        parts.setdefault(name.partition("@")[0], []).append(driver)
    rows = []
    for name, nodes in parts.items():
        lanes = [lane for one in nodes for lane in one["work"].values()]
        worst = min(nodes, key=lambda one: _ORDER.index(_word(one)))
        state = _word(worst)
        ready = sum(lane["ready"] + lane["retry"] for lane in lanes)
        running = sum(lane["running"] for lane in lanes)
        failing = sum(one["failing"] for one in nodes)
        oldest = max((lane["oldest"] for lane in lanes), default=0)
        word = "standby" if state == "lease elsewhere" else state
        why = worst["state"].partition(": ")[2]
        line = DriverLine(name, len(nodes), word, why, ready, running, failing, oldest)
        is_idle = not line.is_busy
        # An unserved driver is not a problem if no key is waiting for it.
        place = len(_ORDER) if state == "not served" and is_idle else _ORDER.index(state)
        rows.append(((place, is_idle, -oldest, name), line))
    return [line for _, line in sorted(rows, key=lambda one: one[0])]


def _word(driver: dict[str, Any]) -> str:
    """Return a driver's state in one or two words."""
    state = next((one for one in _ORDER if driver["state"].startswith(one)), "ok")
    return "failing" if state == "ok" and driver["failing"] else state


def _show_kinds(report: dict[str, Any]) -> None:
    """Print one line for each driver and kind of work, in the order of the drivers' lines."""
    places = {line.name: place for place, line in enumerate(driver_lines(report))}
    drivers = sorted(report["drivers"].items(), key=lambda one: places[one[0].partition("@")[0]])
    rows = [
        [
            name,
            _word(driver),
            kind,
            *(lane[column] for column in ("ready", "retry", "running")),
            "-" if lane["limit"] is None else lane["limit"],
            lane["delayed"],
            duration(lane["oldest"]) if lane["oldest"] else "-",
        ]
        for name, driver in drivers
        for kind, lane in (_kinds(driver["work"]) or {"-": _NOTHING}).items()
    ]
    nobody = [["none", *["-"] * (len(_WIDE_HEAD) - 1)]]
    terminal.write_rows(_WIDE_HEAD, rows or nobody, numbers_from=_NUMBERS_FROM + 1)


def _kinds(work: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kinds of work that a worker does or that are waiting for a worker."""
    return {
        kind: lane
        for kind, lane in work.items()
        if lane["limit"] is not None or any(lane[one] for one in _COUNTS)
    }


_COUNTS: Final = ("ready", "retry", "running", "delayed")
_NOTHING: Final = {**dict.fromkeys((*_COUNTS, "oldest"), 0), "limit": None}
