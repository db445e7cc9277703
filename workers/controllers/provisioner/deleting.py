"""Deletes a PV's volume: checks it, reads its secrets, calls DeleteVolume (P-501 steps 2 to 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from csi_client.errors import CsiError
from workers.engine.steps import Step
from workers.errors import AttemptError, State
from workers.kube.errors import NotFoundError, RefusedError
from workers.migration.classes import class_to_csi, is_migrated
from workers.migration.plugins import in_tree_source
from workers.migration.to_csi import volume_to_csi
from workers.observability.logging import get_logger
from workers.observability.requests import about_volume
from workers.topology.affinity import is_accessible, selector_problem
from workers.translate import capability
from workers.translate import secrets as secret_rules
from workers.translate import volumes as rules

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import Work
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)


def class_of(volume: JsonObject) -> str:
    """Return the name of the volume's class; "" if it has none."""
    return volume["spec"].get("storageClassName") or ""


def delete_in_storage(work: Work, volume: JsonObject) -> None:
    """Checks the volume, reads its secrets and calls DeleteVolume (P-501 steps 2 to 8)."""
    migrated = in_tree_source(volume) is not None
    csi_volume = volume_to_csi(volume) if migrated else volume
    handle = rules.volume_handle(csi_volume)
    segments = work.driver.node_segments
    if segments is not None and not is_accessible(csi_volume, segments):
        raise rules.not_accessible(selector_problem(csi_volume))
    capability.check_driver(work.driver.plugin_capabilities, work.driver.controller_capabilities)
    secrets = _secrets(work, csi_volume, migrated=migrated)
    if work.driver.supports("PUBLISH_UNPUBLISH_VOLUME"):
        _check_not_attached(work, volume)
    work.runtime.effects.reach(Step.DELETE_VOLUME, work.lease)
    try:
        with about_volume(is_migrated=migrated):
            work.runtime.effects.client(work.driver).delete_volume(
                handle,
                secrets,
                timeout_seconds=work.driver.timeout_seconds("delete", class_of(volume)),
            )
    except CsiError as error:
        raise AttemptError(str(error), State.FINISHED, code=error.code) from None


def _check_not_attached(work: Work, volume: JsonObject) -> None:
    """Raises an error if the shared cache holds an attachment of the volume (P-510)."""
    name = volume["metadata"]["name"]
    attachment = work.runtime.catalog.attachment(name)
    if attachment:
        raise rules.still_attached(name, min(attachment.values()))


def _secrets(work: Work, volume: JsonObject, *, migrated: bool) -> dict[str, str]:
    """Reads the secrets for the deletion live (P-511 to P-514)."""
    wanted = rules.deletion_secret(volume)
    if wanted.class_name:
        storage_class = work.own.safekeeping.storage_class(wanted.class_name, work.lease.catalog)
        if storage_class is None:
            missing = f'storageclass.storage.k8s.io "{wanted.class_name}" not found'
            _log.warning(
                "could not read the secrets for the deletion",
                err=rules.class_missing_warning(wanted.class_name, missing),
            )
            return {}
        if migrated and is_migrated(storage_class, work.driver.name):
            storage_class = class_to_csi(storage_class, work.driver.in_tree_name or "")
        wanted = rules.deletion_secret_of_class(volume, storage_class)
    if wanted.warning:
        _log.warning("could not read the secrets for the deletion", err=wanted.warning)
    if wanted.ref is None:
        return {}
    try:
        found = work.runtime.kube.get_secret(wanted.ref.namespace, wanted.ref.name)
    except NotFoundError as error:
        _log.warning(
            "could not read the secrets for the deletion",
            err=rules.secret_read_failed(volume, error),
        )
        return {}
    except RefusedError as error:
        # Only a Secret that does not exist allows a deletion without secrets; a refused read does
        # not (D-022).
        raise AttemptError(rules.secret_read_failed(volume, error), State.NO_CHANGE) from error
    return secret_rules.decode(found, wanted.ref)
