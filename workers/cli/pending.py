"""`csi-fleet pending`: lists all waiting objects, grouped by the cause that `explain` reports.

Every object that may be waiting is explained. Objects are listed once and Redis is read in batches,
so that two thousand claims take only seconds. Keys of deleted objects are read from Redis.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from workers.cli import knowndrivers, terminal
from workers.cli.explaining import answers, best, unseen
from workers.controllers import catalogue
from workers.errors import ApiError, ConfigError
from workers.explain import commands, nouns
from workers.explain.facts import Cause
from workers.explain.gather import driver_of
from workers.explain.listed import Listed
from workers.explain.moves import SETTLED, move_of
from workers.explain.serving import Records
from workers.explain.waiting import waits
from workers.explain.words import duration, rfc3339, stamp
from workers.kube import paths
from workers.queue.inspect import KnownKeys, failed_keys
from workers.translate.claims import claim_class_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject

EXAMPLES: Final = 3
# The number of examples in `-o wide` and in output for programs.
MANY_EXAMPLES: Final = 20
# Causes that concern a class, not the class's driver.
_OF_CLASS: Final = frozenset(
    {"class-missing", "static-class", "class-paused", "secret-missing", "unknown-provisioner"}
)
# Causes that a single command removes for all objects in the group.
_OF_MANY: Final = frozenset({"paused", "class-paused"})
_CODE: Final = re.compile(r"code = (\w+)")


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting object.

    Attributes:
        word: the object's noun.
        name: the object's name, with its namespace if it has one.
        cause: why the object is waiting.
        driver: the driver that the object is waiting for; "" if unknown.
        storage_class: the class of a claim; "" if the claim names none.
        since: the Unix time at which the object began to wait; 0 if unknown.
    """

    word: str
    name: str
    cause: Cause
    driver: str
    storage_class: str
    since: float

    @property
    def about(self) -> str:
        """The class or driver that the cause concerns; "" if there is none."""
        if self.cause.code in _OF_CLASS:
            return f"class {self.storage_class}" if self.storage_class else ""
        return f"driver {self.driver}" if self.driver else ""


@dataclass(slots=True)
class Group:
    """Waiting objects with the same cause; the object that has waited longest comes first."""

    members: list[Waiting] = field(default_factory=list)

    @property
    def oldest(self) -> Waiting:
        """The member whose text and advice are shown for the whole group."""
        return self.members[0]

    def oldest_seconds(self, now: float) -> float | None:
        """Return how long the oldest member has been waiting; None if that is unknown."""
        since = self.oldest.since
        return round(max(0.0, now - since), 3) if since else None

    def examples(self, count: int) -> list[str]:
        """Return the nouns and names of the first `count` members."""
        return [f"{one.word} {one.name}" for one in self.members[:count]]

    def command(self) -> str:
        """The command to run next."""
        first = self.oldest
        if first.cause.code in _OF_MANY:
            return first.cause.commands[0]
        if first.word not in nouns.nouns():
            return f"csi-fleet failed{f' --driver={first.driver}' if first.driver else ''}"
        return f"csi-fleet explain {first.word} {first.name}"


class ReadOnce:
    """A stand-in for `Tools` whose connections read everything only once."""

    def __init__(self, tools: Tools, namespace: str) -> None:
        self.settings = tools.settings
        self.kube = Listed(tools.kube, namespace)
        self.redis = KnownKeys(tools.redis)
        self._tools = tools

    @cached_property
    def registry(self) -> Answers:
        """The registry of drivers, read once."""
        return Answers(alive=Records(self._tools.registry.alive()))

    @cached_property
    def presence(self) -> Answers:
        """The processes that are alive, read once."""
        presence = self._tools.presence
        return Answers(
            alive=presence.alive(), workers=presence.workers(), troubles=presence.troubles()
        )

    @cached_property
    def pauses(self) -> Answers:
        """The pauses of storage classes, read once."""
        return ClassPauses(self._tools.pauses.classes())


class Answers:
    """An object that has, for each keyword argument, a method that returns the argument's value."""

    def __init__(self, **known: Any) -> None:
        self._known = known

    def __getattr__(self, name: str) -> Any:
        answer = self._known[name]
        return lambda: answer


