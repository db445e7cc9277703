"""The component's roles grant exactly the permissions that the spec names (R-122)."""

from __future__ import annotations

from pathlib import Path

import yaml

from workers.controllers.resizer.spec import PERMISSIONS

COMPONENT = Path(__file__).parents[4] / "k8s" / "components" / "controller-resizer"


def given():
    """Return (group, resource, verb) of both accounts together."""
    roles = yaml.safe_load_all((COMPONENT / "clusterroles.yaml").read_text(encoding="utf-8"))
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked():
    """Return the same from the spec, without secrets, which have their own component."""
    return {
        (one.group, resource, verb)
        for one in PERMISSIONS
        if one.feature != "secrets"
        for resource in one.resources
        for verb in one.verbs
    }


def test_the_roles_are_those_of_the_spec():
    """Pods are listed but never watched (DR-012)."""
    assert given() == asked()
    assert ("", "pods", "watch") not in given()
