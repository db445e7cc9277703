"""Finds the Secret with the Redis login of a driver's worker.

The chart and `make-secrets.sh` write the name of the Redis user into the Secret, so `adopt` can
distinguish the Secrets of several drivers in one namespace. A Secret without this name counts only
if the user names it, or if it has the usual name.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

from workers.cli.doctor import FAIL, Finding
from workers.kube import paths
from workers.kube.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources

USUAL: Final = "redis-password-worker"
_KEYS: Final = frozenset({"password", "records-key"})


def user_of(driver: str) -> str:
    """Return the name of the Redis user of the driver's worker."""
    return f"worker.{driver}"


def choose(
    kube: KubeResources, namespace: str, driver: str, given: str
) -> tuple[str, list[Finding]]:
    """Return the name of the Secret, and the reasons why it cannot be used.

    Args:
        kube: the API server, accessed with the user's permissions.
        namespace: the driver's namespace.
        driver: the driver's name.
        given: the Secret that the user named; "" to search for it.
    """
    user, name = user_of(driver), given or USUAL
    if not given:
        found = _of_user(kube, namespace, user)
        if len(found) > 1:
            names = ", ".join(found)
            return name, [
                _problem(
                    f"Several Secrets in {namespace} have the login of the Redis user {user}: "
                    f"{names}. Choose one with --secret=NAME, or delete the others"
                )
            ]
        if found:
            return found[0], []
    try:
        secret = kube.get(paths.SECRETS, name, namespace=namespace)
    except (NotFoundError, RefusedError):
        return name, []  # the caller reports it
    other = _user_in(secret)
    if other in {"", user}:
        return name, []
    return name, [
        _problem(
            f"The Secret {namespace}/{name} has the login of the Redis user {other}, not of "
            f"{user}. Add the driver to the chart's values with a different `secret` "
            "(docs/helm.md), or name its Secret with --secret=NAME"
        )
    ]


def _of_user(kube: KubeResources, namespace: str, user: str) -> list[str]:
    """Return the Secrets with the user's login; an empty list if they cannot be listed."""
    try:
        return sorted(
            str(one["metadata"]["name"])
            for one in kube.list(paths.SECRETS, namespace=namespace)
            if _user_in(one) == user and one["data"].keys() >= _KEYS
        )
    except RefusedError:
        return []


def _user_in(secret: JsonObject) -> str:
    """Return the name of the Redis user in the Secret, or ""."""
    try:
        return base64.b64decode((secret.get("data") or {}).get("username") or "").decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _problem(text: str) -> Finding:
    return Finding("login", FAIL, text)
