"""csi-resizer's spec: flags, settings, gates, kind and names (R-120, R-121)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.config.flags import Command
from workers.controllers.resizer.settings import ResizerSettings, read_settings
from workers.controllers.resizer.spec import FLAGS, GATES, SPEC
from workers.kube import paths

HERE = frozenset({Command.RUN, Command.WORKER})
TOOLS = frozenset({Command.AUDIT, Command.DOCTOR, Command.CONFORMANCE})
UPSTREAM = {
    "timeout": 10.0,
    "workers": 10,
    "retry-interval-start": 1.0,
    "retry-interval-max": 300.0,
    "handle-volume-inuse-error": True,
    "extra-modify-metadata": False,
}
OURS = {"default-fstype": "", "serialize-expand-modify": False, "exhausted-is-final": False}
DEFAULTS = {
    "timeout_seconds": 10.0,
    "workers": 10,
    "retry_interval_start_seconds": 1.0,
    "retry_interval_max_seconds": 300.0,
    "handles_in_use": True,
    "extra_modify_metadata": False,
    "default_fs_type": "",
    "serializes": False,
    "exhausted_is_final": False,
    "recovers": True,
    "applies_classes": True,
    "annotates": True,
}


def settings(gates=None, **changes):
    values = {flag.name: flag.default_value() for flag in FLAGS}
    return read_settings(values | {"feature-gates": gates} | changes)


def test_r120_the_flags_and_whose_they_are():
    """R-120: Names and defaults are the Go program's; `--help` marks csi-fleet's own flags."""
    found = {flag.name: flag.default_value() for flag in FLAGS}
    assert found == UPSTREAM | OURS
    assert {flag.name for flag in FLAGS if flag.upstream} == UPSTREAM.keys()


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_r120_which_commands_take_a_flag(flag):
    """The timeout also applies to tools that call drivers."""
    assert flag.commands >= HERE
    assert (flag.commands >= TOOLS) is (flag.name == "timeout")


@pytest.mark.parametrize("gates", [None, {}], ids=["none", "empty"])
def test_r120_the_defaults_make_the_settings(gates):
    """Settings built by hand equal those of a process without flags."""
    assert settings(gates) == ResizerSettings() == ResizerSettings(**DEFAULTS)


@pytest.mark.parametrize(
    ("gate", "field"),
    [
        ("RecoverVolumeExpansionFailure", "recovers"),
        ("VolumeAttributesClass", "applies_classes"),
        ("AnnotateFsResize", "annotates"),
    ],
)
@pytest.mark.parametrize("is_on", [True, False])
def test_r121_each_gate_switches_one_thing(gate, field, is_on):
    """R-121: Even a gate that is GA can be switched off."""
    assert gate in {one.name for one in GATES}
    assert settings({gate: is_on}) == replace(ResizerSettings(), **{field: is_on})


def test_dr030_one_worker_is_enough():
    assert settings(workers=1).workers == 1


def test_mr001_one_kind_for_size_and_class():
    """MR-001, MR-012: They share one queue, in which each operation keeps its own limit."""
    (kind,) = SPEC.kinds
    assert (kind.name, kind.task, kind.work_queue) == ("changes", "changes.sync", "csi-resizer-pvc")
    assert (kind.operations, kind.limits_each) == (("expand", "modify"), True)
    assert (kind.subject, kind.noun, kind.has_driver) == (paths.CLAIMS, "pvc", True)


@pytest.mark.parametrize(
    ("records", "resource", "expected"),
    [
        ([], paths.ATTRIBUTES_CLASSES, False),
        ([{"controller_capabilities": None}], paths.ATTRIBUTES_CLASSES, False),
        ([{"controller_capabilities": ["MODIFY_VOLUME"]}], paths.ATTRIBUTES_CLASSES, True),
        (
            [{"controller_capabilities": ["MODIFY_VOLUME"], "attributes_classes": False}],
            paths.ATTRIBUTES_CLASSES,
            False,
        ),
        ([{}], paths.ATTACHMENTS, False),
        ([{"controller_capabilities": ["PUBLISH_UNPUBLISH_VOLUME"]}], paths.ATTACHMENTS, False),
        (
            [{}, {"controller_capabilities": ["EXPAND_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"]}],
            paths.ATTACHMENTS,
            True,
        ),
    ],
)
def test_r002_what_is_watched_for_whom(records, resource, expected):
    """R-002, DR-011, DR-012: One driver that needs the resource is enough."""
    (watch,) = [one for one in SPEC.watches if one.resource == resource]
    assert watch.is_needed(records) is expected
