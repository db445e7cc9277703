"""Combines what controllers and Redis report about an object, for several commands.

`explain`, `pending` and `/fleet` use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from workers.controllers import catalogue
from workers.errors import QueueUnavailable
from workers.explain import absent, away, commands, generic, gone, nouns, refusals, remedies, using
from workers.explain.facts import NO_REASON, Cause
from workers.explain.generic import Explained
from workers.explain.timeline import timeline
from workers.kube.errors import ForbiddenError

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.nouns import Noun
    from workers.explain.timeline import Entry
    from workers.spec import Kind, Spec

# Causes that do not say why the object is waiting, possibly because no process saw the object.
# `uploading` is left out, because the driver is polled during an upload.
_UNSEEN: Final = (NO_REASON - {"uploading"}) | {
    "not-queued",
    "change-unseen",
    "nothing-to-do",
    "no-free-worker",
}
ABSENT: Final = frozenset({"not-found", "quota", "not-created", "crd-missing"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The explanation of an object.

    Attributes:
        found: the most informative explanation that a controller gave.
        cause: the cause, including anything that keeps watchers and workers from seeing the object.
        problem: why Redis did not answer; "" if it did.
    """

    found: Explained
    cause: Cause
    problem: str = ""

    def history(self) -> list[Entry]:
        """Return what happened to the object, oldest first."""
        state = self.found.state
        trail = state.trail if state is not None else ()
        return timeline(trail, self.found.claim, self.found.volume)


def explained(tools: Tools, word: str, namespace: str, name: str) -> Answer:
    """Explain one object.

    Raises:
        ApiError: the API server does not answer, or refuses to show an object.
    """
    noun = nouns.nouns()[word]
    try:
        found = best(answers(tools, noun, namespace, name))
        if found.cause.code in ABSENT:
            found = _with_remedy(gone.explain(tools, noun, namespace, name) or found)
            cause = absent.hinted(tools, noun, namespace, name, found.cause)
            found = replace(found, cause=cause)
        found = using.explain(tools, found)
        cause, problem = unseen(tools, found.cause), ""
    except QueueUnavailable as error:
        found = using.explain(tools, away.explain(tools, noun, namespace, name), has_queue=False)
        cause, problem = found.cause, str(error)
    return Answer(found, commands.filled(cause, word, namespace, name, found), problem)


def without_permission(
    tools: Tools, word: str, namespace: str, name: str, error: ForbiddenError
) -> Answer:
    """Return what can be said about an object that the user must not read."""
    said = ""
    try:
        known = known_to_redis(tools, word, namespace, name)
    except QueueUnavailable:
        known = None
    if known is not None:
        said = f" Redis says about it: {known.cause.text}"
    state = known.found.state if known is not None else None
    found = Explained(refusals.cause(str(error), said), state)
    return Answer(found, commands.filled(found.cause, word, namespace, name, found))


def known_to_redis(tools: Tools, word: str, namespace: str, name: str) -> Answer | None:
    """Return the data in Redis about an object that the user must not read, or None.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    noun = nouns.nouns()[word]
    state = gone.last_state(tools, noun, namespace, name)
    if state is None:
        return None
    cause = gone.still_open(tools, noun, state) if gone.is_open(state) else generic.NOTHING
    found = Explained(cause, state)
    return Answer(found, commands.filled(unseen(tools, cause), word, namespace, name, found))


def unseen(tools: Tools, cause: Cause) -> Cause:
    """If the cause gives no reason, add what keeps watchers and workers from seeing the object."""
    if cause.code not in _UNSEEN:
        return cause
    troubles = tools.presence.troubles()
    if not any(one.role == "watcher" for one in tools.presence.alive()):
        troubles.append("no watcher is running, so changes are not noticed")
    if not troubles:
        return cause
    return replace(
        cause,
        text=f"{cause.text} A possible reason: {'; '.join(troubles)}.",
        advice="Start the watcher, or grant the missing permission; work then continues "
        f"automatically. {cause.advice}".rstrip(),
        is_problem=True,
        templates=(commands.STATUS, *commands.COMMANDS.get(cause.code, ())),
    )


def answers(tools: Tools, noun: Noun, namespace: str, name: str) -> list[Explained]:
    """Return the explanations from all controllers that work on the object.

    Raises:
        ApiError: the API server does not answer, or refuses to show an object.
        QueueUnavailable: Redis does not answer.
    """
    found: list[Explained] = []
    rest: list[tuple[Spec, Kind]] = []
    refused: list[ForbiddenError] = []
    # Compare specs by name, because hashing a spec with all its flags is slow.
    for spec in {spec.name: spec for spec, _ in noun.kinds}.values():
        own = catalogue.explainer(spec.name)
        if own is not None:
            try:
                found.append(_with_remedy(own(tools, noun.word, namespace, name)))
            except ForbiddenError as error:
                refused.append(error)
        else:
            rest += [pair for pair in noun.kinds if pair[0] is spec]
    if rest:
        part = nouns.Noun(noun.word, noun.resource, tuple(rest))
        found.append(_with_remedy(generic.explain(tools, part, namespace=namespace, name=name)))
    if refused and not found:
        raise refused[0]
    return found


def _with_remedy(found: Explained) -> Explained:
    return replace(found, cause=remedies.applied(found.cause, found.state))


def best(found: list[Explained]) -> Explained:
    """Return the first one that reports a problem, else one with a known key, else the first."""
    problems = [one for one in found if one.cause.is_problem]
    busy = [one for one in found if one.state is not None and one.state.is_known]
    return (problems or busy or found)[0]
