"""Where the control plane's binaries come from, tested with file URLs and a fake build."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support import controlplane_binaries as binaries
from tests.support.go_build import SOURCES


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide no cache, no assets and no reachable download unless a test adds them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    nowhere = (tmp_path / "nowhere").as_uri()
    monkeypatch.setattr(binaries, "KUBERNETES_DOWNLOADS", nowhere)
    monkeypatch.setattr(binaries, "ETCD_DOWNLOADS", nowhere)
    monkeypatch.setattr(binaries, "build_with_go", _fake_build)


def _fake_build(name: str, output: Path, **_: object) -> Path:
    target = output / name
    target.write_text("built")
    return target


def _program(path: Path, content: str = "given") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)


def _publish_kubernetes(root: Path, *, tampered: str = "") -> None:
    system = binaries.architecture().replace("-", "/")
    folder = root / binaries.KUBERNETES_VERSION / "bin" / system
    for name in ("kube-apiserver", "kube-controller-manager"):
        _program(folder / name, "downloaded")
        digest = hashlib.sha256(b"downloaded").hexdigest()
        (folder / f"{name}.sha256").write_text("0" * 64 if name == tampered else digest)


def _publish_etcd(root: Path) -> None:
    stem = f"etcd-{binaries.ETCD_VERSION}-{binaries.architecture()}"
    folder = root / binaries.ETCD_VERSION
    folder.mkdir(parents=True)
    archive = folder / f"{stem}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo(f"{stem}/etcd")
        member.size = len(b"downloaded")
        tar.addfile(member, io.BytesIO(b"downloaded"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")


def _contents(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in binaries.BINARIES}


def test_assets_folder_with_all_binaries_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in binaries.BINARIES:
        _program(tmp_path / "assets" / name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert binaries.binaries_directory(print) == tmp_path / "assets"


def test_assets_folder_without_controller_manager_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual assets hold only etcd and the API server; mixing versions would mislead."""
    for name in ("etcd", "kube-apiserver"):
        _program(tmp_path / "assets" / name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    said: list[str] = []
    assert set(_contents(binaries.binaries_directory(said.append)).values()) == {"built"}
    assert said[0] == "KUBEBUILDER_ASSETS lacks kube-controller-manager: not used"


def test_downloads_are_preferred_to_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish_kubernetes(tmp_path / "k8s")
    _publish_etcd(tmp_path / "etcd")
    monkeypatch.setattr(binaries, "KUBERNETES_DOWNLOADS", (tmp_path / "k8s").as_uri())
    monkeypatch.setattr(binaries, "ETCD_DOWNLOADS", (tmp_path / "etcd").as_uri())
    assert set(_contents(binaries.binaries_directory(print)).values()) == {"downloaded"}


def test_download_with_a_wrong_sum_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong sum is reported, and the sources, which have checksums too, are built instead."""
    _publish_kubernetes(tmp_path / "k8s", tampered="kube-apiserver")
    _publish_etcd(tmp_path / "etcd")
    monkeypatch.setattr(binaries, "KUBERNETES_DOWNLOADS", (tmp_path / "k8s").as_uri())
    monkeypatch.setattr(binaries, "ETCD_DOWNLOADS", (tmp_path / "etcd").as_uri())
    said: list[str] = []
    found = _contents(binaries.binaries_directory(said.append))
    assert found["kube-apiserver"] == "built"
    assert any("has SHA-256" in line for line in said)


def test_second_call_takes_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = binaries.binaries_directory(print)

    def no_build(*_: object, **__: object) -> Path:
        raise AssertionError("built twice")

    monkeypatch.setattr(binaries, "build_with_go", no_build)
    assert binaries.binaries_directory(print) == first


def test_failed_build_keeps_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted first run continues where it stopped and leaves no half-written binary."""

    def breaks(name: str, output: Path, **_: object) -> Path:
        if name == "kube-apiserver":
            (output / name).write_text("half")
            raise binaries.GoBuildError("no space left")
        return _fake_build(name, output)

    monkeypatch.setattr(binaries, "build_with_go", breaks)
    with pytest.raises(binaries.GoBuildError, match="no space left"):
        binaries.binaries_directory(print)
    assert [entry.name for entry in binaries.cache_directory().iterdir()] == ["etcd"]
    assert list(binaries.cache_directory().parent.glob(".new-*")) == []


@pytest.mark.parametrize("version", binaries.ETCD_VERSIONS)
def test_every_version_has_its_pins(version: str) -> None:
    """The pins are of that version of Kubernetes and of its etcd."""
    own = SOURCES / f"{version}.mod"
    pins = (own if own.exists() else SOURCES / "go.mod").read_text()
    assert f"\nrequire k8s.io/kubernetes {version}\n" in pins
    assert f"\nrequire go.etcd.io/etcd/server/v3 {binaries.ETCD_VERSIONS[version]}\n" in pins


@pytest.mark.parametrize(("given", "etcd"), [("v1.36.1", "v3.6.8"), ("v1.37.2", "v3.7.0")])
def test_the_environment_selects_the_version(given: str, etcd: str) -> None:
    assert _versions(given).stdout.split() == [given, etcd]


def test_an_unknown_version_is_refused() -> None:
    assert "KUBERNETES=1.38: not one of v1.36.1, v1.37.2" in _versions("1.38").stderr


def _versions(given: str) -> subprocess.CompletedProcess[str]:
    code = (
        "from tests.support import controlplane_binaries as found; "
        "print(found.KUBERNETES_VERSION, found.ETCD_VERSION)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "KUBERNETES": given},
    )
