"""The whole program between a real API server, a real Redis and example drivers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, Scene
from tests.support.kube_api import KubeApi


@pytest.fixture(scope="session")
def kubeconfig(request):
    """CSI_FLEET_TEST_KUBECONFIG names a cluster to use; else one is started."""
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
    scene.clean_up()


@pytest.fixture(scope="module")
def drivers():
    """Two drivers, shared by the tests of one file."""
    with DirectoryDriver() as one, DirectoryDriver() as two:
        yield one, two


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, drivers, redis_binary):
    """Two workers over both drivers, shared by the tests of one file."""
    directory = tmp_path_factory.mktemp("fleet")
    with Fleet(directory, kubeconfig, drivers, "--workers=2", "--timeout=3s", "-v=4") as fleet:
        yield fleet


@pytest.fixture
def driver(drivers):
    """The first driver, well-behaved again afterwards."""
    yield drivers[0]
    drivers[0].set_rules()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Within a shuffled file, tests marked `last` close it: they judge what the others left."""
    files = {}
    for item in items:
        files.setdefault(item.path, len(files))
        # A cluster of one's own may have a certificate nobody signed; ours is checked.
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:Unverified HTTPS request"))
    items.sort(key=lambda item: (files[item.path], item.get_closest_marker("last") is not None))