class ClassPauses(Answers):
    """The pauses of storage classes, keyed by class name."""

    def __init__(self, classes: Any) -> None:
        super().__init__(classes=classes)
        self._classes = classes

    def of_class(self, name: str) -> Any:
        """Return the pause of one class, or None if the class is not paused."""
        return self._classes.get(name)


def run(tools: Tools) -> int:
    """Run the command; return 0 if the objects could be read, even if some are waiting."""
    tool = tools.settings.tool
    if tool.namespace and tool.all_namespaces:
        raise ConfigError("-n NAMESPACE and -A cannot be combined. Use one of the two flags")
    found, missed = gather(tools, tool.namespace, tool.driver)
    if not found and tool.driver:
        knowndrivers.served(tools, tool.driver)  # raises if the name is unknown
    if not found and tool.namespace:
        knowndrivers.there(tools, tool.namespace)
    groups = grouped(found)
    if tools.is_data:
        tools.write("Pending", as_fields(groups, missed))
        return 0
    where = f" in namespace {tool.namespace}" if tool.namespace else ""
    of = f" for driver {tool.driver}" if tool.driver else ""
    if not groups:
        terminal.write(f"no object is waiting{where}{of}")
    else:
        show(groups, f"{where}{of}", MANY_EXAMPLES if tools.is_wide else EXAMPLES)
    show_missed(missed)
    return 0


def gather(
    tools: Tools, namespace: str = "", driver: str = "", storage_class: str = ""
) -> tuple[list[Waiting], dict[str, str]]:
    """Return all waiting objects, and the kinds that could not be listed, with the reason.

    Args:
        tools: the connections.
        namespace: return only objects in this namespace or for a claim in it; "" for all.
        driver: return only objects that are waiting for this driver; "" for all.
        storage_class: return only objects of this class; "" for all.

    Raises:
        ApiError: the API server does not answer.
        QueueUnavailable: Redis does not answer.
    """
    once: Any = ReadOnce(tools, namespace)
    once.kube.all(paths.VOLUMES)
    once.kube.all(paths.STORAGE_CLASSES)
    wanted = [
        (noun, item)
        for noun in nouns.nouns().values()
        for item in once.kube.all(noun.resource)
        if waits(noun.word, item) and _is_in(once, item, namespace)
    ]
    found: list[Waiting] = []
    for is_loaded in (False, True):
        # The first round only collects the keys that have to be read.
        if is_loaded:
            once.redis.load()
        found = [_explained(once, noun, item) for noun, item in wanted]
    waiting = [one for one in found if one.cause.code not in SETTLED]
    waiting += _known_to_redis_alone(tools, {(one.word, one.name) for one in found}, namespace)
    chosen = [
        one
        for one in waiting
        if driver in {"", one.driver} and storage_class in {"", one.storage_class}
    ]
    return chosen, once.kube.missed


def _explained(once: Any, noun: nouns.Noun, item: JsonObject) -> Waiting:
    metadata = item["metadata"]
    namespace, name = metadata.get("namespace") or "", metadata["name"]
    answer = best(answers(once, noun, namespace, name))
    spec = item.get("spec") or {}
    storage_class = claim_class_name(item) if noun.word in {"pvc", "pv"} else ""
    driver = spec.get("attacher") or spec.get("driver") or (spec.get("csi") or {}).get("driver")
    if answer.state is not None and answer.state.key.driver:
        driver = answer.state.key.driver_name
    elif not driver and storage_class:
        driver = _driver_of_class(once, storage_class)
    asked = metadata.get("deletionTimestamp") or metadata.get("creationTimestamp") or ""
    is_bound = (item.get("status") or {}).get("phase") == "Bound"
    since = stamp(asked)
    if is_bound and not metadata.get("deletionTimestamp"):  # it is waiting for a more recent change
        since = answer.state.since if answer.state is not None else 0.0
    cause = commands.filled(unseen(once, answer.cause), noun.word, namespace, name, answer)
    return Waiting(
        noun.word,
        f"{namespace}/{name}" if namespace else name,
        cause,
        driver or "",
        storage_class,
        since,
    )


def _driver_of_class(once: Any, name: str) -> str:
    try:
        provisioner = str(once.kube.get_class(name).get("provisioner") or "")
    except ApiError:
        return ""
    return driver_of(once.registry.alive(), provisioner)


