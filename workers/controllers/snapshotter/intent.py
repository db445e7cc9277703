"""The intent: the write-ahead record of a CreateSnapshot call that may leave a snapshot.

The object's annotation being-created is the public half of the intent (SNQ-005). The annotation
survives a loss of csi-fleet's data and, together with the finalizer, keeps the object until the
call's outcome is known. The intent is needed if the object is removed by force in the meantime. In
that case the call is repeated from the intent, and the snapshot that it returns is deleted. The
intent is part of the key's reconcile state. If a call is slow or its outcome is unknown, a
ConfigMap in csi-fleet's namespace contains a copy, in case Redis loses its data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

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
    from workers.topology.selectors import Selector

Earlier: TypeAlias = "tuple[dict[str, str], SecretRef | None, Selector]"

_log = get_logger(__name__)

# For each ConfigMap with this prefix, the watcher adds the key to the queue, so that a worker
# completes the attempt (watcher.intents).
COPY_PREFIX: Final = "csi-fleet-snapshot-intent-"
SLOW_AFTER_SECONDS: Final = 2.0
# Parameters and a selector that are larger than this together are not recorded, because the handles
# of many volumes need space too.
_MAX_PARAMETERS_BYTES: Final = 12 * 1024


class Proof(Protocol):
    """The methods of workers.queue.WorkQueue that this module uses."""

    def sealed_copy(self, key: Key, record: bytes) -> bytes:
        """Return the record, preceded by its signature."""

    def is_our_copy(self, key: Key, stored: bytes) -> bool:
        """True if a worker with this installation's signing key wrote the copy."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The record of one attempt.

    Attributes:
        name: the snapshot's (or group's) name in requests to the driver.
        volumes: the handles of the source volumes; one for a snapshot.
        parameters: the parameters as sent to the driver; None if they are too large to be recorded.
        secret: the name and namespace of the secret, never its data.
        allowed: the class's `allowedTopologies`, if they are sent (SNS-121).
        earlier: the parameters, the secret and `allowed` of an earlier, different request. If that
            call created the snapshot, the driver refuses any other request for it (CSI:
            ALREADY_EXISTS).
        is_open: whether a call may be in flight. False if all calls so far found the pool full
            (SND-032) or if the last call ended with a final error.
        is_failed: whether the last call ended with a final error but may have left a snapshot:
            an earlier call has an unknown outcome, or the code was INTERNAL, which drivers also
            return after their own timeout. A deletion then makes one last call, during which
            `is_open` is set too.
        has_copy: whether a ConfigMap may exist.
        is_copied: whether a ConfigMap is known to exist and to describe this call.
        handle, members: the handles in the driver's response; empty before the response. They are
            recorded because a repeated call may not return them once the source is gone (G8).
        deadline: the call's deadline; no deadline once the call's outcome is known.
        is_retained: whether the object's policy was Retain.
        version: the object's resourceVersion before the call; 0 if it is unknown.
        copy_uid: the uid of the ConfigMap; "" if it is unknown.
    """

    name: str
    volumes: tuple[str, ...]
    parameters: dict[str, str] | None = field(default_factory=dict)
    secret: SecretRef | None = None
    allowed: Selector = field(default_factory=list)
    earlier: Earlier | None = None
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
        """Reads an intent from a reconcile state or ConfigMap; None if there is no record."""
        if not record:
            return None
        parameters, earlier = record.get("parameters"), record.get("earlier")
        return cls(
            name=str(record["name"]),
            volumes=tuple(record["volumes"]),
            parameters=None if parameters is None else dict(parameters),
            secret=_secret(record.get("secret")),
            allowed=list(record.get("allowed") or ()),
            earlier=_earlier(*earlier) if earlier else None,
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
        """Return the JSON form, without parameters that are too large for a reconcile state."""
        earlier = None
        if self.earlier is not None and _is_small(self.earlier[0], self.earlier[2]):
            parameters, secret, allowed = self.earlier
            earlier = [parameters, _place(secret), *([allowed] if allowed else [])]
        is_small = _is_small(self.parameters, self.allowed)
        return {
            "name": self.name,
            "volumes": list(self.volumes),
            "parameters": self.parameters if is_small else None,
            "secret": _place(self.secret),
            **({"allowed": self.allowed} if self.allowed and is_small else {}),
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
        """True if all calls so far found the pool full and created nothing."""
        return not (self.is_open or self.is_failed)

    def before(self, wanted: Intent) -> Earlier | None:
        """Return the `earlier` part of this attempt to keep when the next call sends `wanted`."""
        if self.earlier is not None or self.parameters is None:
            return self.earlier
        if (self.parameters, self.allowed) == (wanted.parameters, wanted.allowed):
            return None
        return self.parameters, self.secret, self.allowed

    def with_earlier(self) -> Self | None:
        """Return this intent with the earlier request as its open call.

        Returns None if there was no earlier request.
        """
        if self.earlier is None:
            return None
        parameters, secret, allowed = self.earlier
        asked = replace(self, parameters=parameters, secret=secret, allowed=allowed)
        return replace(asked, earlier=None, is_open=True)

    def with_copy(self) -> Self:
        """Return this intent marked as copied to a ConfigMap."""
        return replace(self, has_copy=True, is_copied=True)

    def as_ended(self) -> Self:
        """Return this intent without a deadline, because its call has ended."""
        return replace(self, deadline=NONE)

    def as_full(self) -> Self:
        """Return this intent marked as ended: the pool was full, so nothing was created."""
        return replace(self.as_ended(), is_open=False)

    def as_failed(self) -> Self:
        """Return this intent marked as failed, without a copy; a snapshot may have been left."""
        ended = self.as_ended()
        return replace(ended, is_open=False, is_failed=True, has_copy=False, is_copied=False)


def _is_small(parameters: Mapping[str, str] | None, allowed: Selector) -> bool:
    size = len(msgspec.json.encode(parameters))
    return size + (len(msgspec.json.encode(allowed)) if allowed else 0) <= _MAX_PARAMETERS_BYTES


def _earlier(
    parameters: Mapping[str, str], secret: list[str] | None, allowed: Selector | None = None
) -> Earlier:
    return dict(parameters), _secret(secret), allowed or []


def _place(secret: SecretRef | None) -> list[str] | None:
    return [secret.name, secret.namespace] if secret else None


def _secret(place: list[str] | None) -> SecretRef | None:
    return SecretRef(*place) if place else None


def copy_name(key: Key) -> str:
    """Return the name of the ConfigMap for an object's intent; one per kind and object."""
    return f"{COPY_PREFIX}{key.kind}-{key.object}"[:253]


