"""`csi-fleet retry pvc NAMESPACE/NAME` or `pv NAME`: retries now and clears earlier failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.cli import terminal
from workers.cli.tools import named_object
from workers.errors import ConfigError
from workers.explain import generic, nouns, queueing
from workers.explain.gather import claim_namespace, elsewhere, find_driver, find_owner
from workers.kube.errors import NotFoundError
from workers.queue.inspect import read_keys
from workers.queue.intents import IntentStore
from workers.queue.keys import KIND_CLAIMS, KIND_VOLUMES, Key, claim_key, volume_key
from workers.translate.claims import claim_class_name, provisioner_annotation, selected_node

# The keys of these kinds are derived from the objects, even if Redis has no data about the keys.
_PROVISIONED: Final = frozenset({"pvc", "pv"})

if TYPE_CHECKING:
    from workers.cli.tools import Tools


class NotServedError(ConfigError):
    """No worker runs the provisioner for the driver."""


def run(tools: Tools) -> int:
    """Run the command; return 0 if keys were queued or nothing needs a retry."""
    kind, namespace, name = named_object(
        tools.settings.arguments, "retry", given=tools.settings.tool.namespace
    )
    if kind not in _PROVISIONED:
        return _retry_known(tools, kind, namespace, name)
    try:
        key = _claim(tools, namespace, name) if kind == "pvc" else _volume(tools, name)
    except NotServedError:
        if not (others := _others(tools, kind, namespace, name)):
            raise
        return _told_queued(tools, kind, f"{namespace}/{name}" if namespace else name, others)
    except NotFoundError as error:
        attempts = IntentStore(tools.redis)
        keys = attempts.keys_of(f"{namespace}/{name}") if kind == "pvc" else []
        if not keys:
            is_claim = kind == "pvc" and error.is_about(name)  # the claim is missing, not its class
            hint = elsewhere(tools.kube, namespace, name) if is_claim else ""
            raise ConfigError(f"{error}.{hint}" if hint else str(error), exit_code=1) from error
        for key in keys:
            retry_now(tools, key)
        terminal.write(
            f"pvc {namespace}/{name} no longer exists; its volume is requested once more"
        )
        return 0
    if is_settled(tools, kind, namespace, name):
        if others := _others(tools, kind, namespace, name):
            return _told_queued(tools, kind, key.object, others)
        terminal.write(f"{kind} {key.object} is bound, so there is nothing to retry")
        return 0
    retry_now(tools, key)
    return _told_queued(tools, kind, key.object, [key])


def _told_queued(tools: Tools, kind: str, name: str, keys: list[Key]) -> int:
    terminal.write(f"{kind} {name} has been queued. Check it with csi-fleet explain {kind} {name}")
    held = (queueing.paused(state) for state in read_keys(tools.redis, keys))
    if cause := next(filter(None, held), None):
        terminal.write(f"It waits: {cause.text}\n  -> {cause.advice}")
    return 0


def _retry_known(tools: Tools, kind: str, namespace: str, name: str) -> int:
    """Queue all keys of the object that are waiting, are failing or have a history."""
    shown = f"{namespace}/{name}" if namespace else name
    try:
        keys = _known(tools, kind, namespace, name)
    except NotFoundError as error:
        raise ConfigError(str(error), exit_code=1) from error
    for key in keys:
        retry_now(tools, key)
    if keys:
        return _told_queued(tools, kind, shown, keys)
    terminal.write(f"{kind} {shown} has no pending work to retry")
    return 0


def _known(tools: Tools, kind: str, namespace: str, name: str) -> list[Key]:
    noun = nouns.nouns()[kind]
    found = tools.kube.get(noun.resource, name, namespace=namespace)
    states = generic.known_states(tools, tools.registry.alive(), noun, found)
    return [state.key for state in states]


def _others(tools: Tools, kind: str, namespace: str, name: str) -> list[Key]:
    """Queue and return the keys that other controllers have for a claim or volume.

    One example is the key for a resize.
    """
    known, own = _known(tools, kind, namespace, name), {KIND_CLAIMS, KIND_VOLUMES}
    found = [key for key in known if key.kind not in own]
    for key in found:
        retry_now(tools, key)
    return found


def is_settled(tools: Tools, kind: str, namespace: str, name: str) -> bool:
    """Return True if an object is bound and is not being deleted."""
    one = tools.kube.get_claim(namespace, name) if kind == "pvc" else tools.kube.get_volume(name)
    is_bound = (one.get("status") or {}).get("phase") == "Bound"
    return is_bound and not one["metadata"].get("deletionTimestamp")


def retry_now(tools: Tools, key: Key) -> None:
    """Drop a key's failures, state and delay, and queue the key."""
    tools.queue.forget([key])
    tools.queue.add([key])


def _claim(tools: Tools, namespace: str, name: str) -> Key:
    claim = tools.kube.get_claim(namespace, name)
    provisioner = provisioner_annotation(claim) or ""
    if not provisioner and (class_name := claim_class_name(claim)):
        provisioner = tools.kube.get_class(class_name)["provisioner"]
    node = selected_node(claim)
    queue_name, record = find_driver(tools.registry.alive(), provisioner, node)
    if record is None:
        raise _not_served(provisioner)
    return claim_key(queue_name, namespace, name, claim["metadata"]["uid"])


def _volume(tools: Tools, name: str) -> Key:
    volume = tools.kube.get_volume(name)
    owner, queue_name, record = find_owner(tools.registry.alive(), volume)
    if record is None:
        raise _not_served(owner)
    return volume_key(queue_name, name, claim_namespace(volume))


def _not_served(provisioner: str) -> NotServedError:
    return NotServedError(
        f'no worker provisions volumes for driver "{provisioner}", so nothing can retry the claim. '
        "Start a worker for the driver",
        exit_code=1,
    )
