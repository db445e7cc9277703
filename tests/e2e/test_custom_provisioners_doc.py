"""Runs every snippet of docs/custom-provisioners.md in the order of the page."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, environment, program
from tests.support.waiting import wait_until
from workers.config.settings import Settings
from workers.custom.driver import custom_driver
from workers.custom.loading import GROUP
from workers.errors import State

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "custom-provisioners.md"
BLOCK = re.compile(r'^```(\w+)(?: title="(\S+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str


def blocks():
    found = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return [Block(language, title, text) for language, title, text in found]


def titled(title):
    (found,) = [one for one in blocks() if one.title == title]
    return found.text


def commands(word):
    return [one.text.strip() for one in blocks() if one.language == "sh" and word in one.text]


@pytest.fixture
def folder(tmp_path):
    """The author's folder with all files of the page, and a root for the volumes."""
    for block in blocks():
        if block.title:
            (tmp_path / block.title).write_text(block.text)
    (tmp_path / "volumes").mkdir()
    return tmp_path


def env_of(folder):
    return environment(
        PYTHONPATH=f"{folder}:{ROOT}", MYDIRS_ROOT=str(folder / "volumes"), PYTHONWARNINGS="error"
    )


@pytest.fixture
def modules(folder, monkeypatch):
    """Return a function that imports a file of the page."""
    monkeypatch.syspath_prepend(str(folder))

    def load(name):
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    yield load
    for name in ("mydirs", "states", "optional"):
        sys.modules.pop(name, None)


def test_no_snippet_is_left_out():
    """A new block on the page needs a test here."""
    assert [(one.language, one.title) for one in blocks()] == [
        ("python", "mydirs.py"),
        ("python", "check.py"),
        ("sh", ""),
        ("text", ""),
        ("sh", ""),
        ("yaml", "claim.yaml"),
        ("sh", ""),
        ("python", "states.py"),
        ("python", "optional.py"),
        ("toml", "pyproject.toml"),
        ("sh", ""),
    ]


def test_the_kit_prints_what_the_page_shows(folder):
    (command,) = commands("check.py")
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]],
        cwd=folder,
        env=env_of(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (expected,) = [one.text for one in blocks() if one.language == "text"]
    assert done.stdout.strip() == expected.strip()


def test_the_ten_minutes(folder, kubeconfig, scene, redis_binary):
    """The page's command binds the page's claim, and deleting the claim removes its directory."""
    (run,) = commands("csi-fleet run")
    flags = shlex.split(run)[2:]
    tag = uuid.uuid4().hex[:8]
    # The names are the page's with a tag added, because the tests share the cluster.
    source = folder / "mydirs.py"
    source.write_text(source.read_text().replace("example.com/", f"{tag}.example.com/"))
    (apply,) = commands("kubectl")
    text = (folder / shlex.split(apply)[-1]).read_text()
    storage_class, claim = yaml.safe_load_all(text.replace("example.com/", f"{tag}.example.com/"))
    full = scene.storage_class(storage_class["provisioner"], storage_class["metadata"]["name"])
    claim["spec"]["storageClassName"] = full
    claim["metadata"]["namespace"] = scene.namespace
    env = {"PYTHONPATH": f"{folder}:{ROOT}", "MYDIRS_ROOT": str(folder / "volumes")}
    with Fleet(folder / "fleet", kubeconfig, [], *flags, env=env):
        scene.api.create(claim)
        bound = scene.wait_bound("data")["data"]
        place = folder / "volumes" / f"pvc-{bound['metadata']['uid']}"
        assert place.is_dir()
        volume = scene.volume_of(bound)
        annotations = volume["metadata"]["annotations"]
        assert annotations["pv.kubernetes.io/provisioned-by"] == f"{tag}.example.com/directories"
        scene.delete("data")
        scene.wait_gone()
        wait_until(lambda: not place.exists(), 10, "the directory is gone")


def test_the_states_of_the_page(modules):
    found = modules("states")
    assert [one.state for one in (found.final, found.open_end, found.unchanged)] == [
        State.FINISHED,
        State.BACKGROUND,
        State.NO_CHANGE,
    ]
    assert (found.elsewhere.state, found.hopeless.code) == (State.RESCHEDULE, 3)
    assert found.not_mine.reason == "of another zone"


def test_the_optional_parts_are_found(modules):
    driver = custom_driver(modules("optional").Picky(), Settings())
    assert driver.names == ("example.com/picky", "example.com/old-name")
    assert driver.backend.add_finalizer
    assert driver.backend.threshold("claims") == 15
    assert not driver.backend.supports_block()
    assert driver.backend.is_guard_willing({"metadata": {}})
    kept = {"metadata": {"annotations": {"example.com/keep": ""}}}
    assert not driver.backend.is_guard_willing(kept)
    assert not driver.backend.provisioner.should_provision(
        {"metadata": {"namespace": "kube-system"}}
    )


def test_the_entry_point_leads_to_the_class(modules):
    project = tomllib.loads(titled("pyproject.toml"))["project"]
    reference = project["entry-points"][GROUP]["directories"]
    module, _, name = reference.partition(":")
    assert getattr(modules(module), name).name == "example.com/directories"


def test_the_package_of_the_page_is_found_by_its_short_name(folder, tmp_path_factory):
    """The package is built as the page says, next to the other files of the reader's folder."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", site, "."], cwd=folder, check=True, timeout=120)
    code = "from workers.custom.loading import load; print(load('directories').name)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env=environment(PYTHONPATH=f"{site}:{ROOT}"), cwd=site,
    )  # fmt: skip
    assert done.stdout.strip() == "example.com/directories"


def test_the_conformance_command(folder):
    (command,) = commands("conformance")
    with DirectoryDriver() as driver:
        words = [
            driver.endpoint if word.startswith("unix:") else word for word in shlex.split(command)
        ]
        done = subprocess.run(
            [*program(), *words[1:]], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 BROKEN" in done.stdout
