"""Renders the page `/fleet` as HTML, from what `status`, `pending` and `explain` found.

The page uses no scripts and a single style sheet. Everything that comes from the cluster is
escaped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from workers.cli.kubectl import plain
from workers.cli.status import DriverLine, beat_words, driver_lines, is_new
from workers.cli.wholes import WHOLES
from workers.explain import nouns
from workers.explain.moves import move_of
from workers.explain.text import folded
from workers.explain.words import duration, moment, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workers.cli.pending import Group, Waiting
    from workers.explain.facts import Cause
    from workers.explain.timeline import Entry

EXAMPLES: Final = 5
# The maximum number of rows in the list of waiting objects, so that browsers remain responsive.
MOST_ROWS: Final = 2000
_LEGEND: Final = (
    "<p><small>Waiting counts the objects that wait for the causes below; Oldest is how long the "
    "first of them has waited. Ready, Running and Failing count the keys of the queue, as "
    "<kbd>csi-fleet status</kbd> does. A failing key waits for its next attempt, or is ready or "
    "running again.</small></p>"
)
_STATES: Final = {"ok": "good", "standby": "calm", "paused": "calm", "failing": "warn"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data of the page, read at one moment.

    Attributes:
        at: the Unix time at which it was read.
        report: the result of `status`; {} if Redis does not answer.
        groups: the result of `pending`; None if it is not known.
        missed: the kinds that could not be listed, with the reason.
        notes: why the page may be incomplete: problem, cause, remedy.
    """

    at: float
    report: dict[str, Any] = field(default_factory=dict)
    groups: Sequence[Group] | None = None
    missed: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def overview(root: str, shot: Snapshot) -> str:
    """Render the first page."""
    lines = driver_lines(shot.report) if shot.report else []
    groups = shot.groups or ()
    problems = [*shot.notes, *shot.report.get("problems", ())]
    parts = [
        _notes(problems),
        f'<section aria-labelledby="drivers"><h2 id="drivers">{_count(len(lines), "driver")}</h2>',
        _drivers(root, lines, shot),
        '</section><section aria-labelledby="waits">',
        f'<h2 id="waits">{_waits(shot.groups)}</h2>',
        *(_group(root, group, shot.at) for group in groups),
        _missed(shot.missed),
        "</section>",
        _system(shot.report) if shot.report else "",
    ]
    return _page(root, "Fleet", "".join(parts), shot.at)


def waiting(root: str, shot: Snapshot, only: Mapping[str, str]) -> str:
    """Render all waiting objects, one per line, or only those with one cause or driver."""
    chosen = [
        (group, one)
        for group in shot.groups or ()
        for one in group.members
        if only.get("cause", one.cause.code) == one.cause.code
        and only.get("about", one.about) == one.about
    ]
    rows = [
        [
            _object(root, one.word, one.name),
            f"<code>{_text(one.cause.code)}</code>",
            _about(root, one),
            _age(shot.at, one.since),
        ]
        for _, one in chosen[:MOST_ROWS]
    ]
    head = ("Object", "Cause", "About", "Waits for")
    what = " ".join(filter(None, (only.get("cause", ""), only.get("about", ""))))
    rest = len(chosen) - len(rows)
    more = (
        f"<p>{rest} more are not shown; csi-fleet pending counts all of them.</p>" if rest else ""
    )
    body = (
        f"<h2>Waiting: {len(chosen)}{f' ({_text(what)})' if what else ''}</h2>"
        if shot.groups is not None
        else f"<h2>{_waits(None)}</h2>{_notes(shot.notes)}"
    )
    return _page(root, "Pending", body + _table(head, rows, numbers=()) + more, shot.at)


def explained(
    root: str,
    title: str,
    cause: Cause,
    at: float,
    *,
    entries: Sequence[Entry] = (),
    facts: Iterable[str] = (),
    groups: Sequence[Group] = (),
    notes: Sequence[str] = (),
) -> str:
    """Render the cause, remedy and history of an object, a driver, a class or a namespace."""
    style = "warn" if cause.is_problem else "good"
    parts = [
        _notes(notes),
        f'<h2>{_text(title)}</h2><div class="card {style}">',
        f"<p><code>{_text(cause.code)}</code></p><p>{_text(cause.text)}</p>",
        f"<p><strong>Remedy:</strong> {_text(cause.advice)}</p>" if cause.advice else "",
        f"<p>Whose move: {_text(move_of(cause))}.</p>",
        _commands(cause),
        "</div>",
    ]
    if known := list(facts):
        parts.append(f"<ul>{''.join(f'<li>{_text(one)}</li>' for one in known)}</ul>")
    parts += [_group(root, group, at) for group in groups]
    if entries:
        items = "".join(
            f"<li>{_time(entry.at)} {_text(entry.text)}</li>" for entry in folded(list(entries))
        )
        parts.append(f"<h3>What happened</h3><ol class='history'>{items}</ol>")
    return _page(root, title, "".join(parts), at)


