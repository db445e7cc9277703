"""Finds the sources that pending claims and open attempts still need (CL-006, P-242, D-015).

A claim that was deleted during its attempt is no longer listed, but the storage system may still be
copying its data (D-016). The claim's intent still names the source.
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
    """Return the needed sources of a namespace; the set may include other namespaces' sources.

    Args:
        runtime: the runtime of the reconcile.
        driver: the driver; its gate decides whether claims of other namespaces are considered.
        namespace: the namespace of the sources.
        phases: the phases in which a claim needs its source.
        except_uid: the uid of a claim to leave out.

    Raises:
        ApiError, AttemptError, QueueUnavailable: the needed sources are unknown, so the caller
        must not remove any protection.
    """
    crosses = driver.settings.gates.cross_namespace_volume_data_source
    claims = [
        one
        for one in runtime.kube.list_claims("" if crosses else namespace)
        if not except_uid or text(one, "metadata", "uid") != except_uid
    ]
    return references_of(claims, phases) | references_under_way(
        runtime, driver, except_uid=except_uid
    )


def references_under_way(
    runtime: Runtime, driver: Driver, *, except_uid: str = ""
) -> set[Reference]:
    """Return the sources of the driver's attempts that may still be running, on any node.

    Raises:
        AttemptError: a record has no readable source, so the caller must not remove any protection.
        QueueUnavailable: Redis does not answer, so the caller must not remove any protection.
    """
    found: set[Reference] = set()
    for record in own(runtime).intents.all_of(driver.name).values():
        claim = record.get("claim")
        if not isinstance(claim, dict) or record.get("stage") == "failed":
            continue
        if not except_uid or text(claim, "metadata", "uid") != except_uid:
            found |= source_references(claim)
    return found
