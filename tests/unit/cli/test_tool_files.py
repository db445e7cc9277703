"""docs/tools: csi-fleet accepts every command that k9s or HolmesGPT would run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from workers.cli import kubectl
from workers.cli.tools import named_object
from workers.cli.wholes import named
from workers.config.load import parse

TOOLS = Path(__file__).resolve().parents[3] / "docs/tools"
PLUGINS = yaml.safe_load((TOOLS / "k9s-plugins.yaml").read_text())["plugins"]
TOOLSET = yaml.safe_load((TOOLS / "holmesgpt-toolset.yaml").read_text())["toolsets"]["csi-fleet"]
NAMESPACED = {"persistentvolumeclaims", "volumesnapshots"}
DRIVER = "csi.example.org"
# Logs its arguments; an object's field is the driver, and a snapshot's field is a content.
KUBECTL = """\
#!{python}
import json, sys
if sys.argv[1] == "csi-fleet":
    open({log!r}, "a").write(json.dumps(sys.argv[2:]) + "\\n")
else:
    print("content" if "volumesnapshots" in sys.argv else {driver!r}, end="")
"""


@pytest.fixture
def asked(tmp_path):
    """Return a function that runs a shell line and returns the arguments of `kubectl csi-fleet`."""
    log = tmp_path / "log"
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, log=str(log), driver=DRIVER))
    program.chmod(0o755)

    def run(line):
        log.unlink(missing_ok=True)
        path = f"{tmp_path}:{os.environ['PATH']}"
        subprocess.run(["sh", "-c", line], check=True, env={"PATH": path}, capture_output=True)
        (arguments,) = map(json.loads, log.read_text().splitlines())
        return arguments

    return run


def understood(arguments):
    """Return the flags, command and settings; raise if the plug-in or csi-fleet refuses them."""
    flags, _, (command, *rest) = kubectl.split(arguments)
    return flags, command, parse(command, rest, {})


def substituted(text, values):
    """Substitute as k9s does; an unknown name after a `$` is an error."""
    return re.sub(r"\$([\w|-]+)", lambda found: values[found[1]], text)


SELECTED = [(name, scope) for name, one in PLUGINS.items() for scope in one["scopes"]]


@pytest.mark.parametrize(("name", "scope"), SELECTED)
@pytest.mark.parametrize("context", ["prod", "arn:aws:eks:eu-1:1:cluster/x y"])
def test_k9s_runs_what_csi_fleet_understands(asked, name, scope, context):
    plugin = PLUGINS[name]
    namespace = "shop" if scope in NAMESPACED else ""
    values = {"CONTEXT": context, "NAMESPACE": namespace, "NAME": "data", "RESOURCE_NAME": scope}
    assert plugin["command"] == "sh"
    flag, line = plugin["args"]
    assert flag == "-c"
    flags, command, settings = understood(asked(substituted(line, values)))
    assert flags == [f"--context={context}"]
    if command == "pause":
        assert settings.tool.driver == DRIVER
        assert plugin["confirm"] is True
    else:
        found = named_object(settings.arguments, command, given=settings.tool.namespace)
        assert found[1:] == (namespace, "data")


def test_k9s_has_each_command_for_each_kind_once():
    """If two plug-ins share a key in one view, k9s drops one of them."""
    keys = [(PLUGINS[name]["shortCut"], scope) for name, scope in SELECTED]
    kinds = {scope for _, scope in SELECTED}
    assert len(keys) == len(set(keys)) == 3 * len(kinds)
    assert kinds == NAMESPACED | {
        "persistentvolumes", "volumeattachments", "volumesnapshotcontents",
    }  # fmt: skip


# Fields and types in k9s' schema for plug-ins (internal/config/json/schemas/plugins.json). k9s
# ignores a whole file that has another field or type.
FIELDS = {
    "shortCut": str, "description": str, "scopes": list, "command": str, "background": bool,
    "confirm": bool, "args": list,
}  # fmt: skip
REQUIRED = {"shortCut", "description", "scopes", "command"}


def test_k9s_knows_every_field():
    assert yaml.safe_load((TOOLS / "k9s-plugins.yaml").read_text()).keys() == {"plugins"}
    for one in PLUGINS.values():
        assert one.keys() >= REQUIRED
        assert {field: type(value) for field, value in one.items()}.items() <= FIELDS.items()
        assert {type(word) for word in (*one["scopes"], *one["args"])} == {str}


OBJECTS = [
    {"kind": "pvc", "namespace": "shop", "name": "data"},
    {"kind": "pv", "namespace": "", "name": "pvc-1"},
    {"kind": "driver", "namespace": "", "name": DRIVER},
    {"kind": "pvc", "namespace": "shop", "name": "x; touch broken"},
]


@pytest.mark.parametrize("given", OBJECTS)
@pytest.mark.parametrize("tool", TOOLSET["tools"], ids=lambda tool: tool["name"])
def test_holmesgpt_runs_what_csi_fleet_understands(asked, tool, given):
    """HolmesGPT quotes a parameter and leaves an empty one empty."""
    quoted = {key: shlex.quote(one) if one else "" for key, one in given.items()}
    line = re.sub(r"\{\{ (\w+) \}\}", lambda found: quoted[found[1]], tool["command"])
    _, command, settings = understood(asked(line))
    assert command in {"explain", "status", "pending", "failed"}
    assert not settings.tool.replay
    if command == "explain":
        whole = named(settings.arguments)
        namespace = settings.tool.namespace
        found = whole or named_object(settings.arguments, command, given=namespace)[1:]
        assert found[-1] == given["name"]