def _commands(cause: Cause) -> str:
    items = "".join(f"<li><kbd>{_text(command)}</kbd></li>" for command in cause.commands)
    return f"<p>Run next:</p><ul>{items}</ul>" if items else ""


def failed(root: str, title: str, problem: str, at: float) -> str:
    """Render a page that reports why the requested page is unavailable."""
    return _page(root, title, f"<h2>{_text(title)}</h2>{_notes([problem])}", at)


def _page(root: str, title: str, body: str, at: float) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{_text(title)} - '
        f'csi-fleet</title><link rel="stylesheet" href="{root}/fleet/style.css"></head><body><a '
        'class="skip" href="#main">Skip to the content</a><header><nav aria-label="Pages"><h1><a '
        f'href="{root}/fleet">csi-fleet</a></h1><a href="{root}/fleet/pending">All that waits</a> '
        f'<a href="{root}/tasks">Tasks</a> <a href="{root}/">Workers</a></nav><form '
        f'action="{root}/fleet/find" method="get" role="search"><label '
        'for="object">Explain</label><input id="object" name="object" accesskey="e" '
        'placeholder="pvc shop/data" required><button>Go</button></form></header><main id="main" '
        f'tabindex="-1">{body}</main><footer>As of {_time(at)} (UTC). Reload the page to update '
        "it. Nothing can be changed here.</footer></body></html>"
    )


def _drivers(root: str, lines: Sequence[DriverLine], shot: Snapshot) -> str:
    # driver -> since when each of its objects has waited, as Unix times
    waits: dict[str, list[float]] = {}
    for group in shot.groups or ():
        for one in group.members:
            waits.setdefault(one.driver, []).append(one.since)
    rows = []
    for line in lines:
        since = waits.get(line.name, ())
        nodes = f" ({line.nodes} nodes)" if line.nodes > 1 else ""
        why = f"<br><small>{_text(line.why)}</small>" if line.why else ""
        rows.append(
            [
                f"{_object(root, 'driver', line.name)}{nodes}",
                f'<span class="{_STATES.get(line.state, "bad")}">{_text(line.state)}</span>{why}',
                "?" if shot.groups is None else str(len(since)),
                _age(shot.at, min(filter(None, since), default=0.0)),
                str(line.ready),
                str(line.running),
                str(line.failing),
            ]
        )
    head = ("Driver", "State", "Waiting", "Oldest", "Ready", "Running", "Failing")
    if not rows:
        return "<p>No driver is known.</p>"
    return _table(head, rows, numbers=(2, 3, 4, 5, 6)) + _LEGEND


def _group(root: str, group: Group, now: float) -> str:
    first, cause = group.oldest, group.oldest.cause
    about = _about(root, first)
    query = urlencode({"cause": cause.code, "about": first.about})
    rest = len(group.members) - EXAMPLES
    shown = ", ".join(_object(root, one.word, one.name) for one in group.members[:EXAMPLES])
    more = (
        f', <a href="{root}/fleet/pending?{escape(query)}">and {rest} more</a>' if rest > 0 else ""
    )
    command = group.command()
    remedy = f"<p><strong>Remedy:</strong> {_text(cause.advice)}</p>"
    return (
        f'<article class="card {"warn" if cause.is_problem else "good"}">'
        f"<h3>{len(group.members)} x <code>{_text(cause.code)}</code>"
        f"{f', {about}' if about else ''}"
        f"{f', oldest {_age(now, first.since)}' if first.since else ''}</h3>"
        f"<p>{_text(cause.text)}</p>"
        f"{remedy if cause.advice and cause.advice != command else ''}"
        f"<p>Whose move: {_text(move_of(cause))}. Run <kbd>{_text(command)}</kbd></p>"
        f"<p>{shown}{more}</p></article>"
    )


def _system(report: dict[str, Any]) -> str:
    counts, redis = report["counts"], report["redis"]
    redis_state = f"Redis {redis['version']}, {redis['memory']} used"
    if is_new(report):
        redis_state += ", has just started, or has just lost its data"
    facts = {
        "Watchers": str(len(report["watchers"])),
        "Workers": str(len(report["workers"])),
        "Beat": beat_words(has_beat=report["beat"]),
        "Open attempts": str(counts["intents"]),
        "Unsaved volumes": str(counts["unsaved_volumes"]),
        "Failing": str(counts["failing_keys"]),
        "Given up": str(counts["abandoned_keys"]),
        "Redis": redis_state,
    }
    items = "".join(
        f"<div><dt>{name}</dt><dd>{_text(fact)}</dd></div>" for name, fact in facts.items()
    )
    return (
        f'<section aria-labelledby="system"><h2 id="system">System</h2><dl>{items}</dl></section>'
    )


