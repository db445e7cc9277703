"""`csi-fleet explain driver|class|namespace NAME`: explains why its objects are waiting.

The command shows a cause that blocks the whole driver, class or namespace, for example that no
worker serves the driver. If there is no such cause, it shows the cause that keeps most of the
objects waiting. All waiting objects follow, grouped as in `pending`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from workers.cli import knowndrivers, pending, status, terminal
from workers.cli.explaining import unseen
from workers.controllers import catalogue
from workers.errors import ApiError, ConfigError
from workers.explain import commands, queueing
from workers.explain.claims import NO_PROVISIONER
from workers.explain.facts import Cause
from workers.explain.gather import Gatherer, driver_of
from workers.explain.generic import Explained
from workers.explain.serving import PROVISIONER, Served, runs
from workers.explain.text import as_json, as_lines
from workers.explain.words import duration, moment, nearest
from workers.kube import paths
from workers.kube.errors import NotFoundError, Unreachable
from workers.queue.inspect import read_keys
from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.cli.pending import Group
    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject

_IN_DELETION: Final = "Terminating"
_SAID: Final = frozenset({"NamespaceContentRemaining", "NamespaceFinalizersRemaining"})


@dataclass(frozen=True, slots=True)
class Whole:
    """The state of a driver, a class or a namespace.

    Attributes:
        held: the cause that blocks all work for the driver, class or namespace; None if there
            is none.
        facts: sentences that describe the driver, class or namespace.
        groups: all its waiting objects, grouped by cause.
        missed: the kinds that could not be listed, with the reason.
        is_there: False if there is no such driver, class or namespace.
    """

    held: Cause | None
    facts: list[str] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    missed: Mapping[str, str] = field(default_factory=dict)
    is_there: bool = True

    def cause(self) -> Cause:
        """The cause that is shown first."""
        if self.held is not None:
            return self.held
        count = sum(len(one.members) for one in self.groups)
        if not count:
            return Cause("nothing-to-do", "No work is waiting.", is_problem=False)
        first = self.groups[0]
        of = f" of {count}" if len(self.groups) > 1 else ""
        oldest = first.oldest
        what = f"Waiting for this reason: {len(first.members)}{of}"
        example = f"{oldest.word} {oldest.name}"
        return replace(oldest.cause, text=f"{what} ({example}): {oldest.cause.text}")

    def shown(self, tools: Tools, word: str, name: str) -> Cause:
        """The cause that is shown first, with its commands."""
        return commands.filled(unseen(tools, self.cause()), word, "", name, Explained(self.cause()))


def run(tools: Tools, word: str, name: str) -> int:
    """Run the command; return 1 if there is no such object, else 0."""
    whole = WHOLES[word](tools, name)
    cause = whole.shown(tools, word, name)
    groups = whole.groups
    if tools.is_data:
        fields = as_json(word, name, cause, None, [])
        waits = pending.as_fields(groups, whole.missed)
        tools.write("Explanation", {**fields, "facts": whole.facts, "pending": waits})
    else:
        lines = as_lines(f"{word} {name}: {cause.code}", cause, [], 0.0)
        terminal.write_explained(lines, is_problem=cause.is_problem)
        if whole.facts:
            terminal.write_lines(["", "What it is:", *(f"  {one}" for one in whole.facts)])
        if groups:
            terminal.write()
            pending.show(groups, "", pending.MANY_EXAMPLES if tools.is_wide else pending.EXAMPLES)
        pending.show_missed(whole.missed)
    return 0 if whole.is_there else 1


def named(arguments: tuple[str, ...]) -> tuple[str, str] | None:
    """Return `driver`, `class` or `namespace` and a name, or None for any other arguments.

    Raises:
        ConfigError: the name is missing.
    """
    words = list(arguments)
    if len(words) == 1 and "/" in words[0]:
        words = words[0].split("/", 1)
    word = _WORDS.get(words[0].lower()) if words else None
    if word is None or len(words) > 2:
        return None
    if len(words) == 1 or not words[1] or "/" in words[1]:
        raise ConfigError(f"the name of the {word} is missing. Run `csi-fleet explain {word} NAME`")
    return word, words[1]


def of_driver(tools: Tools, name: str) -> Whole:
    """Explain what blocks a driver's work, and list the objects that are waiting for it.

    Raises:
        ConfigError: the driver's name is unknown.
    """
    records = knowndrivers.served(tools, name)
    groups, missed = _waiting(tools, driver=name)
    return Whole(_held(tools, name), _driver_facts(tools, name, records), groups, missed)


def of_class(tools: Tools, name: str) -> Whole:
    """Explain what blocks a class's claims, and list the ones that are waiting."""
    try:
        storage_class = tools.kube.get_class(name)
    except NotFoundError:
        known = [one["metadata"]["name"] for one in tools.kube.list(paths.STORAGE_CLASSES)]
        groups, missed = _waiting(tools, storage_class=name)
        hint = nearest(name, known)
        return Whole(
            Cause(
                "class-missing",
                f'Storage class "{name}" does not exist.{hint}',
                "Create the class, or create its claims again with a class that exists: "
                "kubectl get sc",
                templates=(commands.CLASSES,),
            ),
            [],
            groups,
            missed,
            is_there=False,
        )
    provisioner = str(storage_class.get("provisioner") or "")
    driver = driver_of(tools.registry.alive(), provisioner)
    groups, missed = _waiting(tools, storage_class=name)
    binding = storage_class.get("volumeBindingMode") or "Immediate"
    policy = storage_class.get("reclaimPolicy") or "Delete"
    facts = [
        f"Provisioner: {provisioner}. Binding mode: {binding}. Reclaim policy: {policy}.",
        f"More about the driver of the class: csi-fleet explain driver {driver}",
    ]
    if provisioner == NO_PROVISIONER:
        held: Cause | None = Cause(
            "static-class",
            f'Storage class "{name}" has no dynamic provisioning; it is for manually created '
            "volumes.",
            "Create matching PersistentVolumes.",
        )
        return Whole(held, facts[:1], groups, missed)
    pause = tools.pauses.of_class(name)
    if pause is not None:
        end = f" until {moment(pause.until_ms / 1000)}" if pause.until_ms else ""
        held = Cause(
            "class-paused",
            f"An operator paused the storage class{end}: {pause.reason or 'no reason given'}.",
            f"csi-fleet resume --class={name}",
            pause.until_ms / 1000,
        )
    else:
        held = _held(tools, driver, controller=PROVISIONER)
    return Whole(held, facts, groups, missed)


