"""Explains what the user must not read: which permission is missing, and whom to ask for it."""

from __future__ import annotations

import re
from typing import Final

from workers.explain.facts import Cause

REFUSED: Final = "no-permission"
_PERMISSION: Final = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<place>[^"]+)")?'
)


def cause(message: str, said: str = "") -> Cause:
    """Return the cause if the API server refuses to show something that the answer needs.

    Args:
        message: the API server's message, which names the permission.
        said: what is known nevertheless, as sentences with a leading space; "" for nothing.
    """
    found = _PERMISSION.search(message)
    names = {key: name for key, name in found.groupdict().items() if name} if found else {}
    resource = names.get("resource", "")
    if group := names.pop("group", ""):
        names["resource"] = f"{resource}.{group}"
    where = f" -n {names['place']}" if "place" in names else ""
    right = f"`{names['verb']}` for {names['resource']}{where}" if names else "a permission"
    return Cause(
        REFUSED,
        f"Your account lacks {right}, so the reason is not known: {message}.{said}",
        "Ask the cluster's administrator for this permission, or to run the same command.",
        names=names,
        templates=("kubectl auth can-i {verb} {resource} -n {place}",)
        if "place" in names
        else ("kubectl auth can-i {verb} {resource}",),
    )