def _about(root: str, one: Waiting) -> str:
    """Return a link to the class or driver that the cause is about; "" if there is none."""
    word, _, name = one.about.partition(" ")
    return f"{word} {_object(root, word, name, is_named=True)}" if name else ""


def _object(root: str, word: str, name: str, *, is_named: bool = False) -> str:
    """Return the object's name, as a link if `explain` knows the object's kind."""
    shown = _text(name if is_named or word in WHOLES else f"{word} {name}")
    if word not in nouns.nouns() and word not in WHOLES:
        return shown
    return f'<a href="{root}/fleet/{word}/{quote(name)}">{shown}</a>'


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{_text(note)}</li>" for note in notes)
    return f'<ul class="notes" role="alert">{items}</ul>' if items else ""


def _missed(missed: Mapping[str, str]) -> str:
    return "".join(
        f"<p>{_text(name)} are not included: {_text(why)}</p>" for name, why in missed.items()
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    """Return a table of HTML cells; on a narrow screen, each cell shows its column's name."""
    heads = "".join(
        f'<th scope="col"{_number(at, numbers)}>{name}</th>' for at, name in enumerate(head)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{head[at]}"{_number(at, numbers)}>{cell}</td>'
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _number(at: int, numbers: Sequence[int]) -> str:
    return ' class="number"' if at in numbers else ""


def _waits(groups: Sequence[Group] | None) -> str:
    if groups is None:
        return "Waiting: not known"
    if not groups:
        return "Nothing waits"
    count = sum(len(group.members) for group in groups)
    return f"Waiting: {count}, for {_count(len(groups), 'cause')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _age(now: float, since: float) -> str:
    return _text(duration(max(0.0, now - since))) if since else "-"


def _time(at: float) -> str:
    return f'<time datetime="{rfc3339(at) or ""}">{_text(moment(at))}</time>'


def _text(text: str) -> str:
    """Escape text from the cluster, so that it contains neither markup nor invisible characters."""
    return escape(plain(text))


STYLE: Final = """\
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --warn: #9a6700; --bad: #cf222e;
  --calm: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --good: #3fb950; --warn: #d29922; --bad: #ff7b72; --calm: #9198a1; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 0 1rem 2rem; line-height: 1.45;
  font-family: system-ui, sans-serif; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.2; } h1 { font-size: 1.2rem; margin: 0; } h2 { font-size: 1.3rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; } p { margin: .3rem 0; }
header { display: flex; flex-wrap: wrap; gap: .8rem 2rem; align-items: center;
  justify-content: space-between; padding: .8rem 0; border-bottom: 1px solid var(--line); }
nav { display: flex; flex-wrap: wrap; gap: 1rem; align-items: baseline; }
form { display: flex; gap: .5rem; align-items: center; flex-wrap: wrap; }
input, button { font: inherit; padding: .3rem .6rem; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: .5rem; }
a:focus-visible, input:focus-visible, button:focus-visible { outline: 3px solid #0969da;
  outline-offset: 2px; }
main:focus { outline: none; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; } .number { text-align: right; font-variant-numeric: tabular-nums; }
.card { border: 1px solid var(--line); border-left: .4rem solid var(--calm); border-radius: .3rem;
  padding: .6rem .9rem; margin: .8rem 0; }
.card.warn { border-left-color: var(--warn); } .card.good { border-left-color: var(--good); }
.notes { border: 2px solid var(--bad); border-radius: .3rem; padding: .6rem 2rem; }
span.good { color: var(--good); } span.warn { color: var(--warn); }
span.calm { color: var(--calm); } span.bad { color: var(--bad); font-weight: bold; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .8rem; }
dt { color: var(--calm); font-size: .85rem; } dd { margin: 0; }
kbd, code { font-family: ui-monospace, monospace; font-size: .92em; }
kbd { border: 1px solid var(--line); border-radius: .2rem; padding: 0 .3rem; }
.history { list-style: none; padding: 0; }
.history time { color: var(--calm); margin-right: .6rem; }
footer { margin-top: 2rem; color: var(--calm); font-size: .9rem; }
@media (max-width: 40rem) {
  thead { position: absolute; left: -99rem; } tr { display: block; padding: .5rem 0;
    border-bottom: 1px solid var(--line); }
  td, td.number { display: flex; gap: 1rem; justify-content: space-between; text-align: right;
    border: 0; padding: .15rem 0; }
  td::before { content: attr(data-name); color: var(--calm); } }
"""
