"""Restores intents from their ConfigMap copies after Redis has lost its data.

Workers copy the intent of a long or unfinished attempt into a ConfigMap in csi-fleet's own
namespace (M-010). Without the copy, a volume would leak if its claim was deleted in the meantime.
Intents are restored after Redis has lost its data, and also every minute: if a worker died before
it deleted a copy, the restored intent causes one more reconcile, which removes the intent and the
copy.
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
    """The field of a record that is used here; if it has the wrong type, the record is skipped."""

    key: str


class Intents(Protocol):
    """The methods of workers.queue.intents.IntentStore that are used here."""

    def of(self, driver: str) -> Intents:
        """Return the intents of the given driver."""

    def get(self, domain: str) -> dict[str, Any] | None:
        """Return an intent; None if there is none."""

    def restore(self, domain: str, sealed: bytes) -> bool:
        """Write an intent unless one exists; return True if it was written."""


def restore_intents(
    resources: KubeResources, namespace: str, intents: Intents, drivers: Container[str]
) -> list[Key]:
    """Write back every copied intent that is missing in Redis; return the keys to reconcile.

    Only the intents of the given drivers' queues are restored: several installations may share a
    namespace, and each restores only its own intents. This is called again whenever a driver is
    registered.

    The function is idempotent, and may run in two watchers at once. An existing intent is newer
    than its copy. If an intent is restored after its attempt has ended, the worker finds nothing
    more to do.

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
                "the copy of an attempt's record is unreadable; inspect its ConfigMap, then delete "
                "it",
                config_map=f"{namespace}/{name}",
                err=error,
            )
            continue
        if key.driver not in drivers:
            continue
        domain = key.record_name
        if not domain:  # the controller itself reads the copy
            keys.append(key)
            continue
        # The attempt may have ended since the ConfigMaps were listed; then both the intent and its
        # copy are gone.
        own = intents.of(key.driver)
        if own.get(domain) is not None or not resources.has_config_map(namespace, name):
            continue
        # `restore` overwrites nothing, because a worker may be writing a newer intent at this
        # moment.
        if own.restore(domain, sealed):
            keys.append(key)
    return keys


def _read(config_map: JsonObject) -> tuple[bytes, Key]:
    """Return the record as it was in Redis, and its key; the worker verifies the signature."""
    text = config_map["data"][FIELD_RECORD].encode()
    key = Key.parse(msgspec.json.decode(text, type=_Record).key)
    seal = config_map["data"].get(FIELD_SEAL, "").encode()
    annotations = config_map["metadata"].get("annotations") or {}
    if annotations.get(ANN_RECORD_DRIVER, key.driver_name) != key.driver_name:
        raise ValueError("it was written by a worker of a different driver")
    return (seal + text if seal else text), key