def _is_in(once: Any, item: JsonObject, namespace: str) -> bool:
    """Return True if an object is in the namespace or belongs to a claim or snapshot in it."""
    own = item["metadata"].get("namespace")
    if not namespace or own:
        return own == namespace or not namespace
    spec = item.get("spec") or {}
    name = (spec.get("source") or {}).get("persistentVolumeName")
    if name:
        try:
            spec = once.kube.get_volume(name).get("spec") or {}
        except ApiError:
            return False
    refs = ("claimRef", "volumeSnapshotRef", "volumeGroupSnapshotRef")
    return namespace in {(spec.get(ref) or {}).get("namespace") for ref in refs}


def _known_to_redis_alone(
    tools: Tools, seen: set[tuple[str, str]], namespace: str
) -> Iterator[Waiting]:
    """Yield failing work for which no object was listed: the object is gone, or there is none."""
    for one in failed_keys(tools.redis):
        kind = catalogue.kinds().get(one.key.kind)
        word = (kind.noun if kind is not None else "") or one.key.kind
        noun = nouns.nouns().get(word)
        is_short = noun is not None and not noun.resource.namespaced
        name = one.key.object.rpartition("/")[2] if is_short else one.key.object
        if (word, name) in seen or (namespace and one.key.tenant != namespace):
            continue
        cause = Cause(
            "failed",
            f"The last attempt failed: {one.error or 'no error has been recorded'}",
            f"csi-fleet failed --driver={one.key.driver_name}" if one.key.driver else "",
            one.due,
        )
        yield Waiting(word, name, cause, one.key.driver_name, "", 0.0)


def grouped(found: Iterable[Waiting]) -> list[Group]:
    """Group the objects by cause; problems come first, and large groups before small ones."""
    groups: dict[tuple[str, ...], Group] = {}
    for one in found:
        code = _CODE.search(one.cause.text)
        key = (one.cause.code, one.about, code.group(1) if code else "")
        groups.setdefault(key, Group()).members.append(one)
    for group in groups.values():
        group.members.sort(key=lambda one: (one.since or float("inf"), one.name))
    return sorted(
        groups.values(),
        key=lambda one: (not one.oldest.cause.is_problem, -len(one.members), one.oldest.cause.code),
    )


def show(groups: list[Group], where: str, examples: int) -> None:
    """Print the groups, one paragraph each."""
    now, count = time.time(), sum(len(one.members) for one in groups)
    causes = f"{len(groups)} cause{'s' if len(groups) > 1 else ''}"
    terminal.write(f"waiting{where}: {count}, for {causes}")
    for group in groups:
        first, cause = group.oldest, group.oldest.cause
        seconds = group.oldest_seconds(now)
        age = f"oldest {duration(seconds)}" if seconds is not None else ""
        head = [f"{len(group.members)} x {cause.code}", first.about, age]
        terminal.write()
        terminal.write_explained([", ".join(filter(None, head))], is_problem=cause.is_problem)
        terminal.write(f"  {cause.text}")
        terminal.write(f"  who must act: {move_of(cause)}")
        shown = group.examples(examples)
        more = ", ..." if len(group.members) > len(shown) else ""
        terminal.write(f"  such as: {', '.join(shown)}{more}")
        command = group.command()
        if cause.advice and cause.advice != command:
            terminal.write(f"  -> {cause.advice}")
        terminal.write(f"  -> {command}")


def show_missed(missed: Mapping[str, str]) -> None:
    """Print the kinds that could not be listed, one per line."""
    for name, why in missed.items():
        terminal.write(f"! {name} are not included: {why}")


def as_fields(groups: list[Group], missed: Mapping[str, str]) -> dict[str, Any]:
    """Return the groups as data, for programs."""
    now = time.time()
    return {
        "waiting": sum(len(one.members) for one in groups),
        "groups": [
            {
                "cause": group.oldest.cause.code,
                "problem": group.oldest.cause.is_problem,
                "count": len(group.members),
                "oldest": rfc3339(group.oldest.since),
                "oldest_seconds": group.oldest_seconds(now),
                "driver": group.oldest.driver,
                "class": group.oldest.storage_class,
                "text": group.oldest.cause.text,
                "advice": group.oldest.cause.advice,
                "move": move_of(group.oldest.cause),
                "command": group.command(),
                "examples": group.examples(MANY_EXAMPLES),
            }
            for group in groups
        ],
        "not_looked_at": dict(missed),
    }
