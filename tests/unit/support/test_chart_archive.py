"""The chart's OCI archive: a registry takes what its index names, by digest and media type."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest
import yaml

from tests.support import release
from tests.support.chart_archive import chart_archive


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    path = tmp_path_factory.mktemp("chart") / "csi-fleet-0.1.0.tgz"
    files = release.chart(release.ROOT, {"csi-fleet": f"sha256:{'0' * 64}"})
    release.pack(path, files, epoch=1_700_000_000)
    return path


@pytest.fixture(scope="module")
def layout(packed):
    """Return the archive's files by name."""
    with tarfile.open(fileobj=io.BytesIO(chart_archive(packed, 1_700_000_000))) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive.getmembers()}


def read(layout, entry):
    """Return the blob that a descriptor names; check its digest and size."""
    algorithm, _, digest = entry["digest"].partition(":")
    data = layout[f"blobs/{algorithm}/{digest}"]
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest, entry["size"])
    return data


def test_every_blob_is_reached_from_the_index_by_digest_and_media_type(layout, packed):
    assert json.loads(layout["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(layout["index.json"])["manifests"]
    assert entry["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    manifest = json.loads(read(layout, entry))
    assert manifest["mediaType"] == entry["mediaType"]
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    (layer,) = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    assert read(layout, layer) == packed.read_bytes()
    about = yaml.safe_load((release.ROOT / "k8s/chart/Chart.yaml").read_text())
    assert json.loads(read(layout, manifest["config"])) == about
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": about["version"]}
    assert len([one for one in layout if one.startswith("blobs/")]) == 3


def test_the_same_chart_gives_the_same_bytes(packed):
    assert chart_archive(packed, 1_700_000_000) == chart_archive(packed, 1_700_000_000)


def test_artifact_hub_can_read_the_annotations():
    """Strings only, and an existing category: artifacthub.io/docs/topics/annotations/helm."""
    about = yaml.safe_load((release.ROOT / "k8s/chart/Chart.yaml").read_text())
    notes = about["annotations"]
    assert notes.pop("artifacthub.io/category") == "storage"
    assert notes.pop("artifacthub.io/license") == "Apache-2.0"  # an SPDX name
    assert notes.pop("artifacthub.io/prerelease") in {"true", "false"}
    assert notes == {}
