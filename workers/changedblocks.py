"""Decides who may read the block metadata of a snapshot, and which driver call provides it.

The rules, their order, the status codes and the texts are those of csi-snapshot-metadata. It serves
one driver and knows the audience before anything else. csi-fleet serves many drivers on one port,
and learns the driver only from the snapshot. So it first accepts a token for the audience of any of
its drivers, checks the caller's permission for the namespace, and only then reads the snapshot. A
token that was issued for another driver's audience is refused as an unknown one.

All reads are live. Nothing here writes.
Source: external-snapshot-metadata, pkg/internal/server/grpc: auth.go, snapshot.go,
snapshotter_secret.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from csi_client import errors
from csi_client.blockserver import Asked, Planned, StreamRefused
from workers import constants as k
from workers.errors import ApiError, AttemptError
from workers.kube import paths
from workers.kube.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, review
from workers.translate import secrets, snapshot_secrets
from workers.translate import snapshot_objects as objects
from workers.translate.fields import Json, text, text_map

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.drivers.driversfile import DriverSpec
    from workers.kube.resources import KubeResources


_NAME: Final = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class _User:
    name: str
    audiences: frozenset[str]
    attributes: dict[str, Any]


class Planner:
    """Plans the driver's call for a caller's request. Thread-safe.

    Args:
        kube: the client of an account with the permissions of k8s/components/snapshot-metadata.
        drivers: returns the drivers that are served, by name.
        audience: the audience of all drivers; "" means the audience that each driver's
            SnapshotMetadataService object names.
    """

    def __init__(
        self,
        kube: KubeResources,
        drivers: Callable[[], Mapping[str, DriverSpec]],
        audience: str = "",
    ) -> None:
        self._kube = kube
        self._drivers = drivers
        self._audience = audience

    def plan(self, asked: Asked) -> Planned:
        """Return the driver's call.

        Raises:
            StreamRefused: the caller must not or cannot get the metadata.
        """
        _check(asked)
        drivers = self._drivers()
        audiences = self._audiences(drivers)
        user = self._authenticate(asked.token, frozenset(audiences.values()))
        self._authorize(user, asked.namespace)
        try:
            return self._of_snapshot(asked, user, drivers, audiences)
        except AttemptError as error:  # a field of an object has an unexpected type
            _unavailable(str(error))

    def _audiences(self, drivers: Mapping[str, DriverSpec]) -> dict[str, str]:
        """Return the audience of each driver that has one."""
        if self._audience:
            return dict.fromkeys(drivers, self._audience)
        try:
            found = {
                objects.name_of(one): text(one, "spec", "audience")
                for one in self._kube.list(paths.SNAPSHOT_METADATA_SERVICES)
            }
        except (ApiError, AttemptError) as error:
            _fail_to_authenticate(f"failed to list the SnapshotMetadataService CRs: {error}")
        known = {name: found[name] for name in drivers if found.get(name)}
        if not known:
            _fail_to_authenticate(_no_object(", ".join(sorted(drivers))))
        return known

    def _authenticate(self, token: str, audiences: frozenset[str]) -> _User:
        try:
            status = review(
                self._kube.client, TOKEN_REVIEWS, {"token": token, "audiences": sorted(audiences)}
            )
        except ApiError as error:
            _fail_to_authenticate(str(error))
        accepted = audiences & frozenset(status.get("audiences") or ())
        user = status.get("user") or {}
        if not status.get("authenticated") or not accepted:
            raise StreamRefused(errors.UNAUTHENTICATED, "unauthenticated user")
        attributes = {
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "uid": user.get("uid", ""),
        }
        return _User(attributes["user"], accepted, attributes)

    def _authorize(self, user: _User, namespace: str) -> None:
        wanted = {
            "verb": "get",
            "namespace": namespace,
            "group": paths.SNAPSHOTS.group,
            "version": paths.SNAPSHOTS.version,
            "resource": paths.SNAPSHOTS.plural,
        }
        try:
            status = review(
                self._kube.client, ACCESS_REVIEWS, user.attributes | {"resourceAttributes": wanted}
            )
        except ApiError as error:
            raise StreamRefused(errors.INTERNAL, f"failed to authorize the user: {error}") from None
        if not status.get("allowed") or status.get("denied"):
            raise StreamRefused(
                errors.PERMISSION_DENIED,
                "user does not have permissions to perform the operation: "
                f"{status.get('reason') or ''}",
            )

    def _of_snapshot(
        self,
        asked: Asked,
        user: _User,
        drivers: Mapping[str, DriverSpec],
        audiences: Mapping[str, str],
    ) -> Planned:
        snapshot = self._snapshot(asked.namespace, asked.snapshot)
        content = self._content(snapshot)
        driver = text(content, "spec", "driver")
        if driver not in drivers:
            raise StreamRefused(
                errors.INVALID_ARGUMENT,
                f"VolumeSnapshot '{asked.snapshot}' does not belong to a CSI driver that this "
                f"server serves: its driver is '{driver}'",
            )
        if driver not in audiences:
            _fail_to_authenticate(_no_object(driver))
        if audiences[driver] not in user.audiences:
            raise StreamRefused(errors.UNAUTHENTICATED, "unauthenticated user")
        spec = drivers[driver]
        return Planned(
            driver=driver,
            caller=user.name,
            endpoint=spec.endpoint,
            tls=spec.tls,
            snapshot_id=objects.status_handle(content) or "",
            secrets=self._secrets(snapshot, content, driver),
        )

    def _snapshot(self, namespace: str, name: str) -> Json:
        try:
            snapshot = self._kube.get_snapshot(namespace, name)
        except ApiError as error:
            _unavailable(f"failed to get VolumeSnapshot '{namespace}/{name}': {error}")
        if not objects.is_ready(snapshot):
            _unavailable(f"the VolumeSnapshot is not yet ready, name: {name}")
        if not objects.bound_content(snapshot):
            _unavailable(
                f"boundVolumeSnapshotContentName is not set in VolumeSnapshot status, name: {name}"
            )
        return snapshot

    def _content(self, snapshot: Json) -> Json:
        """Return the snapshot's content; upstream does not check that it names the snapshot."""
        name = objects.bound_content(snapshot)
        try:
            content = self._kube.get_snapshot_content(name)
        except ApiError as error:
            _unavailable(f"failed to get VolumeSnapshotContent '{name}': {error}")
        if objects.ref_uid(content) != objects.uid_of(snapshot):
            _unavailable(
                f"the VolumeSnapshotContent '{name}' belongs to a different VolumeSnapshot than "
                f"'{objects.full_name(snapshot)}'"
            )
        if not objects.is_ready(content):
            _unavailable(f"the VolumeSnapshotContent is not yet ready, name: {name}")
        if not objects.status_handle(content):
            _unavailable(f"snapshotHandle is not set in VolumeSnapshotContent status, name: {name}")
        return content

    def _secrets(self, snapshot: Json, content: Json, driver: str) -> dict[str, str]:
        """Return the data of the secret that the snapshot's class names for the snapshotter."""
        try:
            reference = snapshot_secrets.resolve(
                snapshot_secrets.SecretUse.SNAPSHOT,
                text_map(self._class(snapshot, driver), "parameters"),
                objects.name_of(content),
                name=objects.name_of(snapshot),
                namespace=objects.namespace_of(snapshot),
            )
        except AttemptError as error:
            _unavailable(f"invalid snapshotter secret parameters in VolumeSnapshotClass: {error}")
        if reference is None:
            return {}
        try:
            found = self._kube.get_secret(reference.namespace, reference.name)
            return secrets.decode(found, reference)
        except (ApiError, AttemptError) as error:
            _unavailable(f"failed to get credentials: {error}")

    def _class(self, snapshot: Json, driver: str) -> Json:
        if name := objects.class_name(snapshot):
            try:
                found = self._kube.get(paths.SNAPSHOT_CLASSES, name)
            except ApiError as error:
                _unavailable(f"failed to get VolumeSnapshotClass '{name}': {error}")
            # The snapshot's owner can change the name, but must not choose who gets which secret.
            if (other := text(found, "driver")) != driver:
                _unavailable(
                    f"VolumeSnapshotClass '{name}' is one of the driver '{other}', but the "
                    f"snapshot is one of '{driver}'"
                )
            return found
        try:
            classes = objects.default_classes(
                self._kube.list(paths.SNAPSHOT_CLASSES), k.ANN_DEFAULT_SNAPSHOT_CLASS, driver
            )
        except ApiError as error:
            _unavailable(f"failed to list VolumeSnapshotClasses: {error}")
        if not classes:
            _unavailable(f"no default VolumeSnapshotClass is set for the CSI driver '{driver}'")
        if len(classes) > 1:
            _unavailable(
                f"multiple default VolumeSnapshotClasses are set for the CSI driver '{driver}'"
            )
        return classes[0]


