"""What must be known of a call that may have left a snapshot: the write-ahead record of an attempt.

The annotation being-created on the object is the public half of it (SNQ-005): it survives any loss
of ours, and with the finalizer it keeps the object until the call's result is known. The record
adds what is needed when the object is removed by force in the meantime: enough to ask once more
and to delete what was made. It is in the key's mark; a copy in a ConfigMap of our own namespace
follows when a call is slow or its result unknown, so that Redis may lose everything as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import msgspec

from workers.constants import ANN_RECORD_DRIVER, LABEL_INTENT
from workers.deadlines import NONE, Deadline
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import NotFoundError, ServerError, Unreachable
from workers.observability.logging import get_logger
from workers.queue.copies import FIELD_RECORD, FIELD_SEAL
from workers.queue.records import UNREADABLE
from workers.translate.fields import annotations_of
from workers.translate.secrets import SecretRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject
    from workers.kube.reading import KubeReader
    from workers.kube.resources import KubeResources
    from workers.queue.keys import Key

_log = get_logger(__name__)

# The watcher brings back what such a ConfigMap remembers by adding its key (watcher.intents).
COPY_PREFIX: Final = "csi-fleet-snapshot-intent-"
SLOW_AFTER_SECONDS: Final = 2.0
# Larger parameters are not remembered: the handles of many volumes need room too.
_MAX_PARAMETERS_BYTES: Final = 12 * 1024


class Proof(Protocol):
    """The part of workers.queue.WorkQueue that is used here."""

    def sealed_copy(self, key: Key, record: bytes) -> bytes:
        """A record with the proof in front of it."""

    def is_our_copy(self, key: Key, stored: bytes) -> bool:
        """Whether a worker with our key wrote it."""


@dataclass(frozen=True, slots=True)
class Intent:
    """One attempt.

    Attributes:
        name: the snapshot's (or group's) name at the driver.
        volumes: the source volumes' handles; one for a snapshot.
        parameters: as the driver gets them; None when they were too large to be recorded.
        secret: where its secrets are; never what they say.
        earlier: parameters and secret of an earlier call with other ones. A driver that made the
            snapshot then refuses any other request for it (CSI: ALREADY_EXISTS).
        is_open: a call may still be working. False: all calls so far found the pool full (SND-032),
            or the last one failed for good.
        is_failed: it did, and may have left a snapshot all the same: a call before had no known
            end, or the answer was INTERNAL, as drivers say after a time-out of their own. Who
            deletes the object then asks once more; while that last call is out, both are set.
        has_copy: a ConfigMap may exist.
        is_copied: one surely says so, of this very call.
        handle, members: what the driver answered; "" before it did. Asking again may bring nothing
            to light once the source is gone (G8).
        deadline: of the call; none once its end is known.
        is_retained: the object's policy was Retain.
        version: the object's resourceVersion before the call; 0 if unknown.
        copy_uid: of the ConfigMap; "" if unknown.
    """

    name: str
    volumes: tuple[str, ...]
    parameters: dict[str, str] | None = field(default_factory=dict)
    secret: SecretRef | None = None
    earlier: tuple[dict[str, str], SecretRef | None] | None = None
    is_open: bool = True
    is_failed: bool = False
    has_copy: bool = False
    is_copied: bool = False
    handle: str = ""
    members: tuple[str, ...] = ()
    deadline: Deadline = NONE
    is_retained: bool = False
    version: int = 0
    copy_uid: str = ""

    @classmethod
    def read(cls, record: Mapping[str, Any] | None) -> Self | None:
        """From a mark or a ConfigMap; None without a record."""
        if not record:
            return None
        parameters, earlier = record.get("parameters"), record.get("earlier")
        return cls(
            name=str(record["name"]),
            volumes=tuple(record["volumes"]),
            parameters=None if parameters is None else dict(parameters),
            secret=_secret(record.get("secret")),
            earlier=(dict(earlier[0]), _secret(earlier[1])) if earlier else None,
            is_open=bool(record["open"]),
            is_failed=bool(record.get("failed")),
            has_copy=bool(record.get("copy")),
            is_copied=bool(record.get("copied")),
            handle=str(record.get("handle") or ""),
            members=tuple(record.get("members") or ()),
            deadline=Deadline.read(record.get("deadline")),
            is_retained=bool(record.get("retained")),
            version=int(record.get("version") or 0),
            copy_uid=str(record.get("copy_uid") or ""),
        )

    def record(self) -> dict[str, Any]:
        """The JSON form; without parameters when they are too large for a mark."""
        earlier = None
        if self.earlier is not None and _is_small(self.earlier[0]):
            earlier = [self.earlier[0], _place(self.earlier[1])]
        return {
            "name": self.name,
            "volumes": list(self.volumes),
            "parameters": self.parameters if _is_small(self.parameters) else None,
            "secret": _place(self.secret),
            "earlier": earlier,
            "open": self.is_open,
            "failed": self.is_failed,
            "copy": self.has_copy,
            "copied": self.is_copied,
            "handle": self.handle,
            "members": list(self.members),
            "deadline": self.deadline.data(),
            "retained": self.is_retained,
            "version": self.version,
            "copy_uid": self.copy_uid,
        }

    @property
    def is_full(self) -> bool:
        """All calls so far found no space and made nothing."""
        return not (self.is_open or self.is_failed)

    def before(self, wanted: Intent) -> tuple[dict[str, str], SecretRef | None] | None:
        """What to remember of this attempt when `wanted` is asked for next."""
        if self.earlier is not None or self.parameters in (None, wanted.parameters):
            return self.earlier
        return self.parameters, self.secret

    def with_earlier(self) -> Self | None:
        """The same as an open call with the earlier parameters; None if there are none."""
        if self.earlier is None:
            return None
        parameters, secret = self.earlier
        return replace(self, parameters=parameters, secret=secret, earlier=None, is_open=True)

    def with_copy(self) -> Self:
        """The same, known to stand in a ConfigMap too."""
        return replace(self, has_copy=True, is_copied=True)

    def as_ended(self) -> Self:
        """The same, and its call does not run any more."""
        return replace(self, deadline=NONE)

    def as_full(self) -> Self:
        """The same after a call that found no space and made nothing."""
        return replace(self.as_ended(), is_open=False)

    def as_failed(self) -> Self:
        """The same after a final answer that proves nothing; nobody is at work, so no copy."""
        ended = self.as_ended()
        return replace(ended, is_open=False, is_failed=True, has_copy=False, is_copied=False)


def _is_small(parameters: Mapping[str, str] | None) -> bool:
    return len(msgspec.json.encode(parameters)) <= _MAX_PARAMETERS_BYTES


def _place(secret: SecretRef | None) -> list[str] | None:
    return [secret.name, secret.namespace] if secret else None


def _secret(place: list[str] | None) -> SecretRef | None:
    return SecretRef(*place) if place else None


def copy_name(key: Key) -> str:
    """The name of the ConfigMap of a content's attempt; one per kind and object."""
    return f"{COPY_PREFIX}{key.kind}-{key.object}"[:253]


