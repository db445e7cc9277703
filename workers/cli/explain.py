"""`csi-fleet explain pvc NAMESPACE/NAME` and `pv NAME`: what blocks it, and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.cli import terminal
from workers.cli.tools import named_object
from workers.explain.claims import claim_cause
from workers.explain.gather import Gatherer
from workers.explain.text import as_json, as_lines
from workers.explain.timeline import timeline
from workers.explain.volumes import volume_cause

if TYPE_CHECKING:
    from workers.cli.tools import Tools


def run(tools: Tools) -> int:
    """The command; exit code 0, or 1 when there is no such object."""
    kind, namespace, name = named_object(tools.settings.arguments, "explain")
    gatherer = Gatherer(
        tools.kube,
        tools.redis,
        registry=tools.registry,
        breakers=tools.breakers,
        pauses=tools.pauses,
        presence=tools.presence,
    )
    if kind == "pvc":
        facts = gatherer.claim(namespace, name)
        cause, claim, shown = claim_cause(facts), facts.claim, f"{namespace}/{name}"
        state, volume, now = facts.state, facts.volume, facts.now
    else:
        found = gatherer.volume(name)
        cause, claim, shown = volume_cause(found), None, name
        state, volume, now = found.state, found.volume, found.now
    entries = timeline(state.trail if state is not None else (), claim, volume)
    if tools.is_json:
        terminal.write_json(as_json(kind, shown, cause, state, entries))
    else:
        lines = as_lines(f"{kind} {shown}: {cause.code}", cause, entries, now)
        style = "bold yellow" if cause.is_problem else "bold green"
        terminal.write_lines(lines[:1], style=style)
        terminal.write_lines(lines[1:])
    return 1 if cause.code in {"not-found", "quota"} else 0
