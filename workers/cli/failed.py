"""`csi-fleet failed`: lists keys that are failing or were given up; `--replay` retries them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.cli import knowndrivers, terminal
from workers.cli.retry import retry_now
from workers.explain.stranded import stranded
from workers.explain.words import duration, moment, rfc3339
from workers.queue.clock import read_clock
from workers.queue.inspect import FailedKey, failed_keys
from workers.queue.intents import IntentStore

if TYPE_CHECKING:
    from workers.cli.tools import Tools

_HEAD: Final = ("KIND", "OBJECT", "DRIVER", "FAILURES", "NEXT", "WHY")
_WIDTH: Final = 100
# Used as the `abandoned_at` of a stranded attempt, because such an attempt has no such time and
# never expires.
FOR_GOOD: Final = -1.0


def run(tools: Tools) -> int:
    """Run the command. The arguments and -n select namespaces; by default, all are shown."""
    tool = tools.settings.tool
    driver = tool.driver
    namespaces = {*tools.settings.arguments, *([tool.namespace] if tool.namespace else [])}
    found = [
        one
        for one in (*failed_keys(tools.redis), *_stranded(tools))
        if driver in {"", one.key.driver_name} and (not namespaces or one.key.tenant in namespaces)
    ]
    if driver and not found:
        knowndrivers.served(tools, driver)  # raises if the name is unknown
    for namespace in sorted(namespaces - {one.key.tenant for one in found}):
        knowndrivers.there(tools, namespace)
    now = read_clock(tools.redis).shown_now
    if tools.is_data:
        tools.write("Failed", {"items": [_json(one) for one in found]})
    elif found:
        terminal.write_table("failing", _HEAD, [_row(one, now) for one in found])
    else:
        where = f" in {', '.join(sorted(namespaces))}" if namespaces else ""
        of = f" of driver {driver}" if driver else ""
        terminal.write(f"no object{of} is failing{where}")
    if tool.replay:
        for one in found:
            retry_now(tools, one.key)
        if not tools.is_data:
            terminal.write(f"queued again: {len(found)}")
    return 0


def items(tools: Tools) -> list[dict[str, object]]:
    """Return all keys that are failing or were given up, for programs.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    return [_json(one) for one in (*failed_keys(tools.redis), *_stranded(tools))]


def _stranded(tools: Tools) -> list[FailedKey]:
    """Return the attempts that have no claim and need an operator; see `csi-fleet audit`."""
    return [
        FailedKey(one.key, fails=0, due=0.0, abandoned_at=FOR_GOOD, error=one.problem)
        for store in IntentStore(tools.redis).everywhere()
        for one in stranded(store.all().items())
    ]


def _row(one: FailedKey, now: float) -> list[object]:
    if one.abandoned_at == FOR_GOOD:
        again = "stranded"
    elif one.abandoned_at:
        again = f"given up {moment(one.abandoned_at)}"
    elif one.due:
        again = f"in {duration(max(0.0, one.due - now))}" + (" (slow)" if one.infeasible else "")
    else:
        again = "queued"
    is_long = len(one.error) > _WIDTH and terminal.is_terminal()
    error = f"{one.error[: _WIDTH - 3]}..." if is_long else one.error
    return [one.key.kind, one.key.object, one.key.driver, one.fails, again, error or "-"]


def _json(one: FailedKey) -> dict[str, object]:
    return {
        "kind": one.key.kind,
        "object": one.key.object,
        "uid": one.key.uid,
        "driver": one.key.driver,
        "failures": one.fails,
        "next_attempt": rfc3339(one.due),
        "given_up": rfc3339(one.abandoned_at),
        "stranded": one.abandoned_at == FOR_GOOD,
        "infeasible": one.infeasible,
        "error": one.error,
    }
