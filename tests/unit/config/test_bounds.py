"""No flag accepts a negative time or number, except those with a stated reason (CLI)."""

from __future__ import annotations

import pytest

from workers.config.flags import Command, Kind
from workers.config.flagsets import flag_set
from workers.config.load import parse
from workers.controllers import catalogue
from workers.errors import ConfigError

NEGATIVE = {Kind.DURATION: "-5s", Kind.INT: "-5", Kind.FLOAT: "-5", Kind.UINT: "-5"}
NEGATIVE |= {Kind.QUANTITY: "-5Gi"}
_OF_SIDECARS = "the sidecar takes it, and so do manifests in use"
MAY_BE_NEGATIVE = {
    "kube-api-qps": "below 0 there is no limit, as in client-go",
    "kube-api-burst": "client-go takes it",
    "kube-api-capacity-qps": "below 0 there is no limit, as in client-go",
    "kube-api-capacity-burst": "client-go takes it",
    "log-text-info-buffer-size": "without effect",
    "log-json-info-buffer-size": "without effect",
    "volume-name-uuid-length": "-1 keeps the whole of it",
    "snapshot-name-uuid-length": "-1 keeps the whole of it",
    "groupsnapshot-name-uuid-length": "-1 keeps the whole of it",
    "max-grpc-log-length": "-1 is no limit",
    "capacity-ownerref-level": "-1 is no owner",
    "max-entries": _OF_SIDECARS,
    "resync": _OF_SIDECARS,
    "reconcile-sync": _OF_SIDECARS,
    "reconcile-timeout": _OF_SIDECARS,
    "retry-crd-interval-max": _OF_SIDECARS,
}


def may_be_negative(name):
    """Return True if the flag is exempt; its name may have a controller's name as a prefix."""
    return any(name == one or name.endswith(f"-{one}") for one in MAY_BE_NEGATIVE)


FLAGS = flag_set(catalogue.choose("all")).flags.values()
FLAGS_BY_NAME = {flag.name: flag for flag in FLAGS}
CASES = [
    pytest.param(command, flag, id=f"{command} --{flag.name}")
    for flag in FLAGS
    for command in sorted(flag.commands)
    if flag.kind in NEGATIVE and not may_be_negative(flag.name)
]


@pytest.mark.parametrize(("command", "flag"), CASES)
def test_a_negative_value_is_refused(command, flag):
    given = [f"--{flag.name}={NEGATIVE[flag.kind]}"]
    if command in FLAGS_BY_NAME["redis-url"].commands:
        given.append("--redis-url=redis://127.0.0.1:1")
    with pytest.raises(ConfigError) as caught:
        parse(command, ["--controllers=all", *given] if command in {"run", "worker"} else given, {})
    assert flag.name.removeprefix("resizer-") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_exception_is_a_flag():
    names = [flag.name for flag in FLAGS]
    assert all(any(name.endswith(one) for name in names) for one in MAY_BE_NEGATIVE)


@pytest.mark.parametrize("command", [Command.PAUSE, Command.DRAIN])
def test_none_is_a_time_too(command):
    assert parse(command, ["--for=0"], {}).tool.for_seconds == 0.0
