"""Which driver a command uses: the one of --csi-address or one of the workers' drivers file."""

from __future__ import annotations

import pytest

from workers.cli import drivertools
from workers.config.settings import DriverSettings
from workers.errors import ConfigError

FILE = """
drivers:
  - {name: a.example.org, endpoint: unix:///a, flags: {timeout: 90s}}
  - {name: b.example.org, endpoint: unix:///b, pool: gold, timeouts: {delete: 5s}}
"""


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "drivers.yaml"
    path.write_text(FILE)
    return DriverSettings(csi_addresses=(), drivers_file=str(path))


@pytest.mark.parametrize("name", ["a.example.org", "b.example.org"])
def test_the_driver_of_that_name_whatever_its_pool(settings, name):
    """Pools distribute work among workers, but an operator may look at any driver."""
    assert drivertools.the_one(settings, name).name == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("", "--drivers-file and --driver", id="two to choose from"),
        pytest.param("c.example.org", "no driver with this name", id="none of that name"),
    ],
)
def test_it_must_be_one(settings, name, text):
    """A deletion must never reach the wrong storage."""
    with pytest.raises(ConfigError, match=text):
        drivertools.the_one(settings, name)


def test_a_socket_may_be_of_any_name():
    """The driver's own answer is compared with --driver afterwards."""
    settings = DriverSettings(csi_addresses=("/run/csi/socket",))
    assert drivertools.the_one(settings, "a.example.org").endpoint == "/run/csi/socket"


def test_the_files_own_deadlines_count(settings):
    """Listing a slow array takes a command as long as a worker."""
    spec, other = (drivertools.the_one(settings, f"{n}.example.org") for n in "ab")
    for one, expected in ((spec, 90.0), (other, 10.0)):
        client = drivertools.open_client(one, 10.0)
        assert client.timeout_seconds == expected
        client.close()