def _check(asked: Asked) -> None:
    """Check the request; the field names in the error messages are upstream's."""
    problems = {
        "securityToken is missing": not asked.token,
        "namespace parameter cannot be empty": not asked.namespace,
        "baseSnapshotId cannot be empty": asked.wants_delta and not asked.base,
        f"{'targetSnapshotName' if asked.wants_delta else 'snapshotName'} cannot be empty": (
            not asked.snapshot
        ),
        "startingOffset cannot be negative": asked.starting_offset < 0,
        "maxResults cannot be negative": asked.max_results < 0,
    }
    # The names become parts of a path of the API server.
    for field, name in (("namespace", asked.namespace), ("snapshot's name", asked.snapshot)):
        problems[f"the {field} is not a name of Kubernetes"] = not _NAME.fullmatch(name)
    for problem, is_there in problems.items():
        if is_there:
            raise StreamRefused(errors.INVALID_ARGUMENT, problem)


def _no_object(driver: str) -> str:
    return f"failed to find the SnapshotMetadataService CR for driver '{driver}'"


def _fail_to_authenticate(why: str) -> NoReturn:
    raise StreamRefused(errors.INTERNAL, f"failed to authenticate user: {why}") from None


def _unavailable(why: str) -> NoReturn:
    raise StreamRefused(errors.UNAVAILABLE, why) from None
