"""`csi-fleet status`: drivers, queues, ages, breakers, processes and Redis at a glance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from workers.cli import terminal
from workers.controllers import catalogue
from workers.errors import TransientError
from workers.explain.words import duration, moment
from workers.queue.inspect import read_age, read_redis, read_sizes
from workers.queue.keys import lane_name
from workers.queue.limits import read_stats

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.queue.limits import LaneStats

WATCH_SECONDS: Final = 2.0
# After a loss of data watchers and workers are back by then: each speaks every 5 s.
_BACK_SECONDS: Final = 15
_HEAD: Final = (
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
# Name of what belongs to no driver.
_SYSTEM: Final = "-"
# The last one that holds is shown.
_PAUSES: Final = (("lease", "lease elsewhere"), ("breaker", "breaker"), ("operator", "paused"))


def run(tools: Tools) -> int:
    """The command; 0 when everything is well, 1 when something needs a look."""
    while True:
        try:
            report = gather(tools)
        except TransientError as error:
            if not tools.settings.tool.watch:
                raise
            terminal.write_lines([f"! {error}; trying again"], style="bold red")
            time.sleep(WATCH_SECONDS)
            continue
        if tools.is_json:
            terminal.write_json(report)
        else:
            if tools.settings.tool.watch and terminal.is_terminal():
                terminal.clear()
            show(report)
        if not tools.settings.tool.watch:
            return 1 if report["problems"] else 0
        time.sleep(WATCH_SECONDS)


def gather(tools: Tools) -> dict[str, Any]:
    """Everything `status` shows, for `-o json` too; ages in seconds."""
    records, stats = tools.registry.alive(), read_stats(tools.redis)
    breakers, classes = tools.breakers.states(), tools.pauses.classes()
    watchers, workers = tools.presence.alive(), tools.presence.workers()
    names = {unquote(lane.partition("|")[2]) for lane in stats} | records.keys()
    report: dict[str, Any] = {
        "drivers": {
            name or _SYSTEM: _driver(name or _SYSTEM, stats, is_served=name in records)
            for name in sorted(names)
        },
        "breakers": {
            name: {"state": one.state, "failures": one.fails, "reason": one.reason}
            for name, one in breakers.items()
        },
        "paused_classes": {
            name: {"reason": one.reason, "until": one.until_ms / 1000}
            for name, one in classes.items()
        },
        "watchers": [f"{one.host}:{one.pid}" for one in watchers if one.role == "watcher"],
        "workers": [f"{one.host}:{one.pid}" for one in workers],
        "troubles": tools.presence.troubles(),
        "counts": read_sizes(tools.redis),
        "redis": read_redis(tools.redis),
        "redis_age": read_age(tools.redis),
    }
    report["problems"] = problems(report)
    return report


def problems(report: dict[str, Any]) -> list[str]:
    """What needs a person, one line each."""
    found = []
    if not (report["watchers"] or is_new(report)):
        found.append("no watcher is alive: new claims are not seen")
    if not (report["workers"] or is_new(report)):
        found.append("no worker is alive: nothing is provisioned")
    found += report["troubles"]
    for name, driver in report["drivers"].items():
        waiting = sum(lane["ready"] + lane["retry"] for lane in driver["work"].values())
        if driver["state"] == "not served" and waiting and not is_new(report):
            found.append(f"driver {name}: {waiting} keys wait and no worker serves it")
        if driver["state"].startswith("breaker"):
            found.append(f"driver {name}: {driver['state']}")
    counts = report["counts"]
    if counts["unsaved_volumes"]:
        found.append(f"{counts['unsaved_volumes']} volumes exist without a saved PV")
    if counts["abandoned_keys"]:
        found.append(f"{counts['abandoned_keys']} keys were given up: csi-fleet failed")
    if counts["quarantined_records"]:
        found.append(f"{counts['quarantined_records']} unreadable records were set aside in Redis")
    return found


def is_new(report: dict[str, Any]) -> bool:
    """Whether Redis lost its data a moment ago, so that it does not know yet who works."""
    return bool(report["redis_age"] < _BACK_SECONDS)


def _driver(name: str, stats: dict[str, LaneStats], *, is_served: bool) -> dict[str, Any]:
    work: dict[str, Any] = {}
    pauses: dict[str, str] = {}
    ends: dict[str, float] = {}
    # What people know: kinds of key about an object.
    for kind in (one.name for one in catalogue.kinds().values() if one.noun):
        figures = stats.get(lane_name(kind, "" if name == _SYSTEM else name))
        if figures is None:
            continue
        pauses |= figures.paused
        ends |= figures.paused_until
        work[kind] = {
            "ready": figures.ready,
            "retry": figures.retry,
            "running": figures.ticketed + figures.running,
            "limit": figures.limits.concurrency if figures.limits else None,
            "delayed": figures.delayed + figures.blocked,
            "oldest": figures.head_age_seconds,
        }
    state = "ok" if is_served else "not served"
    for kind, word in _PAUSES:
        if kind in pauses:
            end = f" until {moment(ends[kind])}" if kind in ends else ""
            state = f"{word}{end}: {pauses[kind] or 'no reason given'}"
    return {"state": state, "work": work}


def show(report: dict[str, Any]) -> None:
    """The report for a person."""
    rows = [
        [
            name,
            driver["state"],
            kind,
            *(lane[column] for column in ("ready", "retry", "running")),
            "-" if lane["limit"] is None else lane["limit"],
            lane["delayed"],
            duration(lane["oldest"]) if lane["oldest"] else "-",
        ]
        for name, driver in report["drivers"].items()
        for kind, lane in (driver["work"] or {"-": _NOTHING}).items()
    ]
    terminal.write_table("drivers", _HEAD, rows or [["none", *["-"] * (len(_HEAD) - 1)]])
    counts = report["counts"]
    terminal.write()
    terminal.write(f"watchers {len(report['watchers'])}: {', '.join(report['watchers']) or 'none'}")
    terminal.write(f"workers  {len(report['workers'])}: {', '.join(report['workers']) or 'none'}")
    terminal.write(
        f"in flight {counts['intents']}, unsaved volumes {counts['unsaved_volumes']}, "
        f"failing {counts['failing_keys']}, given up {counts['abandoned_keys']}"
    )
    redis, age = report["redis"], duration(report["redis_age"])
    terminal.write(
        f"redis {redis['version']}, {redis['memory']} used, "
        f"{redis['clients']} clients, eviction {redis['policy']}"
        + (f", lost its data or began {age} ago" if is_new(report) else "")
    )
    for name, pause in report["paused_classes"].items():
        end = f" until {moment(pause['until'])}" if pause["until"] else ""
        terminal.write(f"class {name} is paused{end}: {pause['reason'] or 'no reason given'}")
    for name, one in report["breakers"].items():
        terminal.write(
            f"breaker of {name}: {one['state']}, {one['failures']} failures, {one['reason']}"
        )
    if report["problems"]:
        terminal.write()
    terminal.write_lines((f"! {line}" for line in report["problems"]), style="bold yellow")


_NOTHING: Final = {
    **dict.fromkeys(("ready", "retry", "running", "delayed", "oldest"), 0),
    "limit": None,
}
