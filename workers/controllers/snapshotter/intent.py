"""What must be known of a call that may have left a snapshot: the write-ahead record of an attempt.

The annotation being-created on the object is the public half of it (SNQ-005): it survives any loss
of ours, and with the finalizer it keeps the object until the call's result is known. The record
adds what is needed when the object is removed by force in the meantime: enough to ask once more
and to delete what was made. It is in the key's mark; a copy in a ConfigMap of our own namespace
follows when a call is slow or its result unknown, so that Redis may lose everything as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from workers.constants import ANN_RECORD_DRIVER, LABEL_INTENT
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import NotFoundError, ServerError, Unreachable
from workers.observability.logging import get_logger
from workers.translate.fields import annotations_of
from workers.translate.secrets import SecretRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.reading import KubeReader
    from workers.kube.resources import KubeResources
    from workers.queue.keys import Key

_log = get_logger(__name__)

# The watcher brings back what such a ConfigMap remembers by adding its key (watcher.intents).
COPY_PREFIX: Final = "csi-fleet-snapshot-intent-"
FIELD_RECORD: Final = "record"
SLOW_AFTER_SECONDS: Final = 2.0
# Larger parameters are not remembered: a mark holds 16 KiB.
_MAX_PARAMETERS_BYTES: Final = 12 * 1024


@dataclass(frozen=True, slots=True)
class Intent:
    """One attempt.

    Attributes:
        name: the snapshot's (or group's) name at the driver.
        volumes: the source volumes' handles; one for a snapshot.
        parameters: as the driver gets them.
        secret: where its secrets are; never what they say.
        is_open: a call may still be working. False: all calls so far found the pool full (SND-032),
            or the last one failed for good.
        is_failed: it did, and may have left a snapshot all the same: a call before had no known
            end, or the answer was INTERNAL, as drivers say after a time-out of their own. Who
            deletes the object then asks once more; while that last call is out, both are set.
        has_copy: a ConfigMap may exist.
        is_copied: one surely says so, of this very call.
    """

    name: str
    volumes: tuple[str, ...]
    parameters: dict[str, str] = field(default_factory=dict)
    secret: SecretRef | None = None
    is_open: bool = True
    is_failed: bool = False
    has_copy: bool = False
    is_copied: bool = False

    @classmethod
    def read(cls, record: Mapping[str, Any] | None) -> Self | None:
        """From a mark or a ConfigMap; None without a record."""
        if not record:
            return None
        secret = record.get("secret")
        return cls(
            name=str(record["name"]),
            volumes=tuple(record["volumes"]),
            parameters=dict(record.get("parameters") or {}),
            secret=SecretRef(*secret) if secret else None,
            is_open=bool(record["open"]),
            is_failed=bool(record.get("failed")),
            has_copy=bool(record.get("copy")),
            is_copied=bool(record.get("copied")),
        )

    def record(self) -> dict[str, Any]:
        """The JSON form; without parameters when they are too large for a mark."""
        is_small = len(msgspec.json.encode(self.parameters)) <= _MAX_PARAMETERS_BYTES
        return {
            "name": self.name,
            "volumes": list(self.volumes),
            "parameters": self.parameters if is_small else {},
            "secret": [self.secret.name, self.secret.namespace] if self.secret else None,
            "open": self.is_open,
            "failed": self.is_failed,
            "copy": self.has_copy,
            "copied": self.is_copied,
        }

    @property
    def is_full(self) -> bool:
        """All calls so far found no space and made nothing."""
        return not (self.is_open or self.is_failed)

    def with_copy(self) -> Self:
        """The same, known to stand in a ConfigMap too."""
        return replace(self, has_copy=True, is_copied=True)

    def asks_as(self, other: Self) -> bool:
        """Whether both are the same request."""
        return (self.name, self.volumes, self.parameters, self.secret) == (
            (other.name, other.volumes, other.parameters, other.secret)
        )

    def as_full(self) -> Self:
        """The same after a call that found no space and made nothing."""
        return replace(self, is_open=False)

    def as_failed(self) -> Self:
        """The same after a final answer that proves nothing; nobody is at work, so no copy."""
        return replace(self, is_open=False, is_failed=True, has_copy=False, is_copied=False)


def copy_name(key: Key) -> str:
    """The name of the ConfigMap of a content's attempt; one per kind and object."""
    return f"{COPY_PREFIX}{key.kind}-{key.object}"[:253]


def write_copy(kube: KubeResources, namespace: str, key: Key, intent: Intent) -> bool:
    """Put the record into a ConfigMap; False if it is perhaps not there.

    Never raises, for the driver may be at work.
    """
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": copy_name(key),
            "namespace": namespace,
            "labels": {LABEL_INTENT: "true"},
            "annotations": {ANN_RECORD_DRIVER: key.driver_name},
        },
        "data": {
            FIELD_RECORD: msgspec.json.encode({"key": key.text, **intent.record()}).decode(),
        },
    }
    try:
        kube.apply_config_map(body)
    except (Unreachable, ServerError) as error:
        _log.warning("attempt is perhaps not copied to a ConfigMap", err=error)
        return False
    except ApiError as error:
        _log.warning("attempt is not copied to a ConfigMap", err=error)
        return False
    return True


def read_copy(kube: KubeReader, namespace: str, key: Key) -> Intent | None:
    """What a ConfigMap remembers of the object's last attempt."""
    try:
        found = kube.get(paths.CONFIG_MAPS, copy_name(key), namespace=namespace)
    except NotFoundError:
        return None
    if annotations_of(found).get(ANN_RECORD_DRIVER, key.driver_name) != key.driver_name:
        _log.warning("ConfigMap of another driver is not believed", config_map=copy_name(key))
        return None
    try:
        record = msgspec.json.decode(found["data"][FIELD_RECORD], type=dict[str, Any])
        intent = Intent.read(record)
    except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        _log.warning(
            "copied attempt is unreadable, look at it", config_map=copy_name(key), err=error
        )
        return None
    return intent.with_copy() if intent is not None else None


def drop_copy(kube: KubeResources, namespace: str, key: Key) -> None:
    """Remove the ConfigMap; an absent one is fine."""
    kube.delete_config_map(namespace, copy_name(key))
