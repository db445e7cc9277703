"""Keeps the labels of a bound claim's PV in step with the claim (`--claim-labels-to-pv`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import ANN_CLAIM_LABELS
from workers.controllers.provisioner.saving import claim_uid, existing
from workers.engine.steps import Step
from workers.kube import paths
from workers.kube.errors import ConflictError, NotFoundError
from workers.translate import claim_metadata
from workers.translate.fields import annotations_of, is_deleting, text_map
from workers.translate.volumes import is_ours

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject


def follow(work: ClaimWork, claim: JsonObject) -> None:
    """Patches the labels of the claim's PV if they differ from the claim's chosen labels.

    Only a PV of this driver that names this claim is changed, and only while it is not being
    deleted.
    """
    keys = work.driver.settings.provision.claim_labels_to_pv
    if not keys:
        return
    volume = existing(work, claim["spec"]["volumeName"])
    if not volume or claim_uid(volume) != work.key.uid or is_deleting(volume):
        return
    if not is_ours(volume, work.driver.names):
        return
    change = claim_metadata.patch(
        claim_metadata.chosen(text_map(claim, "metadata", "labels"), keys),
        text_map(volume, "metadata", "labels"),
        annotations_of(volume).get(ANN_CLAIM_LABELS),
        keys,
    )
    if not change:
        return
    work.runtime.effects.reach(Step.LABEL_VOLUME, work.lease)
    try:
        work.runtime.effects.kube.merge(paths.VOLUMES, volume, {"metadata": change})
    except (NotFoundError, ConflictError):  # the PV is gone, or a new PV has its name
        return