def write_copy(kube: KubeResources, queue: Proof, namespace: str, key: Key, intent: Intent) -> str:
    """Put the record into a ConfigMap; returns its uid, "" if it is perhaps not there.

    It counts in that ConfigMap alone: one that somebody makes again has another uid. Never raises,
    for the driver may be at work.
    """
    try:
        written = kube.apply_config_map(_copy_of(queue, namespace, key, intent))
        uid: str = written["metadata"]["uid"]
        if uid != intent.copy_uid:
            known = replace(intent, copy_uid=uid)
            kube.apply_config_map(_copy_of(queue, namespace, key, known))
    except (Unreachable, ServerError) as error:
        _log.warning("attempt is perhaps not copied to a ConfigMap", err=error)
        return ""
    except ApiError as error:
        _log.warning("attempt is not copied to a ConfigMap", err=error)
        return ""
    return uid


def _copy_of(queue: Proof, namespace: str, key: Key, intent: Intent) -> JsonObject:
    record = msgspec.json.encode({"key": key.text, **intent.record()})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": copy_name(key),
            "namespace": namespace,
            "labels": {LABEL_INTENT: "true"},
            "annotations": {ANN_RECORD_DRIVER: key.driver_name},
        },
        "data": {
            FIELD_RECORD: record.decode(),
            FIELD_SEAL: queue.sealed_copy(key, record).removesuffix(record).decode(),
        },
    }


def read_copy(kube: KubeReader, queue: Proof, namespace: str, key: Key) -> Intent | None:
    """What a ConfigMap remembers of the object's last attempt; what is not ours is no record."""
    try:
        found = kube.get(paths.CONFIG_MAPS, copy_name(key), namespace=namespace)
    except NotFoundError:
        return None
    if annotations_of(found).get(ANN_RECORD_DRIVER, key.driver_name) != key.driver_name:
        _log.warning("ConfigMap of another driver is not believed", config_map=copy_name(key))
        return None
    try:
        text, seal = found["data"][FIELD_RECORD], found["data"].get(FIELD_SEAL, "")
        is_ours = queue.is_our_copy(key, (seal + text).encode())
        record = msgspec.json.decode(text, type=dict[str, Any])
        is_ours = is_ours and record["key"] == key.text
        intent = Intent.read(record)
    except (*UNREADABLE, KeyError, TypeError, OverflowError) as error:
        _log.warning(
            "copied attempt is unreadable, look at it", config_map=copy_name(key), err=error
        )
        return None
    if not is_ours:
        _log.warning(
            "copied attempt is not by a worker with our key and not believed: look at it and "
            "delete it (docs/security.md)",
            config_map=copy_name(key),
        )
        return None
    if record.get("copy_uid") != found["metadata"]["uid"]:
        _log.warning(
            "copied attempt was put back after its end, or was not written to its end, and is not "
            "believed: look at it and delete it",
            config_map=copy_name(key),
        )
        return None
    return intent.with_copy() if intent is not None else None


def drop_copy(kube: KubeResources, namespace: str, key: Key) -> bool:
    """Remove the ConfigMap, an absent one is fine; False if it must be tried again later."""
    try:
        kube.delete_config_map(namespace, copy_name(key))
    except ApiError as error:
        _log.warning("copy of the attempt stays for now", config_map=copy_name(key), err=error)
        return False
    return True
