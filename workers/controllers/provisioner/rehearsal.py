"""Builds the CreateVolume request of a claim without calling the driver or writing anything.

The facts about the driver come from its registration, so no socket is needed. The API
server is read through a client that refuses to write.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from workers import constants as k
from workers.config.settings import ProvisionSettings, Settings
from workers.controllers.provisioner.attempt import Attempt
from workers.controllers.provisioner.backend import backend_of
from workers.controllers.provisioner.clusters import Clusters
from workers.controllers.provisioner.own import Own, own
from workers.controllers.provisioner.spec import SPEC
from workers.controllers.provisioner.work import ClaimWork
from workers.drivers.driver import Driver
from workers.engine.context import Runtime
from workers.engine.effects import Effects
from workers.queue.keys import claim_key
from workers.queue.leases import Lease, Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from csi_client import messages as csi
    from workers.kube.client import KubeClient
    from workers.kube.objects import JsonObject
    from workers.queue.catalog import CatalogReader

DRAFT_UID = "00000000-0000-0000-0000-000000000000"
"""Placeholder for the UID that the API server will assign to a claim that does not exist yet."""


class ReadOnlyClient:
    """The read-only part of a KubeClient; a write raises an AssertionError."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> JsonObject:
        """Reads one object or one page of a list."""
        return self._client.get(path, query)

    def create(self, path: str, body: JsonObject) -> NoReturn:
        """Raises an AssertionError."""
        del body
        raise AssertionError(f"refused to write {path}: a rehearsal must not write anything")

    def update(self, path: str, body: JsonObject) -> NoReturn:
        """Raises an AssertionError."""
        self.create(path, body)

    def patch(self, path: str, body: Any, content_type: str = "") -> NoReturn:
        """Raises an AssertionError."""
        del content_type
        self.create(path, body)

    def delete(self, path: str, **_: Any) -> NoReturn:
        """Raises an AssertionError."""
        self.create(path, {})


def rehearse(
    client: KubeClient,
    catalog: CatalogReader,
    *,
    settings: Settings,
    record: Mapping[str, Any],
    claim: JsonObject,
    storage_class: JsonObject,
) -> csi.CreateVolumeRequest:
    """Builds the request that the driver would get now.

    The request holds secrets, so it must be redacted before it is printed.

    Args:
        client: the API client.
        catalog: the shared cache; it contains the nodes and classes that the workers see.
        settings: the settings of this process; the driver's own settings come from its record.
        record: the driver's registration.
        claim: a live claim, or a draft without a UID.
        storage_class: the claim's class.

    Raises:
        AttemptError: the request cannot be built; the message is what an event on the claim would
            say.
        IgnoredError: the claim is not for this driver.
    """
    from workers.kube.resources import KubeResources  # noqa: PLC0415 - typed as the real one below

    driver = driver_from(record, settings)
    draft = as_asked(claim, driver.name)
    metadata = draft["metadata"]
    key = claim_key(driver.queue_name, metadata["namespace"], metadata["name"], metadata["uid"])
    kube = KubeResources(cast("KubeClient", ReadOnlyClient(client)))
    runtime = Runtime(
        settings=driver.settings,
        kube=kube,
        effects=Effects(kube, events=cast("Any", _Silent()), queue=cast("Any", None)),
        queue=cast("Any", None),
        catalog=catalog,
        parts={SPEC.name: Own(cast("Any", None), cast("Any", None), Clusters(catalog))},
        driver_of=lambda _: driver,
    )
    session = Session(clock=lambda: 0.0)
    lease = Lease(
        key=key,
        locks=(),
        token="",
        fence=0,
        fails=0,
        memo="",
        waited_seconds=0.0,
        catalog=cast("Any", None),
        session=session,
    )
    work = ClaimWork(runtime, driver, key, lease, backend_of(driver), own(runtime))
    return Attempt(work, draft, storage_class, None, is_rehearsal=True).prepare().request


def as_asked(claim: JsonObject, driver_name: str) -> JsonObject:
    """Annotates the claim as kube-controller-manager will; adds namespace and UID to a draft."""
    metadata = dict(claim.get("metadata") or {})
    annotations = {**(metadata.get("annotations") or {})}
    annotations.setdefault(k.ANN_STORAGE_PROVISIONER, driver_name)
    metadata |= {
        "annotations": annotations,
        "namespace": metadata.get("namespace") or "default",
        "name": metadata.get("name") or "draft",
        "uid": metadata.get("uid") or DRAFT_UID,
    }
    return {**claim, "metadata": metadata}


def driver_from(record: Mapping[str, Any], settings: Settings) -> Driver:
    """Builds the same Driver object that the driver's workers use, but without a connection."""
    known = {field.name for field in fields(ProvisionSettings)}
    rules = {name: value for name, value in (record.get("rules") or {}).items() if name in known}
    return Driver(
        name=str(record["name"]),
        queue_name=str(record["queue_name"]),
        client=cast("Any", None),
        plugin_capabilities=frozenset(record.get("plugin_capabilities") or ()),
        controller_capabilities=frozenset(record.get("controller_capabilities") or ()),
        in_tree_name=record.get("in_tree_name"),
        identity="",
        settings=replace(settings, provision=ProvisionSettings(**rules)),
        node_segments=record.get("node_segments"),
    )


class _Silent:
    def event(self, *_: Any, **__: Any) -> None:
        """Records nothing."""
