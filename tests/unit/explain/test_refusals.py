"""A user who lacks a permission learns which one, and what is known nevertheless."""

from __future__ import annotations

import pytest

from workers.explain import commands, refusals
from workers.explain.generic import Explained

_CLASS = (
    'x "gold" is forbidden: User "dev" cannot get resource "storageclasses" in API group '
    '"storage.k8s.io" at the cluster scope'
)
_PODS = (
    'pods is forbidden: User "dev" cannot list resource "pods" in API group "" in the namespace '
    '"shop"'
)


@pytest.mark.parametrize(
    ("message", "right", "command"),
    [
        (
            _CLASS,
            "`get` for storageclasses.storage.k8s.io,",
            "kubectl auth can-i get storageclasses.storage.k8s.io",
        ),
        (
            _PODS,
            "`list` for pods -n shop,",
            "kubectl auth can-i list pods -n shop",
        ),
        ("no", "a permission,", "kubectl describe pvc data -n shop"),
    ],
    ids=["cluster", "namespace", "another text"],
)
def test_the_permission_is_named(message, right, command):
    cause = refusals.cause(message, " Redis says about it: it waits.")
    assert f"Your account lacks {right}" in cause.text
    assert cause.text.endswith("Redis says about it: it waits.")
    shown = commands.filled(cause, "pvc", "shop", "data", Explained(cause))
    assert shown.commands == (command,)
