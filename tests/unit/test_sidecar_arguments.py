"""The arguments in real drivers' charts mean the same to csi-fleet as to the Go sidecars.

`python -m tests.support.recipes FOLDER --record` wrote `tests/support/sidecar_arguments.yaml` from
the charts.
"""

from __future__ import annotations

import pytest
import yaml

from tests.support.recipes import RECIPES, SOURCES, recorded, settings_of

CASES = [
    pytest.param(program, arguments, id=f"{driver} {program}")
    for driver, programs in recorded().items()
    for program, arguments in programs.items()
]


@pytest.mark.parametrize(("program", "arguments"), CASES)
def test_the_arguments_of_a_real_sidecar_are_taken_unchanged(program, arguments):
    settings = settings_of(program, arguments)
    assert settings.arguments == ()
    # Graduated gates and renamed flags cause a warning, not an error.
    told = [one for one in settings.warnings if "GA feature gate" not in one]
    assert [one for one in told if "is deprecated" not in one] == []
    elects = any(one.lstrip("-").startswith("leader-election") for one in arguments)
    assert settings.leader.enabled == elects


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_each_recipe_names_our_images_alone(source):
    """This finds a misspelt image; the command checks that the chart accepts it."""
    text = (RECIPES / source.recipe).read_text()
    assert yaml.safe_load(text)
    images = [line for line in text.splitlines() if "csi-fleet" in line and "REG/" in line]
    assert len(images) >= 3
    for program in ("attacher", "resizer", "snapshotter"):
        assert f"REG/csi-fleet-csi-{program}" in text or (program, source.recipe) == (
            "attacher",
            "nfs.yaml",
        )
