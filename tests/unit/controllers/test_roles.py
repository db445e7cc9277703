"""The roles in the components grant exactly the permissions that the specs name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from workers.controllers import catalogue
from workers.controllers.data_source_validator.spec import SPEC as DATA_SOURCE_VALIDATOR
from workers.controllers.health.spec import SPEC as HEALTH
from workers.controllers.snapshot_controller.spec import SPEC as SNAPSHOT_CONTROLLER
from workers.controllers.snapshotter.spec import SPEC as SNAPSHOTTER

COMPONENTS = Path(__file__).parents[3] / "k8s" / "components"
SPECS = [SNAPSHOTTER, SNAPSHOT_CONTROLLER, DATA_SOURCE_VALIDATOR, HEALTH]


def given(name: str) -> set[tuple[str, str, str]]:
    """Return (group, resource, verb) of both accounts together."""
    path = COMPONENTS / f"controller-{name}" / "clusterroles.yaml"
    return {
        (group, resource, verb)
        for role in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_roles_are_those_of_the_spec(spec):
    """Secrets have their own component."""
    asked = {
        (one.group, resource, verb)
        for one in spec.permissions
        if one.feature != "secrets"
        for resource in one.resources
        for verb in one.verbs
    }
    assert given(spec.name) == asked


@pytest.mark.parametrize("spec", catalogue.SPECS, ids=lambda spec: spec.name)
def test_every_get_of_a_spec_is_one_that_shipped_workers_have(spec):
    """`adopt` must not take a `get` of the watcher for one of the worker."""
    own = COMPONENTS / f"controller-{spec.name.replace('_', '-')}" / "clusterroles.yaml"
    files = [COMPONENTS.parent / "base" / "clusterroles.yaml"] + [own] * own.exists()
    given = {
        (group, resource)
        for file in files
        for role in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        if role["metadata"]["name"].startswith("csi-fleet-worker")
        for rule in role["rules"]
        if "get" in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    asked = {
        (one.group, resource)
        for one in spec.permissions
        if not one.feature and "get" in one.verbs
        for resource in one.resources
    }
    assert asked <= given


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_watched_resource_may_be_listed_and_watched(spec):
    """Without the permission, a watch would never report anything."""
    rights = given(spec.name)
    for watch in spec.watches:
        one = watch.resource
        assert {(one.group, one.plural, verb) for verb in ("list", "watch")} <= rights
