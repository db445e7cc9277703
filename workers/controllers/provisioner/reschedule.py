"""Return a claim to the scheduler by removing its selected-node annotation (P-420, L-052)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers import constants as k
from workers.engine.steps import Step
from workers.errors import ApiError
from workers.kube.errors import NotFoundError
from workers.kube.retry import update_with_retry
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)


def clear_selected_node(work: ClaimWork, claim: JsonObject) -> bool:
    """Removes the selected-node annotation if it still names the node that failed.

    Returns:
        True if the scheduler now has the claim or has already chosen another node, or if the claim
        is gone. False if the annotation was never there or the API server refused the change; the
        claim is then retried with back-off.
    """
    metadata = claim["metadata"]
    node = (metadata.get("annotations") or {}).get(k.ANN_SELECTED_NODE)
    if not node:
        return False
    namespace, name = metadata["namespace"], metadata["name"]
    kube = work.runtime.effects.kube

    def read() -> JsonObject:
        return kube.get_claim(namespace, name)

    def change(current: JsonObject) -> JsonObject | None:
        annotations = dict(current["metadata"].get("annotations") or {})
        if current["metadata"].get("uid") != metadata.get("uid"):
            return None
        if annotations.get(k.ANN_SELECTED_NODE) != node:
            return None
        del annotations[k.ANN_SELECTED_NODE]
        return {**current, "metadata": {**current["metadata"], "annotations": annotations}}

    work.runtime.effects.reach(Step.CLEAR_NODE, work.lease)
    try:
        update_with_retry(read, change, kube.update_claim, known=claim)
    except NotFoundError:
        return True
    except ApiError as error:
        _log.warning(
            "could not return the claim to the scheduler", claim=f"{namespace}/{name}", err=error
        )
        return False
    return True
