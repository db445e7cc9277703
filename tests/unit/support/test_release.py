"""The parts of a release: one version everywhere, notes, and reproducible archives."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile

import pytest
import yaml

from tests.support import release
from tests.support.release import Release, ReleaseError

LOG = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.0 (2026-01-02)\n\n- old\n\n## 1.1.0\n"
DIGEST = f"sha256:{'0' * 64}"


def test_every_file_names_the_same_version():
    """Chart, overlays and examples agree; otherwise an install would use an older image."""
    found = release.versions(release.ROOT)
    assert len(found) > 5
    assert len(set(found.values())) == 1


def test_notes_are_the_versions_section():
    assert release.notes(LOG, "1.2.0") == "# csi-fleet 1.2.0\n\n- old\n"


@pytest.mark.parametrize("version", ["1.3.0", "1.1.0"])
def test_a_version_that_the_changelog_does_not_describe_is_refused(version):
    """Unreleased changes do not belong to a version yet."""
    with pytest.raises(ReleaseError, match=f"no section {version}"):
        release.notes(LOG, version)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"version": "1.2"}, "no version"),
        ({"version": "v1.2.3"}, "no version"),
        ({"version": "99.0.0"}, r"Change pyproject\.toml"),
    ],
)
def test_a_release_that_cannot_be_right_is_refused_before_a_file_is_made(tmp_path, asked, said):
    out = tmp_path / "out"
    with pytest.raises(ReleaseError, match=said):
        release.build(Release(**asked, out=out))
    assert not out.exists()


@pytest.fixture
def only_the_folder(monkeypatch):
    """Pass every check except that of the folder, and make nothing."""
    monkeypatch.setattr(release, "_run", lambda *_, **__: "")
    monkeypatch.setattr(release, "notes", lambda *_: "")
    version = next(iter(release.versions(release.ROOT).values()))
    return lambda out: release.check(Release(version, out, digest=DIGEST))


def test_a_folder_that_is_absent_empty_or_of_an_earlier_release_is_taken(tmp_path, only_the_folder):
    out = tmp_path / "out"
    only_the_folder(out)
    out.mkdir()
    only_the_folder(out)
    for name in ("provenance.intoto.json", "SHA256SUMS.sig", "SHA256SUMS.pub"):
        (out / name).write_text(name)
    release.checksums(out)
    only_the_folder(out)


@pytest.mark.parametrize(
    "files",
    [
        ["mine"],
        ["mine", "SHA256SUMS"],
        ["0.1.0/SHA256SUMS"],
        ["SHA256SUMS", "0.1.0/SHA256SUMS"],
        ["SHA256SUMS", "provenance.intoto.json", "mine"],
        ["SHA256SUMS", "provenance.intoto.json", ".git/HEAD"],
    ],
)
def test_a_folder_with_something_else_in_it_is_refused(tmp_path, only_the_folder, files):
    """Each release empties its folder, so OUT=~/releases would remove all older releases."""
    sums = "0  provenance.intoto.json\n" if "provenance.intoto.json" in files else "0  other\n"
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(sums)
    with pytest.raises(ReleaseError, match="no earlier release"):
        only_the_folder(tmp_path)


def test_a_file_is_no_folder(tmp_path, only_the_folder):
    (tmp_path / "a").touch()
    with pytest.raises(ReleaseError, match="no earlier release"):
        only_the_folder(tmp_path / "a")


def test_a_folder_that_has_the_checkout_in_it_is_refused(tmp_path, only_the_folder):
    link = tmp_path / "link"
    link.symlink_to(release.ROOT)
    inside = release.ROOT / "tests" / ".."
    for out in (release.ROOT, release.ROOT.parent, inside, link):
        with pytest.raises(ReleaseError, match="has the checkout in it"):
            only_the_folder(out)


@pytest.fixture
def only_making(monkeypatch):
    """Pass all checks; `making` writes the files into the folder that it gets."""

    def build(out, making):
        monkeypatch.setattr(release, "check", lambda _: None)
        monkeypatch.setattr(release, "make", lambda asked: making(asked.out))
        release.build(Release("1.2.3", out))

    return build


@pytest.mark.parametrize("stop", [ReleaseError("no space"), KeyboardInterrupt()])
def test_a_broken_run_leaves_the_earlier_release_and_nothing_else(tmp_path, only_making, stop):
    out = tmp_path / "dist"
    out.mkdir()
    (out / "before").touch()

    def breaks(folder):
        (folder / "half").touch()
        raise stop

    with pytest.raises(type(stop)):
        only_making(out, breaks)
    assert [str(one.relative_to(tmp_path)) for one in sorted(tmp_path.rglob("*"))] == [
        "dist",
        "dist/before",
    ]


def test_a_release_takes_the_place_of_the_earlier_one_when_it_is_complete(tmp_path, only_making):
    out = tmp_path / "new" / "dist"
    for name in ("first", "second"):

        def writes(folder, name=name):
            assert folder.parent.parent == out.parent, "a rename would be a copy"
            assert not (out / name).exists()
            (folder / name).touch()

        only_making(out, writes)
        assert [one.name for one in out.iterdir()] == [name]
        assert list(out.parent.iterdir()) == [out]
        # A web server reads it, so the folder must not have mode 700.
        assert out.stat().st_mode == (tmp_path / "new").stat().st_mode


def test_helm_spells_a_release_candidate_in_its_own_way():
    assert release.chart_version("1.2.3rc1") == "1.2.3-rc.1"


def test_manifests_name_our_images_by_digest():
    text = "images:\n- newTag: 1.0.0\nimage: csi-fleet:1.0.0\nimage: REG/csi-fleet-example:1.0.0\n"
    digests = {"csi-fleet": DIGEST, "csi-fleet-example": DIGEST[:-1] + "1"}
    assert release.by_digest(text, "1.0.0", digests) == (
        f"images:\n- digest: {DIGEST}\nimage: csi-fleet@{DIGEST}\n"
        f"image: REG/csi-fleet-example@{DIGEST[:-1]}1\n"
    )


@pytest.mark.parametrize("version", ["1.2.3", "1.2.3rc1"])
def test_krew_takes_the_plugins_manifest(tmp_path, version):
    """The rules are those of krew: internal/index/validation/validate.go, pkg/index/types.go."""
    release.plugin(Release(version, tmp_path), release.ROOT, epoch=1_700_000_000)
    manifest = yaml.safe_load((tmp_path / "csi-fleet.krew.yaml").read_text())
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["kind"] == "Plugin"
    assert manifest["metadata"] == {"name": "csi-fleet"}
    spec = manifest["spec"]
    assert spec.keys() == {
        "version", "homepage", "shortDescription", "description", "caveats", "platforms",
    }  # fmt: skip
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9a-z.]+)?", spec["version"])
    assert spec["shortDescription"]
    assert "\n" not in spec["shortDescription"]
    (platform,) = spec["platforms"]
    assert platform.keys() == {"selector", "uri", "sha256", "files", "bin"}
    archive = tmp_path / platform["uri"].rpartition("/")[2]
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    (rule,) = platform["selector"]["matchExpressions"]
    assert rule["key"] in {"os", "arch"}
    assert all(one["from"] and one["to"] for one in platform["files"])
    # krew finds the program by its name, with `_` for each `-` of the plug-in's name.
    assert platform["bin"] == "kubectl-csi_fleet"
    with tarfile.open(archive) as packed:
        assert set(packed.getnames()) == {one["from"] for one in platform["files"]}
        assert packed.getmember(platform["bin"]).mode & 0o111


def test_chart_holds_files_and_is_reproducible(tmp_path):
    """Helm accepts no link in an archive."""
    for name in ("a", "b"):
        files = release.chart(release.ROOT, {"csi-fleet": DIGEST})
        release.pack(tmp_path / name, files, epoch=1_700_000_000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with tarfile.open(tmp_path / "a") as archive:
        members = archive.getmembers()
        values = yaml.safe_load(archive.extractfile("csi-fleet/values.yaml").read())
    assert all(one.isfile() for one in members)
    names = {one.name for one in members}
    assert "csi-fleet/Chart.yaml" in names
    assert "csi-fleet/objects/base/deployments.yaml" in names
    assert "csi-fleet/objects/components/monitoring/prometheusrules.yaml" in names
    assert values["image"]["digest"] == DIGEST


def test_checksums_are_sha256sums_and_signed(tmp_path):
    """The releaser's key signs them, and a changed file or list is detected."""
    key = tmp_path / "key.pem"
    options = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "genpkey", *options, "-out", key], check=True, capture_output=True)
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.whl").write_bytes(b"a")
    sums = release.checksums(out)
    assert sums.read_text() == f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n"
    release.sign(sums, key)
    verify = ["openssl", "dgst", "-sha256", "-verify", f"{sums}.pub", "-signature", f"{sums}.sig"]
    assert subprocess.run([*verify, sums], check=False, capture_output=True).returncode == 0
    sums.write_text("other")
    assert subprocess.run([*verify, sums], check=False, capture_output=True).returncode != 0
