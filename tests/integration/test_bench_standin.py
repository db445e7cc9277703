"""The fake API server of `make bench ONLY=systems`, used by csi-fleet's own client."""

from __future__ import annotations

import threading

import pytest

from tests.bench.standin_api import StandInApi
from tests.support.waiting import wait_until
from workers.kube import paths
from workers.kube.client import KubeClient
from workers.kube.errors import NotFoundError
from workers.kube.objects import Claim
from workers.kube.resources import KubeResources
from workers.kube.watch import Reflector

OWN, FOREIGN = ["a.example.org", "b.example.org"], ["c.example.org", "d.example.org"]


class Seen:
    """Collects the phases of each claim that a reflector reports, by name and in order."""

    def __init__(self):
        self.phases, self.annotated, self.listed_at = {}, set(), 0

    def begin_list(self):
        self.phases = {}

    def listed(self, item):
        self.changed(item)

    def end_list(self, _version):
        self.listed_at += 1

    def changed(self, item):
        meta = item.metadata
        self.phases.setdefault(meta.name, []).append(item.status.phase if item.status else "")
        if meta.annotations:
            self.annotated.add(meta.name)

    def deleted(self, item):
        self.phases.pop(item.metadata.name, None)


@pytest.fixture
def api(tmp_path):
    with StandInApi(tmp_path / "api") as api:
        yield api


@pytest.fixture
def client(api):
    return KubeClient.from_settings(master=api.url)


@pytest.fixture
def seen(client):
    """Run a reflector of claims until it has listed them."""
    found = Seen()
    reflector = Reflector(client, paths.CLAIMS.path(), Claim, found)
    thread = threading.Thread(target=reflector.run, daemon=True)
    thread.start()
    wait_until(lambda: found.listed_at, 30, "claims are listed")
    yield found
    reflector.stop()
    thread.join(10)


def test_a_claim_is_bound_by_its_volume_and_foreign_ones_by_themselves(api, client, seen):
    """csi-fleet's own claims are bound when their PV is created, foreign claims at once.

    Each claim has six events, whoever creates its PV.
    """
    api.feed(own=OWN, foreign=FOREIGN, count=4, per_second=1000.0)
    wait_until(lambda: len(seen.phases) == 8 and len(seen.annotated) == 8, 30, "8 claims are seen")
    kube = KubeResources(client)
    assert kube.get_class(OWN[0])["provisioner"] == OWN[0]
    assert api.figures()["created"] == 4
    assert api.figures()["saved"] == 0
    claims = [one for one in kube.list(paths.CLAIMS) if one["spec"]["storageClassName"] in OWN]
    assert len(claims) == 4
    for claim in claims:
        meta = claim["metadata"]
        reference = {key: meta[key] for key in ("name", "namespace", "uid")}
        name = f"pvc-{meta['uid']}"
        body = {"metadata": {"name": name}, "spec": {"claimRef": reference}}
        client.create(paths.VOLUMES.path(), body)
        assert kube.get_volume(name)["status"]["phase"] == "Bound"
        assert kube.get_claim(meta["namespace"], meta["name"])["spec"]["volumeName"] == name
    wait_until(lambda: all(one[-1] == "Bound" for one in seen.phases.values()), 30, "all are bound")
    assert all(len(one) == 4 for one in seen.phases.values()), "of the six two are the volume's"
    found = api.figures()
    assert (found["created"], found["saved"]) == (4, 4)
    assert 0 < found["p50"] <= found["p99"]


def test_what_is_not_there_is_not_found_and_what_goes_is_told(api, client, seen):
    kube = KubeResources(client)
    with pytest.raises(NotFoundError):
        kube.get_claim("bench", "none")
    assert not kube.is_served(paths.ATTRIBUTES_CLASSES)
    api.feed(own=OWN, count=1, per_second=1000.0)
    wait_until(lambda: len(seen.annotated) == 1, 30, "the claim is seen")
    (name,) = seen.phases
    client.delete(paths.CLAIMS.path(name, namespace="bench"))
    wait_until(lambda: not seen.phases, 30, "its end is told")


def test_the_figures_begin_anew_with_each_load(api):
    for count in (3, 5):
        api.feed(own=OWN, count=count, per_second=1000.0)
        wait_until(lambda count=count: api.figures()["created"] == count, 30, "claims are made")
