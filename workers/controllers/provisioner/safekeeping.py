"""Stores intents in Redis and their copies in ConfigMaps, so that they outlive a worker (M-010).

An intent is copied when its call is slow (`SLOW_AFTER_SECONDS`) or when a reconcile leaves the
attempt open, so that no volume is forgotten even if Redis loses all its data. The copy is in
csi-fleet's own namespace and is removed once the outcome is final.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from workers.constants import ANN_RECORD_DRIVER, LABEL_INTENT
from workers.errors import ApiError, NamespaceFull, RecordTooLarge, TransientError
from workers.kube import paths
from workers.kube.errors import AwayError, NotFoundError
from workers.observability.logging import get_logger
from workers.queue.catalogkinds import KIND_CLASSES
from workers.queue.copies import (
    FIELD_RECORD,
    FIELD_SEAL,
    copy_name,
)
from workers.queue.keys import Key
from workers.queue.records import encode
from workers.queue.seal import content

if TYPE_CHECKING:
    from workers.controllers.provisioner.intent import Intent
    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources
    from workers.queue.catalog import CatalogReader
    from workers.queue.intents import IntentStore
    from workers.queue.leases import CatalogState, Lease

_log = get_logger(__name__)

SLOW_AFTER_SECONDS: Final = 2.0
# Four times the size of a claim with full labels and annotations. A larger claim contains useless
# data from a tenant, such as an access mode repeated 50,000 times, and would fill Redis. The
# topology, the class and the parameters come from the administrator and are not counted.
CLAIM_BYTES: Final = 64 * 1024


class Safekeeping:
    """Writes and removes intents in Redis and in ConfigMaps."""

    def __init__(
        self,
        *,
        intents: IntentStore,
        kube: KubeResources,
        catalog: CatalogReader,
        namespace: str,
    ) -> None:
        self._intents = intents
        self._kube = kube
        self._catalog = catalog
        self._namespace = namespace

    def begin(self, lease: Lease, intent: Intent) -> None:
        """Records the attempt in Redis; must succeed before the driver is called.

        Raises:
            LeaseLost: another worker owns the volume.
            QueueUnavailable: the intent is not recorded, so the driver must not be called.
            NamespaceFull: the intent cannot be recorded until other attempts of the claim's
                namespace have ended.
            RecordTooLarge: the intent cannot be recorded until the claim is smaller.
        """
        if (size := len(encode(intent.claim))) > CLAIM_BYTES:
            raise RecordTooLarge(
                f"the claim is too large: csi-fleet would have to store {size // 1024} KiB of it, "
                f"but stores at most {CLAIM_BYTES // 1024} KiB. Shorten the claim's annotations "
                "and labels"
            )
        self._intents.begin(lease.domain, intent.record(), lease)

    def copy(self, lease: Lease, intent: Intent) -> Intent:
        """Copies the intent to a ConfigMap; returns the intent with the state of the copy.

        Never raises an ApiError, because it is called during the driver's call. If the API server
        refuses the copy, the refusal is logged and the intent is left without a copy. If a write
        gets no response, a copy may exist. In that case the intent in Redis says so, and the copy
        is removed later.
        """
        kept, domain, volume = intent.copied(), lease.domain, intent.volume
        try:
            written = self._kube.apply_config_map(self._copy_of(lease, kept))
            uid = written["metadata"]["uid"]
            if uid != kept.copy_uid:  # only the ConfigMap with the uid in the record counts
                kept = replace(kept, copy_uid=uid)
                self._kube.apply_config_map(self._copy_of(lease, kept))
        except AwayError as error:
            _log.warning(
                "the record of the attempt may not have been copied to a ConfigMap",
                volume=volume,
                err=error,
            )
            kept = replace(intent, has_copy=True, copy_uid=kept.copy_uid)
        except ApiError as error:
            _log.warning(
                "could not copy the record of the attempt to a ConfigMap", volume=volume, err=error
            )
            kept = intent
        try:
            self._intents.put(domain, kept.record(), lease)
        except (TransientError, NamespaceFull) as error:
            _log.warning(
                "could not update the record of the attempt in Redis", volume=volume, err=error
            )
        return kept

    def _copy_of(self, lease: Lease, intent: Intent) -> JsonObject:
        sealed = self._intents.sealed(lease.domain, intent.record(), lease)
        record = content(sealed)
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": copy_name(lease.key),
                "namespace": self._namespace,
                "labels": {LABEL_INTENT: "true"},
                "annotations": {ANN_RECORD_DRIVER: Key.parse(intent.key).driver_name},
            },
            "data": {
                FIELD_RECORD: record.decode(),
                FIELD_SEAL: sealed.removesuffix(record).decode(),
            },
        }

    def keep_failed(self, lease: Lease, intent: Intent) -> Intent:
        """Marks the attempt as failed and removes its copy, because no call is in progress."""
        stays = intent.has_copy and not self.drop_copy(lease)
        uid = intent.copy_uid if stays else ""
        kept = replace(intent, has_copy=stays, copy_uid=uid, is_copied=False).failed()
        self._intents.put(lease.domain, kept.record(), lease)
        return kept

    def keep_saved(self, lease: Lease, intent: Intent) -> Intent:
        """Marks the attempt as saved; keeps its record while a dead worker's call may be in flight.

        Raises:
            LeaseLost: another worker owns the volume.
        """
        kept = intent.saved()
        self._intents.put(lease.domain, kept.record(), lease)
        self._intents.of(lease.key.driver).delete_pv(lease.domain)
        return kept

    def has_copy(self, lease: Lease) -> bool:
        """True if the API server has a copy of the attempt that is signed with csi-fleet's key.

        A copy that was recreated, for example from a backup, has a different uid and does not
        count.

        Raises:
            ApiError: the API server does not answer.
        """
        try:
            found = self._kube.get(
                paths.CONFIG_MAPS, copy_name(lease.key), namespace=self._namespace
            )
        except NotFoundError:
            return False
        data = found.get("data") or {}
        sealed = f"{data.get(FIELD_SEAL, '')}{data.get(FIELD_RECORD, '')}".encode()
        uid = found["metadata"]["uid"]
        return self._intents.is_our_copy(lease.domain, sealed, lease.key, uid)

    def drop_copy(self, lease: Lease) -> bool:
        """Removes the ConfigMap; returns False if the removal must be retried later."""
        try:
            self._kube.delete_config_map(self._namespace, copy_name(lease.key))
        except ApiError as error:
            _log.warning(
                "could not delete the ConfigMap with the copy of the attempt's record yet",
                record=lease.domain,
                err=error,
            )
            return False
        return True

    def forget(self, lease: Lease, intent: Intent) -> None:
        """Drops the intent, the unsaved PV and the copy; safe to call twice."""
        if not intent.has_copy or self.drop_copy(lease):
            self._intents.finish(lease.domain, lease)
        elif intent.is_open:  # marked failed, so that no worker treats its call as open
            kept = replace(intent, is_copied=False).failed()
            self._intents.put(lease.domain, kept.record(), lease)

    def storage_class(self, name: str, state: CatalogState | None) -> JsonObject | None:
        """Return the class from the shared cache or, if it is not there yet, from the API server.

        Returns None if the class does not exist.
        """
        if not name:
            return None
        known = self._catalog.get(KIND_CLASSES, name, state)
        if known is not None:
            return known
        try:
            return self._kube.get_class(name)
        except NotFoundError:
            return None
