"""Runs all checks on a live CSI driver and reports which fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.conformance import creating, deleting, honesty, sources
from workers.conformance.report import Check, Report, run_checks
from workers.conformance.subject import GIB, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from csi_client.client import CsiClient

CHECKS: Final[tuple[Check[Subject], ...]] = (
    *honesty.CHECKS,
    *creating.CHECKS,
    *deleting.CHECKS,
    *sources.CHECKS,
)


def check_driver(
    client: CsiClient,
    *,
    parameters: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    size_bytes: int = GIB,
) -> Report:
    """Run all checks on a driver; everything that the checks create is deleted.

    Args:
        client: a connected client of the driver; nothing else should be using the storage system in
            the meantime.
        parameters: the parameters of the StorageClass.
        secrets: the data of the provisioner secret.
        size_bytes: the size of each volume; a few volumes exist at the same time.

    Raises:
        CsiError: the driver does not answer the identity calls.
    """
    known = client.plugin_capabilities() | client.controller_capabilities()
    name, _ = client.plugin_info()

    def make() -> Subject:
        return Subject(client, parameters or {}, secrets or {}, size_bytes, known)

    checks = [Check(one.name, one.why, _cleaned(one)) for one in CHECKS]
    return run_checks(checks, f"CSI driver {name}", make)


def _cleaned(check: Check[Subject]) -> Callable[[Subject], None]:
    def run(subject: Subject) -> None:
        try:
            check.run(subject)
        finally:
            subject.clean_up()

    return run
