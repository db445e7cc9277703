"""Installs what `make release` builds from its files alone, outside the checkout, and runs it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.support import apt, helm
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import ROOT, Fleet
from tests.support.kustomize import containers, render
from tests.support.processes import free_port, start_process
from tests.support.released import VERSION, committed, make_release, run
from tests.support.waiting import wait_until

PYTHON = os.environ.get("RELEASE_PYTHON", sys.executable)  # runs the installed wheel
DIGEST = f"sha256:{'0123456789abcdef' * 4}"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return committed(tmp_path_factory.mktemp("source") / "checkout")


@pytest.fixture(scope="module")
def make(source):
    """Return a function that runs `make release` in the checkout with the digest of an image."""
    return partial(make_release, source, digest=DIGEST)


@pytest.fixture(scope="module")
def release(make, tmp_path_factory):
    """The folder of the release that a reader downloads."""
    return make(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def unpacked(release, tmp_path_factory):
    """The manifests and pages of the release."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(release / f"csi-fleet-{VERSION}-manifests.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"csi-fleet-{VERSION}"


@pytest.fixture(scope="module")
def installed(release, tmp_path_factory):
    """A folder outside the checkout with the wheel in an environment of its own."""
    folder = tmp_path_factory.mktemp("installed")
    run(PYTHON, "-m", "venv", folder / ".venv")
    pip = folder / ".venv/bin/pip"
    # Compiling all packages to bytecode would take longer than everything else here.
    options = ("-q", "--no-compile", "--no-deps", "--require-hashes")
    run(pip, "install", *options, "-r", "requirements.txt", cwd=release)
    run(pip, "check")
    return folder


