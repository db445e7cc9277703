"""Where plug-ins are loaded from."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from workers.config.load import parse
from workers.config.settings import Settings
from workers.custom import loading
from workers.errors import ConfigError

HERE = "tests.support.plugins"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_PLUGIN_DIR", str(tmp_path))
    monkeypatch.setenv("TEST_PLUGIN_TAG", "t")


def test_a_module_and_class():
    assert loading.load(f"{HERE}:Block").name == "t.example.com/block"


def test_an_entry_point(monkeypatch):
    found = EntryPoints([EntryPoint("mine", f"{HERE}:Guarded", loading.GROUP)])
    monkeypatch.setattr(loading, "entry_points", found.select)
    assert loading.load("mine").name == "t.example.com/guarded"
    with pytest.raises(ConfigError, match="installed: mine"):
        loading.load("other")


def test_an_instance_is_taken_as_it_is(monkeypatch):
    plugin = loading.load(f"{HERE}:Block")
    monkeypatch.setattr(sys.modules[HERE], "made", plugin, raising=False)
    assert loading.load(f"{HERE}:made") is plugin


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        pytest.param("no.such.module:X", "No module named", id="module"),
        pytest.param(f"{HERE}:Nobody", "has no attribute 'Nobody'", id="class"),
        pytest.param(":X", "Empty module name", id="empty"),
        pytest.param(
            f"{HERE}:STATES", "neither a provisioner nor a provisioner class", id="no class"
        ),
        pytest.param(
            f"{HERE}:Script", "cannot create the provisioner: TypeError", id="arguments needed"
        ),
        pytest.param("csi-foo", "remove the flag", id="flag of old manifests"),
    ],
)
def test_what_cannot_be_loaded_says_why(reference, words):
    with pytest.raises(ConfigError, match=words):
        loading.load(reference)


def test_several_are_served_but_no_name_twice():
    names = [one.name for one in loading.load_all([f"{HERE}:Block", f"{HERE}:Guarded"], Settings())]
    assert names == ["t.example.com/block", "t.example.com/guarded"]
    with pytest.raises(ConfigError, match="already served"):
        loading.load_all([f"{HERE}:Block", f"{HERE}:Block"], Settings())


def test_the_flag_takes_the_place_of_the_default_socket():
    env = {"CSI_FLEET_REDIS_URL": "redis://r"}
    only = parse("worker", ["--provisioner=a:B", "--provisioner=c"], env).driver
    assert (only.provisioners, only.csi_addresses) == (("a:B", "c"), ())
    both = parse("worker", ["--provisioner=a:B", "--csi-address=/s"], env).driver
    assert both.csi_addresses == ("/s",)
