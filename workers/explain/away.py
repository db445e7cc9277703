"""Explains an object from the API server alone, while Redis is unavailable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.explain.claims import cause_of_objects
from workers.explain.facts import Cause
from workers.explain.gather import Gatherer
from workers.explain.generic import Explained
from workers.explain.snapshots import GROUP, SHAPES, SNAPSHOT, Shape, content_cause, ready_cause
from workers.explain.volumes import settled_cause
from workers.kube.errors import NotFoundError
from workers.queue.inspect import KnownKeys
from workers.translate import snapshot_objects as objects
from workers.translate.fields import flag, is_deleting, text

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.nouns import Noun
    from workers.kube.objects import JsonObject

# Causes of a content that do not depend on the queue.
_SURE: Final = frozenset({"ready", "deleted-by-hand", "foreign-finalizer"})
_ERRORS: Final = ("attachError", "detachError", "error")
_ADVICE: Final = (
    "Check the Redis pod and its network policy, and run `csi-fleet doctor`. Nothing is lost: work "
    "continues automatically when Redis answers."
)


class WithoutQueue:
    """Replaces `Tools` but never queries Redis; it reports no driver, worker or pause."""

    def __init__(self, tools: Tools) -> None:
        self.kube = tools.kube
        self.redis = KnownKeys(tools.redis)
        self.registry = self.presence = self.pauses = self

    def alive(self) -> dict[str, Any]:
        """Return {}: no driver and no process is known."""
        return {}

    workers = alive

    def of_class(self, name: str) -> None:
        """Return None: no pause is known."""
        del name


def explain(tools: Tools, noun: Noun, namespace: str, name: str) -> Explained:
    """Explain an object from the API server alone; the state of the queue is unknown.

    Raises:
        ApiError: the API server does not answer, or refuses to show an object.
    """
    without: Any = WithoutQueue(tools)
    if noun.word == "pvc":
        facts = Gatherer(without).claim(namespace, name)
        said = facts.last_error[0] if facts.last_error else ""
        found = cause_of_objects(facts) or _unknown(said)
        return Explained(found, None, facts.claim, facts.volume)
    try:
        item = tools.kube.get(noun.resource, name, namespace=namespace)
    except NotFoundError as error:
        return Explained(Cause("not-found", f"There is no {noun.word} {name}: {error}."))
    return Explained(_of_object(without, noun.word, item) or _unknown(_error_of(item)))


def _of_object(without: Any, word: str, item: JsonObject) -> Cause | None:
    """Return the cause that the object alone shows; None if only the queue can show it."""
    name = item["metadata"]["name"]
    if word == "pv":
        return settled_cause(Gatherer(without).volume(name))
    if word == "va":
        return (
            None if is_deleting(item) or not flag(item, "status", "attached") else _attached(item)
        )
    shape = next((one for one in SHAPES if word == one.content_word), None)
    if shape is not None:
        found = content_cause(item, shape)
        return found if found.code in _SURE else None
    if objects.is_ready(item) and word in {"snapshot", "group-snapshot"} and not is_deleting(item):
        shape = GROUP if word == "group-snapshot" else SNAPSHOT
        return ready_cause(item, _content_of(without, shape, item), None, shape)
    return None


def _attached(item: JsonObject) -> Cause:
    node = text(item, "spec", "nodeName")
    return Cause("attached", f"The volume is attached to node {node}.", is_problem=False)


def _content_of(without: Any, shape: Shape, item: JsonObject) -> JsonObject | None:
    try:
        found: JsonObject = without.kube.get(
            shape.contents, text(item, "status", shape.bound_field)
        )
    except NotFoundError:
        return None
    return found


def _error_of(item: JsonObject) -> str:
    """Return the error message in an object's status, or "" if there is none."""
    status = item.get("status") or {}
    errors = (status.get(name) for name in _ERRORS)
    return next((str(one.get("message") or "") for one in errors if one), "")


def _unknown(said: str) -> Cause:
    known = (
        f" The last error recorded on the object: {said}" if said else " The object shows no error."
    )
    return Cause(
        "redis-away",
        "Redis does not answer, so it is not known what csi-fleet is doing about this "
        f"object.{known}",
        _ADVICE,
    )
