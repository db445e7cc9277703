"""Declares volume-data-source-validator as data, with the flags and defaults of v1.7 (DV-030)."""

from __future__ import annotations

from typing import Final

from workers.controllers.data_source_validator.rules import KIND, DataSourceRules
from workers.controllers.data_source_validator.settings import FLAGS, read_settings
from workers.kube import paths
from workers.kube.objects import Claim, Populator
from workers.spec import Kind, Permission, Spec, Watch

PERMISSIONS: Final = (
    Permission("", ("persistentvolumeclaims",), ("get", "list", "watch"), "their dataSourceRef"),
    Permission(
        "populator.storage.k8s.io",
        ("volumepopulators",),
        ("list", "watch"),
        "the kinds that somebody populates",
    ),
    Permission("", ("events",), ("create", "patch"), "the warning"),
)


def lease_name(_driver: str) -> str:
    """Return the name of the Go program's Kubernetes Lease (DV-031)."""
    return "data-source-validator-leader"


SPEC: Final = Spec(
    name="data-source-validator",
    program="volume-data-source-validator",
    kinds=(
        Kind(
            KIND,
            task="sources.validate",
            work_queue="pvc",
            subject=paths.CLAIMS,
            noun="pvc",
            has_driver=False,
        ),
    ),
    watches=(Watch(paths.CLAIMS, Claim), Watch(paths.POPULATORS, Populator)),
    make_rules=DataSourceRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    permissions=PERMISSIONS,
    needs_driver=False,
)
