"""The controllers whose rules run here, until `workers.controllers.catalogue` names them all."""

from __future__ import annotations

from typing import Final

from workers.controllers.capacity import rules as capacity
from workers.controllers.provisioner import rules as provisioner
from workers.kube import paths
from workers.queue.keys import KIND_CAPACITY, KIND_CLAIMS, KIND_CLONING, KIND_VOLUMES
from workers.spec import Kind, Spec

SPECS: Final = (
    Spec(
        name="provisioner",
        program="csi-provisioner",
        kinds=(
            Kind(KIND_CLAIMS, "claims.sync", "claims", subject=paths.CLAIMS),
            Kind(KIND_VOLUMES, "volumes.sync", "volumes", subject=paths.VOLUMES),
            Kind(KIND_CLONING, "cloning.sync", "cloning", subject=paths.CLAIMS),
        ),
        watches=provisioner.WATCHES,
        make_rules=provisioner.ProvisionerRules,
    ),
    Spec(
        name="capacity",
        program="csi-provisioner",
        kinds=(Kind(KIND_CAPACITY, "capacity.sync", "capacity"),),
        watches=capacity.WATCHES,
        make_rules=capacity.CapacityRules,
        part_of="provisioner",
    ),
)
