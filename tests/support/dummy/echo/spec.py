"""The echo controller as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.support.dummy.echo.rules import WATCHES, EchoRules
from workers.config.flags import Flag, at_least
from workers.config.flags import Kind as Value
from workers.kube import paths
from workers.spec import Kind, Permission, Spec

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Its only setting."""
    return {"loudness": values["loudness"]}


def lease_name(driver: str) -> str:
    """Its Lease."""
    return f"echo-{driver}"


SPEC: Final = Spec(
    name="echo",
    program="csi-echo",
    kinds=(
        Kind(
            "echoes",
            task="echoes.sync",
            work_queue="csi-echo",
            operations=("list-volumes",),
            subject=paths.CLAIMS,
            noun="echo",
        ),
        Kind("silences", task="silences.sync", work_queue="csi-silence", has_driver=False),
    ),
    watches=WATCHES,
    make_rules=EchoRules,
    lease_name=lease_name,
    flags=(Flag("loudness", Value.UINT, "7", "How loud.", bound=at_least(1)),),
    read_settings=read_settings,
    permissions=(Permission("", ("claims",), ("shout",), "to be heard"),),
)
