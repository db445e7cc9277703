"""A release's parts: version by the tag, notes by the changelog, a chart without links."""

from __future__ import annotations

import hashlib
import tarfile

import pytest
import yaml

from tests.support import release
from tests.support.release import ReleaseError

LOG = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.0 (2026-01-02)\n\n- old\n"


@pytest.mark.parametrize(("tag", "version"), [("v1.2.3", "1.2.3"), ("v1.2.3rc1", "1.2.3rc1")])
def test_version_is_the_tags(tag, version):
    assert release.version_of(tag) == version


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3-dirty", "main"])
def test_other_tags_are_refused(tag):
    with pytest.raises(ReleaseError):
        release.version_of(tag)


@pytest.mark.parametrize(("version", "line"), [("1.2.0", "- old"), ("1.3.0", "- new")])
def test_notes_are_the_versions_section(version, line):
    """Of a version that has none yet: what is unreleased."""
    assert release.notes(LOG, version) == f"# csi-fleet {version}\n\n{line}\n"


def test_a_release_without_notes_is_none():
    with pytest.raises(ReleaseError, match="says nothing"):
        release.notes("# Changelog\n\n## Unreleased\n", "1.0.0")


@pytest.fixture
def source(tmp_path):
    """What stamping and packing need of the repository."""
    copy = tmp_path / "source"
    (copy / "k8s").mkdir(parents=True)
    (copy / "pyproject.toml").write_text((release.ROOT / "pyproject.toml").read_text())
    (copy / "k8s" / "base").symlink_to(release.ROOT / "k8s" / "base")
    (copy / "k8s" / "components").symlink_to(release.ROOT / "k8s" / "components")
    chart = copy / "k8s" / "chart"
    (chart / "objects").mkdir(parents=True)
    (chart / "Chart.yaml").write_text((release.ROOT / "k8s" / "chart" / "Chart.yaml").read_text())
    for name in ("base", "components"):
        (chart / "objects" / name).symlink_to(f"../../{name}")
    return copy


def test_version_is_stamped_into_wheel_and_chart(source):
    release.stamp(source, "9.8.7rc1")
    assert '\nversion = "9.8.7rc1"\n' in (source / "pyproject.toml").read_text()
    written = yaml.safe_load((source / "k8s" / "chart" / "Chart.yaml").read_text())
    assert (written["version"], str(written["appVersion"])) == ("9.8.7-rc.1", "9.8.7rc1")


def test_chart_holds_files_and_is_reproducible(source, tmp_path):
    """Helm takes no link in an archive."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = release.chart(source, tmp_path / "a", "1.0.0", epoch=1_700_000_000)
    two = release.chart(source, tmp_path / "b", "1.0.0", epoch=1_700_000_000)
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        members = archive.getmembers()
    assert all(one.isfile() for one in members)
    names = {one.name for one in members}
    assert "csi-fleet/Chart.yaml" in names
    assert "csi-fleet/objects/base/deployments.yaml" in names
    assert "csi-fleet/objects/components/monitoring/prometheusrules.yaml" in names


def test_checksums_are_sha256sums(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"a")
    digest = hashlib.sha256(b"a").hexdigest()
    assert release.checksums(tmp_path).read_text() == f"{digest}  a.whl\n"
