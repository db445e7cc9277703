"""Which drivers does a worker of one shard serve, and for which Leases does it run?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.cli.elections import candidates
from workers.config.load import parse
from workers.config.settings import Settings
from workers.config.shard import Shard, place
from workers.controllers import catalogue
from workers.drivers.central import Central
from workers.drivers.fleet import Fleet
from workers.drivers.link import check_shard
from workers.errors import ConfigError

NAMES = [f"d{number}.csi.example.org" for number in range(12)]
COUNTS = [1, 2, 3]


def shards(count):
    return [Shard(index, count) for index in range(count)]


@pytest.mark.parametrize("count", COUNTS)
def test_the_workers_of_all_shards_share_a_drivers_file(tmp_path, count):
    """Each driver of the file is served in one shard, whatever the file says further on."""
    file = tmp_path / "drivers.yaml"
    served = {}
    for present in (NAMES[:8], NAMES):
        lines = [f"- {{name: {name}, endpoint: /run/{name}.sock}}\n" for name in present]
        file.write_text("drivers:\n" + "".join(lines))
        for shard in shards(count):
            fleet = SimpleNamespace(apply=lambda specs, at=shard: served.update({at: set(specs)}))
            Central(fleet, file, shard=shard).start()
        assert sorted(name for found in served.values() for name in found) == sorted(present)
        for shard, found in served.items():
            assert {place(name, count) for name in found} <= {shard.index}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", NAMES[:4])
@pytest.mark.parametrize("given", ["--csi-address /run/s", "--provisioner"])
def test_a_driver_given_by_hand_must_be_this_shard_s(count, name, given):
    """The line names the shard that it belongs to: how else would one learn it."""
    for shard in shards(count):
        if shard.owns(name):
            check_shard(given, name, shard)
            continue
        with pytest.raises(ConfigError, match=f"give it --shard={shard.of(name)}$") as caught:
            check_shard(given, name, shard)
        assert str(caught.value).startswith(f"{given}: driver {name} belongs to shard")
        assert caught.value.exit_code == 2


def test_a_plug_in_of_another_shard_is_refused():
    name = NAMES[0]
    other = Shard(1 - place(name, 2), 2)
    for shard in (other.of(name), other):
        fleet = Fleet(Settings(shard=shard))
        driver = SimpleNamespace(name=name, queue_name=name)
        try:
            if shard is other:
                with pytest.raises(ConfigError, match=r"--provisioner: driver .* belongs to shard"):
                    fleet.add([driver])
            else:
                fleet.add([driver])
            assert (fleet.driver_of(name) is driver) is (shard is not other)
        finally:
            fleet.stop()


@pytest.mark.parametrize("count", [2, 3])
def test_no_two_shards_want_the_same_lease(count):
    """They bear the drivers' names, as the Go sidecars'; that of no driver is shard 0's."""
    wanted = []
    for shard in shards(count):
        urls = [f"--redis-url=redis://r{number}" for number in range(count)]
        settings = parse("worker", [*urls, f"--shard={shard}", "--controllers=all"], {})
        drivers = [SimpleNamespace(name=one, queue_name=one) for one in NAMES if shard.owns(one)]
        found = candidates(catalogue.specs(settings.chosen), drivers)
        wanted.append({one.lease for one in found})
    everything = candidates(
        catalogue.SPECS, [SimpleNamespace(name=one, queue_name=one) for one in NAMES]
    )
    assert sum(map(len, wanted)) == len(set.union(*wanted))
    assert set.union(*wanted) == {one.lease for one in everything}
