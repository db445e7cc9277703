"""A source whose whole kind is missing differs from a source that does not exist."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.explain.gather import Gatherer
from workers.kube.errors import NotFoundError

CLAIM = {
    "metadata": {"name": "data", "namespace": "shop"},
    "spec": {
        "dataSource": {
            "apiGroup": "snapshot.storage.k8s.io",
            "kind": "VolumeSnapshot",
            "name": "nightly",
        }
    },
}
SOURCE = "VolumeSnapshot shop/nightly"
CRD = "volumesnapshots.snapshot.storage.k8s.io"


@pytest.mark.parametrize(
    ("message", "is_served", "expected"),
    [
        ("404 page not found", False, {"missing_source": SOURCE, "missing_crd": CRD}),
        ("404 page not found", True, {}),
        (f'{CRD} "nightly" not found', True, {"missing_source": SOURCE, "missing_crd": ""}),
    ],
    ids=["kind missing", "unclear", "object missing"],
)
def test_what_is_missing(message, is_served, expected):
    def get(*_, **__):
        raise NotFoundError(404, "NotFound", message)

    kube = SimpleNamespace(get=get, is_served=lambda _: is_served)
    assert Gatherer(SimpleNamespace(kube=kube))._copied(CLAIM) == expected
