"""Fixtures that run the whole program with a real API server, a real Redis and example drivers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, Scene, is_running_here
from tests.support.kube_api import KubeApi
from tests.support.redis_server import RedisServer, is_as_shipped
from tests.support.shipped_fleet import ShippedFleet


@pytest.fixture(scope="session")
def kubeconfig(request):
    """Use the cluster that CSI_FLEET_TEST_KUBECONFIG names, or start a control plane."""
    given = os.environ.get("CSI_FLEET_TEST_KUBECONFIG")
    return Path(given or request.getfixturevalue("control_plane").kubeconfig)


@pytest.fixture(scope="session")
def api(kubeconfig):
    with KubeApi(kubeconfig) as api:
        yield api


@pytest.fixture
def scene(api):
    scene = Scene(api)
    yield scene
    scene.clean_up(is_running_here)


@pytest.fixture(scope="module")
def drivers():
    """Two drivers, shared by the tests of one file."""
    with DirectoryDriver() as one, DirectoryDriver() as two:
        yield one, two


@pytest.fixture(scope="module")
def fleet(request, tmp_path_factory, drivers, redis_binary):
    """Run two workers that serve both drivers, shared by the tests of one file.

    They use the accounts and Redis users of k8s/. On a given cluster, or if Redis is too old for
    these users, one program runs everything instead.
    """
    directory = tmp_path_factory.mktemp("fleet")
    flags = ("--timeout=3s", "-v=4")
    if os.environ.get("CSI_FLEET_TEST_KUBECONFIG") or not is_as_shipped(redis_binary):
        kubeconfig = request.getfixturevalue("kubeconfig")
        fleet = Fleet(directory, kubeconfig, drivers, "--workers=2", *flags)
    else:
        plane = request.getfixturevalue("control_plane")
        fleet = ShippedFleet(directory, plane, redis_binary, drivers, *flags)
    with fleet:
        yield fleet


@pytest.fixture
def own_redis(redis_binary, tmp_path):
    """A Redis for one test, which is free to kill or empty it."""
    server = RedisServer(redis_binary, tmp_path / "redis")
    server.directory.mkdir()
    yield server.start()
    server.kill()


@pytest.fixture
def driver(drivers):
    """The first driver. Its rules are cleared after the test."""
    yield drivers[0]
    drivers[0].set_rules()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run tests marked `last` at the end of their file.

    They check what the other tests left.
    """
    files = {}
    for item in items:
        files.setdefault(item.path, len(files))
        # The certificate of a given cluster may be self-signed. Our own is verified.
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:Unverified HTTPS request"))
    items.sort(key=lambda item: (files[item.path], item.get_closest_marker("last") is not None))
