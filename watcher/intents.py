"""Bringing back attempts that only a ConfigMap remembers, after Redis lost its data.

Workers copy the record of a long or unfinished attempt into a ConfigMap of the system's own
namespace (M-010). Without this, a volume whose claim was deleted meanwhile would leak. It is done
after Redis lost its data and each minute: a copy that outlived its attempt (the worker died between
two writes) is settled the same way, by one more pass that removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from workers.constants import ANN_RECORD_DRIVER, LABEL_INTENT
from workers.observability.logging import get_logger
from workers.queue.copies import FIELD_RECORD, FIELD_SEAL
from workers.queue.keys import Key
from workers.queue.records import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Container

    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources

_log = get_logger(__name__)


class _Record(msgspec.Struct):
    """What is needed of a record here; one key of another type must not stop all the others."""

    key: str


class Intents(Protocol):
    """The part of workers.queue.intents.IntentStore that is used here."""

    def get(self, domain: str) -> dict[str, Any] | None:
        """Return an intent."""

    def restore(self, domain: str, sealed: bytes) -> bool:
        """Write an intent unless there is one; True when written."""


def restore_intents(
    resources: KubeResources, namespace: str, intents: Intents, drivers: Container[str]
) -> list[Key]:
    """Write back every copied intent that Redis lacks; returns the keys that finish them.

    Only those of the given drivers' queues: several installations may share a namespace, and each
    finishes what is its own. Asked again whenever a driver is registered.

    Safe to repeat and to run in two watchers: an intent that exists is newer than its copy, and
    one brought back after its end is found settled by the worker.

    Raises:
        ApiError: the ConfigMaps cannot be read.
        QueueUnavailable: Redis does not answer.
    """
    keys = []
    for config_map in resources.list_config_maps(namespace, LABEL_INTENT):
        name = config_map["metadata"]["name"]
        try:
            sealed, key = _read(config_map)
        except (*UNREADABLE, KeyError, TypeError) as error:
            _log.warning(
                "copied intent is unreadable, look at it and delete it",
                config_map=f"{namespace}/{name}",
                err=error,
            )
            continue
        if key.driver not in drivers:
            continue
        domain = key.record_name
        if not domain:  # its controller reads the copy itself
            keys.append(key)
            continue
        # Asked again, for the attempt may have ended since the list: both records are gone then.
        if intents.get(domain) is not None or not resources.has_config_map(namespace, name):
            continue
        # An owner may write its newer one at this moment.
        if intents.restore(domain, sealed):
            keys.append(key)
    return keys


def _read(config_map: JsonObject) -> tuple[bytes, Key]:
    """The record as Redis had it, and its key; whether it is ours is for the worker to prove."""
    text = config_map["data"][FIELD_RECORD].encode()
    key = Key.parse(msgspec.json.decode(text, type=_Record).key)
    seal = config_map["data"].get(FIELD_SEAL, "").encode()
    annotations = config_map["metadata"].get("annotations") or {}
    if annotations.get(ANN_RECORD_DRIVER, key.driver_name) != key.driver_name:
        raise ValueError("another driver's worker wrote it")
    return (seal + text if seal else text), key
