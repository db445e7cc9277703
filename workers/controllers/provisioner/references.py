"""Which sources do pending claims and attempts under way still need (CL-006, P-242, D-015)?

A claim deleted in the middle of its attempt is in no list any more, but the storage may still copy
for it (D-016): the records of the attempts have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.provisioner.own import own
from workers.translate.fields import text
from workers.translate.references import references_of, source_references

if TYPE_CHECKING:
    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.translate.references import Reference


def needed_references(
    runtime: Runtime,
    driver: Driver,
    namespace: str,
    phases: frozenset[str],
    *,
    except_uid: str = "",
) -> set[Reference]:
    """Return what is needed now of the sources in a namespace; more may be in it.

    Args:
        runtime: of the pass.
        driver: which copies from them; for claims of other namespaces only with the gate.
        namespace: where the sources lie.
        phases: of claims that need theirs.
        except_uid: a claim that does not count.

    Raises:
        ApiError, AttemptError, QueueUnavailable: nothing may be concluded.
    """
    crosses = driver.settings.gates.cross_namespace_volume_data_source
    claims = [
        one
        for one in runtime.kube.list_claims("" if crosses else namespace)
        if not except_uid or text(one, "metadata", "uid") != except_uid
    ]
    return references_of(claims, phases) | references_under_way(runtime, except_uid=except_uid)


def references_under_way(runtime: Runtime, *, except_uid: str = "") -> set[Reference]:
    """Return what attempts that may still run in the storage copy from.

    Raises:
        AttemptError: a record is no claim's; nothing may be concluded.
        QueueUnavailable: the same.
    """
    found: set[Reference] = set()
    for record in own(runtime).intents.all().values():
        claim = record.get("claim")
        if not isinstance(claim, dict) or record.get("stage") == "failed":
            continue
        if not except_uid or text(claim, "metadata", "uid") != except_uid:
            found |= source_references(claim)
    return found
