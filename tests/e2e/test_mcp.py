"""The client of the official MCP package calls csi-fleet-mcp for a real fleet."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import ROOT, Fleet, environment

SERVER = [sys.executable, "-m", "workers.cli.mcpserver"]


@pytest.fixture(scope="module")
def driver():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, driver):
    with Fleet(tmp_path_factory.mktemp("fleet"), kubeconfig, [driver], "--workers=1") as fleet:
        yield fleet


def talk(arguments, calls, **variables):
    """Start the server as an AI assistant does, and call each (tool, arguments) of `calls`.

    Return the server's tools and its answers.
    """
    parameters = StdioServerParameters(
        command=SERVER[0],
        args=[*SERVER[1:], *arguments],
        cwd=str(ROOT),
        env=environment(**variables),
    )

    async def session():
        async with Client(stdio_client(parameters)) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(*call) for call in calls]

    return anyio.run(session)


@pytest.fixture
def ask(fleet, kubeconfig):
    """Return a function that calls the server of the fleet."""
    flags = ["--local", f"--redis-url={fleet.redis_url}", f"--kubeconfig={kubeconfig}"]
    return lambda *calls: talk(flags, calls)


def test_every_tool_says_that_it_only_reads(ask):
    tools, _ = ask()
    assert {one.name for one in tools} == {"explain", "status", "pending", "failed"}
    for one in tools:
        assert one.annotations.read_only_hint
        assert one.description


def test_a_stuck_claim_is_explained(ask, scene, driver):
    driver.set_rules({"method": "CreateVolume", "code": "INVALID_ARGUMENT", "message": "no pool"})
    scene.claim("data", scene.storage_class(driver.name))
    scene.wait_event("data", "no pool")
    claim = {"kind": "pvc", "namespace": scene.namespace, "name": "data"}
    narrow = {"driver": driver.name}
    _, (why, status, pending, failed) = ask(
        ("explain", claim), ("status", {}), ("pending", narrow), ("failed", narrow)
    )
    assert not any(one.is_error for one in (why, status, pending, failed))
    assert why.structured_content["kind"] == "Explanation"
    assert "no pool" in str(why.structured_content)
    assert driver.name in str(status.structured_content)
    assert f"{scene.namespace}/data" in str(pending.structured_content)
    assert [one["object"] for one in failed.structured_content["items"]] == [
        f"{scene.namespace}/data"
    ]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("explain", {"kind": "pvc", "name": "--kubeconfig=/etc/passwd", "namespace": "shop"}),
        ("explain", {"kind": "--help", "name": "data"}),
        ("explain", {"kind": "pvc", "name": "a b", "namespace": "shop"}),
        ("failed", {"driver": "x --replay"}),
        ("retry", {"kind": "pvc", "name": "data", "namespace": "shop"}),
    ],
)
def test_nothing_but_a_name_reaches_a_command(ask, tool, arguments):
    _, (answer,) = ask((tool, arguments))
    assert answer.is_error


def test_an_error_of_the_command_is_the_answer(ask):
    _, (answer,) = ask(("explain", {"kind": "pvc", "name": "data"}))
    assert answer.is_error
    assert "has no namespace" in answer.content[0].text


def test_from_a_laptop_kubectl_runs_the_command_in_a_pod(tmp_path):
    """The server's own flags name kubectl's context."""
    pod = {
        "metadata": {"name": "worker-0", "namespace": "csi-fleet"},
        "spec": {"containers": [{"name": "worker", "env": [{"name": "CSI_FLEET_REDIS_URL"}]}]},
        "status": {"phase": "Running"},
    }
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"pods = {{'items': [{pod!r}]}}\n"
        "print(json.dumps(pods if 'get' in sys.argv else {'ran': sys.argv[1:]}))\n"
    )
    kubectl.chmod(0o755)
    flags = ["-n", "csi-fleet", "--context=prod"]
    claim = {"kind": "pvc", "name": "data", "namespace": "shop"}
    _, (answer,) = talk(flags, [("explain", claim)], KUBECTL=str(kubectl))
    ran = answer.structured_content["ran"]
    assert ran[:2] == ["--context=prod", "exec"]
    inside = ran[ran.index("--") + 1 :]
    assert inside == ["csi-fleet", "explain", "pvc", "data", "--in-namespace=shop", "--output=json"]


def test_without_the_package_the_remedy_is_named(tmp_path):
    """A plain installation does not include MCP."""
    (tmp_path / "mcp.py").write_text("raise ImportError('No module named mcp')\n")
    done = subprocess.run(
        SERVER, check=False, capture_output=True, text=True, cwd=ROOT,
        env=environment(PYTHONPATH=str(tmp_path)),
    )  # fmt: skip
    assert done.returncode == 1
    assert "pip install 'csi-fleet[mcp]'" in done.stderr
