"""Describes the echo controller as data."""

from __future__ import annotations

from typing import Final

from tests.support.dummy.echo.rules import WATCHES, EchoRules
from tests.support.dummy.echo.settings import FLAGS, read_settings
from workers.kube import paths
from workers.spec import Kind, Permission, Spec


def lease_name(driver: str) -> str:
    """Return the name of the controller's Lease."""
    return f"echo-{driver}"


SPEC: Final = Spec(
    name="echo",
    program="csi-echo",
    kinds=(
        Kind(
            "echoes",
            task="echoes.sync",
            work_queue="csi-echo",
            operations=("list-snapshots",),
            subject=paths.CLAIMS,
            noun="echo",
        ),
        Kind("silences", task="silences.sync", work_queue="csi-silence", has_driver=False),
    ),
    watches=WATCHES,
    make_rules=EchoRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    permissions=(Permission("", ("claims",), ("shout",), "to be heard"),),
)