def test_signature_and_checksums_cover_every_file(release):
    """The commands are those of docs/how-to/install-from-a-release.md."""
    run("openssl", "dgst", "-sha256", "-verify", "SHA256SUMS.pub", "-signature", "SHA256SUMS.sig",
        "SHA256SUMS", cwd=release)  # fmt: skip
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=release)
    listed = {line.split("  ")[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    found = {one.name for one in release.iterdir()}
    assert found - listed == {"SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.pub"}
    assert listed <= found


def test_the_site_has_every_page_and_a_search(release, tmp_path):
    with tarfile.open(release / f"csi-fleet-{VERSION}-docs.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    site = tmp_path / "csi-fleet-docs"
    pages = {str(one.relative_to(ROOT / "docs").with_suffix(".html")) for one in
             (ROOT / "docs").rglob("*.md") if one.name != "README.md"}  # fmt: skip
    assert {one for one in pages if not (site / one).is_file()} == set()
    texts = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert any("csi-fleet adopt" in one["text"] for one in texts)
    # The site needs no network: it loads nothing from another host.
    text = (site / "index.html").read_text()
    assert re.findall(r'(?:src|<link[^>]*href)="https?://[^"]*', text) == []


def test_the_same_commit_gives_the_same_bytes(make, release, tmp_path):
    again = make(tmp_path / "again")
    assert (again / "SHA256SUMS").read_text() == (release / "SHA256SUMS").read_text()


def test_provenance_and_bill_of_materials_describe_the_files(release, source):
    statement = json.loads((release / "provenance.intoto.json").read_text())
    digests = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert digests.pop("csi-fleet") == DIGEST.removeprefix("sha256:")
    for name, digest in digests.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
    assert any(name.endswith(".whl") for name in digests)
    commit = run("git", "rev-parse", "HEAD", cwd=source).strip()
    built_from = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"gitCommit": commit} in [one["digest"] for one in built_from]
    bill = json.loads((release / "sbom.cdx.json").read_text())
    assert {"celery", "kubernetes", "grpcio"} <= {one["name"] for one in bill["components"]}


def test_wheel_holds_the_three_packages_and_nothing_else(release):
    names = zipfile.ZipFile(next(release.glob("*.whl"))).namelist()
    tops = {one.split("/")[0] for one in names}
    assert {one for one in tops if not one.endswith(".dist-info")} == {
        "csi_client", "watcher", "workers",
    }  # fmt: skip
    assert not [one for one in names if "test" in Path(one).name or "/tests/" in one]
    assert "workers/queue/lua/take.lua" in names
    assert {f"{one}/py.typed" for one in ("csi_client", "watcher", "workers")} <= set(names)


def test_the_installed_wheel_provisions_and_deletes(installed, kubeconfig, scene, tmp_path):
    """`csi-fleet run` starts its Redis, watcher, worker and beat in an empty environment."""
    with DirectoryDriver() as driver:
        with Fleet(tmp_path / "fleet", kubeconfig, [driver], code=installed) as fleet:
            assert str(installed) in fleet.command[0]
            scene.claim("data", scene.storage_class(driver.name))
            scene.wait_bound("data")
            program = installed / ".venv/bin/csi-fleet"
            common = (f"--kubeconfig={kubeconfig}", f"--redis-url={fleet.redis_url}")
            told = run(program, "explain", "pvc", f"{scene.namespace}/data", *common, cwd=tmp_path)
            assert "bound" in told
            scene.delete("data")
            scene.wait_gone()
            wait_until(lambda: not driver.volumes(), 30, "the volume is deleted")
        assert fleet.process.popen.returncode == 0


def test_installed_commands_show_their_help(installed):
    program = installed / ".venv/bin/csi-fleet"
    assert VERSION in run(program, "--version")
    for command in ("run", "watcher", "worker", "beat", "flower"):
        assert "--redis-url" in run(program, command, "--help")


def test_no_development_package_comes_along(installed):
    listed = run(installed / ".venv/bin/pip", "list", "--format=freeze").lower()
    for name in ("pytest", "hypothesis", "mypy", "ruff", "grpcio-tools"):
        assert f"{name}==" not in listed


def test_kubectl_plugin_is_what_krew_expects(release, tmp_path):
    manifest = yaml.safe_load((release / "csi-fleet.krew.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = release / platform["uri"].rpartition("/")[2]
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert {one["from"] for one in platform["files"]} == {one.name for one in tmp_path.iterdir()}
    assert "csi-fleet explain" in run(tmp_path / platform["bin"], "--help")


@pytest.mark.parametrize("overlay", ["prod-central", "prod-node", "prod-sidecar"])
def test_overlay_names_images_by_digest(unpacked, overlay):
    path = unpacked / "k8s/overlays" / overlay
    objects = render(path)
    images = [one["image"] for item in objects for one in containers(item)]
    ours = [one for one in images if one.startswith("csi-fleet")]
    assert ours
    assert set(ours) == {f"csi-fleet@{DIGEST}"}
    if shutil.which("kubectl"):
        text = run("kubectl", "kustomize", path)
        assert text.count(f"image: csi-fleet@{DIGEST}\n") == len(ours)
        assert "image: csi-fleet\n" not in text


@pytest.mark.parametrize("page", ["INSTALL.md", "RELEASE_NOTES.md"])
def test_links_of_a_page_lead_into_the_unpacked_manifests(release, unpacked, page):
    """A reader of the page has no checkout."""
    links = re.findall(r"\]\(([^)#]+)", (release / page).read_text())
    assert links
    assert [one for one in links if not (unpacked.parent / one).is_file()] == []
    assert (unpacked / "compose.yaml").is_file()
    assert (unpacked / "k8s/make-secrets.sh").is_file()


OVER_TCP = {
    "name": "array.csi.example.org",
    "endpoint": "array.storage.svc:10443",
    "tls": {"ca": "/t/ca.crt", "certificate": "/t/tls.crt", "key": "/t/tls.key"},
    "limits": {"create": {"concurrency": 10, "rate": 5}, "attach": {"per": "node"}},
    "timeouts": {"create": "2m"},
    "flags": {"extra-create-metadata": True, "default-fstype": "xfs"},
    "controllers": {"attacher": {"flags": {"timeout": "30s"}}},
}
IN_POD = {"name": "csi.example.org", "namespace": "storage", "serviceAccount": "driver"}
SIDECAR = {"mode": "sidecar", "drivers": [IN_POD]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
EXISTING = {"secrets": {"generate": False}, "tls": {"source": "existing"}}
VALUES = {
    "defaults": {},
    "central": {"drivers": [OVER_TCP]},
    "sidecar": SIDECAR,
    "two drivers of one namespace": {
        "mode": "sidecar",
        "drivers": [IN_POD, IN_POD | {"name": "other.example.org", "secret": "second"}],
    },
    "all controllers": {
        "controllers": [
            "provisioner",
            "attacher",
            "resizer",
            "snapshotter",
            "snapshot-controller",
            "data-source-validator",
            "health",
        ]
    },
    "no feature": {"features": []},
    "one feature": {"features": ["secrets"]},
    "sentinel": {"redis": {"mode": "sentinel"}},
    "external Redis": {"redis": {"mode": "external", "url": "rediss://redis:6379/0"}},
    "sentinels of ours": {"redis": {"mode": "external", "url": "sentinel://a:26379,b/master"}},
    "secrets that exist": EXISTING,
    "cert-manager": {"tls": {"source": "cert-manager", "issuerRef": {"name": "ca"}}},
    "monitoring": {"monitoring": {"enabled": True}},
    "autoscaling": {"autoscaling": {"enabled": True}},
    "no policies": {"networkPolicies": {"enabled": False}, "admissionPolicy": {"enabled": False}},
    "no Flower": {"flower": {"enabled": False}},
    "the page": {"flower": {"fleetPage": True, "serviceAccountAnnotations": {"role": "reader"}}},
    "placement": {"worker": {"affinity": AFFINITY, "topologySpreadConstraints": SPREAD}},
    "priority": {"watcher": {"priorityClassName": "high", "replicas": 3, "podLabels": {"a": "b"}}},
    "labels": {"commonLabels": {"team": "storage"}, **SIDECAR},
    "registry": {
        "image": {"repository": "registry.example.org/csi-fleet", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
    },
}


@pytest.fixture(scope="module")
def chart(library, release):
    return library.Chart.load(release / f"csi-fleet-{VERSION}.tgz")


def test_helm_finds_nothing_to_complain_of_in_the_packaged_chart(library, release):
    archive = release / f"csi-fleet-{VERSION}.tgz"
    report = library.lint(archive, strict=True, namespace="csi-fleet")
    assert report["errors"] == []
    # This includes "icon is recommended", which is only informational.
    assert report["messages"] == []


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_packaged_chart_installs_by_digest_whatever_the_values(chart, values):
    objects = helm.objects(chart, values)
    ours = {
        one["image"] for item in objects for one in containers(item) if "csi-fleet" in one["image"]
    }
    repository = values.get("image", {}).get("repository", "csi-fleet")
    assert ours == {f"{repository}:{VERSION}@{DIGEST}"}
    for label, value in values.get("commonLabels", {}).items():
        pods = [one["spec"]["template"] for one in objects if containers(one)]
        assert {one["metadata"]["labels"].get(label) for one in [*objects, *pods]} == {value}


@pytest.fixture
def registry(tmp_path):
    """An empty registry on this machine, and skopeo to push to it, both from Debian packages."""
    programs = ("docker-registry", "skopeo")
    if missing := [one for one in programs if shutil.which(one) is None]:
        try:
            apt.install(*missing)
        except apt.AptError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
    address = f"127.0.0.1:{free_port()}"
    config = tmp_path / "registry.yaml"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}
    config.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": address}}))
    process = start_process(
        "registry", ["docker-registry", "serve", str(config)], log=tmp_path / "registry.log"
    )
    yield address
    process.stop()


def test_helm_pulls_the_chart_that_skopeo_pushed(library, release, registry, tmp_path):
    """The commands are those of docs/upgrade.md, and the digest is that of the archive."""
    source = f"oci-archive:{release}/csi-fleet-{VERSION}-chart.tar:{VERSION}"
    manifest = run("skopeo", "inspect", "--raw", source)
    address = f"{registry}/charts/csi-fleet"
    copy = ("skopeo", "copy", "--preserve-digests", "--dest-tls-verify=false")
    wait_until(lambda: socket_is_open(registry), 30, "the registry listens")
    run(*copy, source, f"docker://{address}:{VERSION}")
    with library.RegistryClient(plain_http=True) as client:
        pushed = client.resolve(f"oci://{address}:{VERSION}")
        assert pushed["digest"] == f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}"
        client.pull(f"oci://{address}", version=VERSION, destination=tmp_path, plain_http=True)
    name = f"csi-fleet-{VERSION}.tgz"
    assert (tmp_path / name).read_bytes() == (release / name).read_bytes()


def socket_is_open(address):
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
