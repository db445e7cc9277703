"""Finds the feature gates that the API server supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.config.gates import VAC_OFF_MESSAGE
from workers.errors import ApiError
from workers.kube import paths
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from workers.config.gates import FeatureGates
    from workers.config.settings import Settings
    from workers.kube.resources import KubeResources

_log = get_logger(__name__)


def discovered_gates(settings: Settings, kube: KubeResources) -> FeatureGates:
    """Return the gates, with VolumeAttributesClass off if the cluster does not serve it (P-703)."""
    try:
        served: bool | None = kube.is_served(paths.ATTRIBUTES_CLASSES)
    except ApiError as error:
        _log.warning(
            "could not check whether the API server serves VolumeAttributesClass; the "
            "feature gate remains enabled",
            err=error,
        )
        served = None
    gates = settings.gates.with_discovery(attributes_class_served=served)
    if gates is not settings.gates:
        _log.warning(VAC_OFF_MESSAGE)
    return gates
