"""Which sources do attempts under way still need (CL-006, P-242)?

A claim deleted in the middle of its attempt is in no list any more, but the storage may still copy
for it (D-016): the records of the attempts have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.provisioner.own import own
from workers.translate.references import source_references

if TYPE_CHECKING:
    from workers.engine.context import Runtime
    from workers.translate.references import Reference


def references_under_way(runtime: Runtime) -> set[Reference]:
    """Return what attempts that may still run in the storage copy from.

    Raises:
        QueueUnavailable: nothing may be concluded.
    """
    found: set[Reference] = set()
    for record in own(runtime).intents.all().values():
        claim = record.get("claim")
        if isinstance(claim, dict) and record.get("stage") != "failed":
            found |= source_references(claim)
    return found
