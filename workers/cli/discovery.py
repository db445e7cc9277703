"""Which gates does the API server leave on?"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from workers.config.gates import VAC_OFF_MESSAGE
from workers.errors import ApiError
from workers.kube import paths

if TYPE_CHECKING:
    from workers.config.gates import FeatureGates
    from workers.config.settings import Settings
    from workers.kube.resources import KubeResources

_log = logging.getLogger(__name__)


def discovered_gates(settings: Settings, kube: KubeResources) -> FeatureGates:
    """P-703: attributes classes are off where the API server does not serve them."""
    try:
        served: bool | None = kube.is_served(paths.ATTRIBUTES_CLASSES)
    except ApiError as error:
        _log.warning("discovery of VolumeAttributesClass failed, the gate stays on: %s", error)
        served = None
    gates = settings.gates.with_discovery(attributes_class_served=served)
    if gates is not settings.gates:
        _log.warning("%s", VAC_OFF_MESSAGE)
    return gates
