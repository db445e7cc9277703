"""Files that no generator writes for a controller name every controller."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from workers.controllers import catalogue
from workers.entry import SIDECARS

ROOT = Path(__file__).parents[3]
WHOLE = [spec for spec in catalogue.SPECS if not spec.part_of]
every = pytest.mark.parametrize("spec", WHOLE, ids=lambda spec: spec.name)


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@every
def test_its_go_programs_name_starts_it(spec):
    """The program is a command, a link in the image and a build target of the image."""
    assert spec.program in SIDECARS
    dockerfile = text("Dockerfile")
    links = re.search(r"for program in (.*?);", dockerfile, re.DOTALL)
    assert links is not None
    assert spec.program in links[1].split()
    assert f'ENTRYPOINT ["csi-fleet", "{spec.program}"]' in dockerfile
    assert f"AS {spec.program}\n" in dockerfile


@every
def test_it_can_be_installed(spec):
    """The provisioner's permissions are in the base, so it has no component."""
    schema = json.loads(text("k8s/chart/values.schema.json"))["properties"]
    assert spec.name in schema["controllers"]["items"]["enum"]
    assert spec.name in text("k8s/chart/values.yaml").partition("\ncontrollers:")[0]
    folder = ROOT / "k8s" / "components" / f"controller-{spec.name}"
    assert folder.is_dir() == (spec.name != "provisioner")


@every
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/helm.md", "{name}"),
        ("docs/migration.md", "{program}"),
        ("README.md", "`{program} ...`"),
    ],
)
def test_pages_for_readers_name_it(spec, page, words):
    assert words.format(name=spec.name, program=spec.program) in text(page)


@pytest.mark.parametrize("spec", WHOLE[1:], ids=lambda spec: spec.name)
def test_the_page_about_installing_has_its_component(spec):
    """The provisioner is the exception, because its permissions are in the base."""
    assert f"| controller-{spec.name} |" in text("docs/install.md")