def of_namespace(tools: Tools, name: str) -> Whole:
    """Explain what blocks a namespace's claims and snapshots, and list those that are waiting."""
    groups, missed = _waiting(tools, namespace=name)
    try:
        found = tools.kube.get(paths.NAMESPACES, name)
    except NotFoundError:
        return Whole(_no_namespace(tools, name, groups), [], groups, missed, bool(groups))
    except Unreachable:
        raise
    except ApiError as error:
        note = f"The state is not known: {error}."
        return Whole(None, [note], groups, missed)
    return Whole(_namespace_held(tools, name, found), [], groups, missed)


def _no_namespace(tools: Tools, name: str, groups: list[Group]) -> Cause | None:
    """Return the cause for a missing namespace; None if some of its objects are still waiting.

    The waiting objects have causes of their own.
    """
    if groups:
        return None
    try:
        known = [one["metadata"]["name"] for one in tools.kube.list(paths.NAMESPACES)]
    except ApiError:
        known = []
    return Cause(
        "not-found",
        f"There is no namespace {name}.{nearest(name, known)}",
        "Check the name: kubectl get namespaces",
    )


def _namespace_held(tools: Tools, name: str, found: JsonObject) -> Cause | None:
    status_ = found.get("status") or {}
    if status_.get("phase") == _IN_DELETION:
        said = [
            str(one.get("message") or "")
            for one in status_.get("conditions") or ()
            if one.get("status") == "True" and one.get("type") in _SAID
        ]
        return Cause(
            "namespace-terminating",
            f"The namespace was deleted but is not empty yet. {' '.join(said)}".rstrip(),
            "Delete what is left in the namespace; a claim remains while a pod uses it: kubectl "
            f"get pods,pvc,volumesnapshots -n {name}",
        )
    for quota in Gatherer(tools).quotas(name):
        return Cause(
            "quota",
            f"The namespace's ResourceQuota {quota.name} is used up: {quota.resource} {quota.used} "
            f"of {quota.hard}. The API server refuses to create a claim that exceeds the quota.",
            "Delete claims or raise the quota.",
        )
    return None


def _held(tools: Tools, driver: str, controller: str = "") -> Cause | None:
    """Return the cause that blocks all work for a driver, or one controller's work for it."""
    records = tools.registry.alive()
    own = {name: one for name, one in records.items() if one.get("name") == driver}
    if not any(not controller or runs(one, controller) for one in own.values()):
        served = Served.by(records, controller or PROVISIONER)
        exists = Gatherer(tools).csi_driver_exists(driver) if controller else True
        return queueing.unserved(
            driver, served, workers=len(tools.presence.workers()), is_driver=exists is not False
        )
    kinds = [
        (kind, queue_name)
        for spec in catalogue.SPECS
        for kind in spec.kinds
        for queue_name, record in own.items()
        if kind.has_driver and kind.noun and runs(record, spec.name, spec.part_of)
        if controller in {"", spec.name}
    ]
    states = read_keys(tools.redis, [Key(kind.name, place, "") for kind, place in kinds])
    held = [queueing.paused(state) for state in states]
    # If only part of the work is paused (another program does that part), csi-fleet still does the
    # rest.
    return held[0] if held and all(held) else None


def _driver_facts(tools: Tools, name: str, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    facts = []
    if records:
        controllers = sorted({c for one in records.values() for c in one.get("controllers") or ()})
        nodes = f" on {len(records)} nodes" if len(records) > 1 else ""
        facts.append(
            f"The driver's workers{nodes} run {', '.join(controllers) or 'no controller'}."
        )
    for line in status.driver_lines(status.gather(tools, name)):
        age = f", the oldest for {duration(line.oldest)}" if line.oldest else ""
        facts.append(
            f"Work now: {line.ready} waiting for a worker{age}, {line.running} running, "
            f"{line.failing} failing."
        )
    try:
        classes = sorted(
            one["metadata"]["name"]
            for one in tools.kube.list(paths.STORAGE_CLASSES)
            if driver_of(records, str(one.get("provisioner") or "")) == name
        )
    except ApiError as error:
        return [*facts, f"Storage classes that name it are not known: {error}."]
    return [*facts, f"Storage classes that name it: {', '.join(classes) or 'none'}."]


def _waiting(tools: Tools, **only: str) -> tuple[list[Group], dict[str, str]]:
    found, missed = pending.gather(tools, **only)
    return pending.grouped(found), missed


WHOLES: Final[dict[str, Callable[[Tools, str], Whole]]] = {
    "driver": of_driver,
    "class": of_class,
    "namespace": of_namespace,
}
_WORDS: Final = {
    **{word: word for word in WHOLES},
    **dict.fromkeys(("drivers", "csidriver"), "driver"),
    **dict.fromkeys(("sc", "storageclass", "classes", "storageclasses"), "class"),
    **dict.fromkeys(("ns", "namespaces"), "namespace"),
}