def write_copy(kube: KubeResources, queue: Proof, namespace: str, key: Key, intent: Intent) -> str:
    """Writes the intent to a ConfigMap; returns its uid, or "" if it may not have been written.

    The intent counts only in the ConfigMap with this uid, not in a ConfigMap that was recreated.
    Never raises an ApiError, because the driver's call may be in flight.
    """
    try:
        written = kube.apply_config_map(_copy_of(queue, namespace, key, intent))
        uid: str = written["metadata"]["uid"]
        if uid != intent.copy_uid:
            known = replace(intent, copy_uid=uid)
            kube.apply_config_map(_copy_of(queue, namespace, key, known))
    except (Unreachable, ServerError) as error:
        _log.warning("the attempt may not have been copied to a ConfigMap", err=error)
        return ""
    except ApiError as error:
        _log.warning("could not copy the attempt to a ConfigMap", err=error)
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
    """Reads the copied intent of the object's last attempt; None if the copy cannot be trusted."""
    try:
        found = kube.get(paths.CONFIG_MAPS, copy_name(key), namespace=namespace)
    except NotFoundError:
        return None
    if annotations_of(found).get(ANN_RECORD_DRIVER, key.driver_name) != key.driver_name:
        _log.warning(
            "ignoring the copy of an attempt: its ConfigMap belongs to a different driver",
            config_map=copy_name(key),
        )
        return None
    try:
        text, seal = found["data"][FIELD_RECORD], found["data"].get(FIELD_SEAL, "")
        is_ours = queue.is_our_copy(key, (seal + text).encode())
        record = msgspec.json.decode(text, type=dict[str, Any])
        is_ours = is_ours and record["key"] == key.text
        intent = Intent.read(record)
    except (*UNREADABLE, KeyError, TypeError, OverflowError) as error:
        _log.warning(
            "the copy of an attempt is unreadable; inspect its ConfigMap",
            config_map=copy_name(key),
            err=error,
        )
        return None
    if not is_ours:
        _log.warning(
            "ignoring the copy of an attempt: it was not signed with this installation's records "
            "key. Inspect its ConfigMap, then delete it (docs/security.md)",
            config_map=copy_name(key),
        )
        return None
    if record.get("copy_uid") != found["metadata"]["uid"]:
        _log.warning(
            "ignoring the copy of an attempt: it was restored after the attempt had ended, or was "
            "not written completely. Inspect its ConfigMap, then delete it",
            config_map=copy_name(key),
        )
        return None
    return intent.with_copy() if intent is not None else None


def drop_copy(kube: KubeResources, namespace: str, key: Key) -> bool:
    """Removes the ConfigMap if it exists; returns False if the removal must be retried later."""
    try:
        kube.delete_config_map(namespace, copy_name(key))
    except ApiError as error:
        _log.warning(
            "could not delete the ConfigMap with the copy of the attempt yet",
            config_map=copy_name(key),
            err=error,
        )
        return False
    return True
