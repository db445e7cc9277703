"""Makes the files that people install, in one folder: `make release VERSION=0.1.0`.

All files are made from the last commit, and the same commit gives the same bytes, except for the
signature. Nothing is published, and no tag is set unless `--tag` asks for it.
docs/how-to/install-from-a-release.md describes each file.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from tests.support.chart_archive import chart_archive
from tests.support.supply import product_requirements, write_sbom
from workers.entry import SIDECARS

ROOT: Final = Path(__file__).resolve().parents[2]
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# This reserved name shows that the files are not published anywhere yet.
NOWHERE: Final = "https://example.invalid/csi-fleet"
BASE: Final = "python:3.11-slim-bookworm"
# The Dockerfile's stages, by the name of the image that each becomes.
STAGES: Final = {
    "csi-fleet": "product",
    "csi-fleet-example": "example",
    **{f"csi-fleet-{one}": one for one in sorted(SIDECARS)},
}
# Files of the repository that other programs import unchanged, by their name in the release.
PLAIN: Final = {
    "csi-fleet.grafana.json": "docs/dashboards/csi-fleet.json",
    "csi-fleet.prometheus-rules.yaml": "docs/alerts/csi-fleet.yaml",
    "csi-fleet.slo.yaml": "docs/alerts/slo.yaml",
    "csi-fleet.k9s-plugins.yaml": "docs/tools/k9s-plugins.yaml",
    "csi-fleet.holmesgpt.yaml": "docs/tools/holmesgpt-toolset.yaml",
}
# Files that a reader of the manifests and of the pages needs, unchanged.
UNPACKED: Final = (
    *("k8s/base", "k8s/components", "k8s/example", "k8s/move", "k8s/make-secrets.sh"),
    *("k8s/overlays/prod-central", "k8s/overlays/prod-node", "k8s/overlays/prod-sidecar"),
    *("compose", "compose.yaml", "docs"),
    *("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "LICENSE"),
)

SUMS: Final = "SHA256SUMS"
Files = Iterable[tuple[str, bytes, int]]  # name, content, mode


class ReleaseError(RuntimeError):
    """An error in one line: problem, cause, remedy."""


@dataclass(frozen=True, slots=True)
class Release:
    """The caller's options."""

    version: str
    out: Path
    sign_key: Path | None = None
    url: str = NOWHERE
    base: str = BASE
    digest: str = ""  # the digest of an image that was built elsewhere
    tag: bool = False


def chart_version(version: str) -> str:
    """Return the version in Helm's spelling: `1.2.3rc1` -> `1.2.3-rc.1`."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def versions(source: Path) -> dict[str, str]:
    """Return the version that each source file contains, by the file and the place in it."""
    project = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]
    chart = yaml.safe_load((source / "k8s/chart/Chart.yaml").read_text("utf-8"))
    found = {
        "pyproject.toml": project["version"],
        "k8s/chart/Chart.yaml version": chart["version"],
        "k8s/chart/Chart.yaml appVersion": chart["appVersion"],
    }
    for path in sorted((source / "k8s").rglob("*.yaml")):
        text = path.read_text("utf-8")
        for one in re.findall(r"(?:newTag: |csi-fleet(?:-example)?:)(\d\S*)", text):
            found[str(path.relative_to(source))] = one
    return found


def notes(changelog: str, version: str) -> str:
    """Return the changelog's section of the version.

    Raises:
        ReleaseError: there is none, or it is empty.
    """
    for part in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        head, _, text = part.partition("\n")
        if head.split()[0].strip("[]") == version and text.strip():
            return f"# csi-fleet {version}\n\n{text.strip()}\n"
    raise ReleaseError(
        f"CHANGELOG.md has no section {version}. Each release has one: rename the section "
        f"Unreleased to `## {version} (date)` and begin an empty Unreleased above it"
    )


def check(asked: Release) -> None:
    """Check everything that can be checked before the first file is made.

    Raises:
        ReleaseError: the first problem.
    """
    if not _VERSION.fullmatch(asked.version):
        raise ReleaseError(
            f"{asked.version!r} is no version. It has to look like 1.2.3 or 1.2.3rc1: "
            "make release VERSION=1.2.3"
        )
    wanted = {asked.version, chart_version(asked.version)}
    if wrong := {where: one for where, one in versions(ROOT).items() if one not in wanted}:
        named = ", ".join(f"{where} ({one})" for where, one in wrong.items())
        raise ReleaseError(f"not every file names version {asked.version}. Change {named}")
    notes((ROOT / "CHANGELOG.md").read_text("utf-8"), asked.version)
    if changed := _run("git", "status", "--porcelain", cwd=ROOT).split("\n")[0]:
        raise ReleaseError(
            f"the checkout has changes ({changed.strip()}). The release is made from the last "
            "commit and would not have them: commit or remove them"
        )
    if asked.digest and not _DIGEST.fullmatch(asked.digest):
        raise ReleaseError(f"{asked.digest!r} is no digest. Give sha256: and 64 hex digits")
    if not asked.digest and not shutil.which("buildah"):
        raise ReleaseError(
            "no image can be built here. There is no buildah: install it (Debian: apt install "
            "buildah), or name the image that you pushed: DIGEST=sha256:..."
        )
    if ROOT.is_relative_to(out := asked.out.resolve()):
        raise ReleaseError(
            f"{out} has the checkout in it, and the folder of a release is emptied first. Name "
            "another one: OUT=folder"
        )
    if not _may_be_emptied(out):
        raise ReleaseError(
            f"{out} is not empty and is no earlier release (one has only files, all named in its "
            "SHA256SUMS). Nothing there is deleted: empty it yourself, or name another one: "
            "OUT=folder"
        )
    if asked.sign_key and not asked.sign_key.is_file():
        raise ReleaseError(f"no key {asked.sign_key}. Make one as docs/upgrade.md says")


def _may_be_emptied(folder: Path) -> bool:
    """Return True if the folder is absent or empty, or contains only an earlier release."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    found = {one.name: one for one in folder.iterdir()}
    if not found:
        return True
    sums = found.get(SUMS)
    if sums is None or not all(one.is_file() for one in found.values()):
        return False
    listed = {line.partition("  ")[2] for line in sums.read_text("utf-8").splitlines()}
    ours = {SUMS, f"{SUMS}.sig", f"{SUMS}.pub"}
    return "provenance.intoto.json" in listed and found.keys() <= listed | ours


def build(asked: Release) -> None:
    """Makes everything of one release and puts it in place of `asked.out` by one rename.

    A run that fails or is stopped leaves `asked.out` as it was.

    Raises:
        ReleaseError: from `check`, or a program failed.
    """
    check(asked)
    place = asked.out
    place.parent.mkdir(parents=True, exist_ok=True)
    # Beside it: a rename stays within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
        made = Path(beside, "made")
        made.mkdir()
        make(replace(asked, out=made))
        if place.exists():
            place.rename(Path(beside, "before"))  # `check` has looked into it
        made.rename(place)
    if asked.tag:
        _run("git", "tag", "--annotate", f"v{asked.version}", "-m", f"csi-fleet {asked.version}",
             cwd=ROOT)  # fmt: skip
    for one in sorted(place.iterdir()):
        say(f"{one.name} ({one.stat().st_size // 1024} KiB)")
    if not asked.sign_key:
        say("not signed: SIGN_KEY=key.pem signs SHA256SUMS")


def make(asked: Release) -> None:
    """Writes every file of the release into `asked.out`, which is empty.

    Raises:
        ReleaseError: a program failed.
    """
    epoch = int(_run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    out, version = asked.out, asked.version
    with tempfile.TemporaryDirectory(prefix="csi-fleet-release-") as scratch:
        source = Path(scratch, "source")
        command = ["git", "archive", "HEAD"]
        archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(source, filter="tar")
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist",
             "-d", str(out), cwd=source, SOURCE_DATE_EPOCH=str(epoch))  # fmt: skip
        digests = images(asked, source, Path(scratch, "images"), epoch)
        helm = out / f"csi-fleet-{chart_version(version)}.tgz"
        pack(helm, chart(source, digests), epoch)
        (out / f"csi-fleet-{version}-chart.tar").write_bytes(chart_archive(helm, epoch))
        pack(
            out / f"csi-fleet-{version}-manifests.tar.gz", manifests(asked, source, digests), epoch
        )
        pack(out / f"csi-fleet-{version}-docs.tar.gz", site(source, Path(scratch), epoch), epoch)
        plugin(asked, source, epoch)
        requirements(out, Path(scratch))
        for name, path in PLAIN.items():
            shutil.copyfile(source / path, out / name)
    text = notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    (out / "RELEASE_NOTES.md").write_text(relinked(text, Path(), version))
    page = ROOT / "docs/how-to/install-from-a-release.md"
    text = relinked(page.read_text("utf-8"), Path("docs/how-to"), version)
    (out / "INSTALL.md").write_text(text)
    write_sbom(out / "sbom.cdx.json")
    provenance(asked, digests)
    sums = checksums(out)
    if asked.sign_key:
        sign(sums, asked.sign_key)


def images(asked: Release, source: Path, layout: Path, epoch: int) -> dict[str, str]:
    """Build the images into one OCI archive, in which they share their layers.

    Returns:
        The digest of each image by its name.
    """
    if asked.digest:
        return {"csi-fleet": asked.digest}
    platforms = ["linux/amd64", "linux/arm64"]
    emulated = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists()
    if os.uname().machine != "x86_64" or not emulated:
        platforms = ["linux/amd64" if os.uname().machine == "x86_64" else "linux/arm64"]
        say(f"images for {platforms[0]} alone: this machine cannot run programs of another")
    for name, stage in STAGES.items():
        reference = f"localhost/{name}:{asked.version}"
        subprocess.run(["buildah", "rmi", "--force", reference], check=False, capture_output=True)
        _run("buildah", "build", "--quiet", "--layers", "--network=host", f"--timestamp={epoch}",
             f"--platform={','.join(platforms)}", f"--manifest={reference}", f"--target={stage}",
             f"--build-arg=BASE={asked.base}", f"--build-arg=SOURCE_DATE_EPOCH={epoch}",
             str(source))  # fmt: skip
        _run("buildah", "manifest", "push", "--all", reference,
             f"oci:{layout}:{name}:{asked.version}")  # fmt: skip
        say(f"image {name}")
    with tarfile.open(asked.out / f"csi-fleet-{asked.version}-images.tar", "w") as tar:
        for path in sorted(one for one in layout.rglob("*") if one.is_file()):
            _add(tar, str(path.relative_to(layout)), path.read_bytes(), 0o644, epoch)
    entries = json.loads((layout / "index.json").read_text())["manifests"]
    mark = "org.opencontainers.image.ref.name"
    return {one["annotations"][mark].partition(":")[0]: one["digest"] for one in entries}


def site(source: Path, scratch: Path, epoch: int) -> Files:
    """Return the files of the documentation's site, below one folder."""
    out = scratch / "csi-fleet-docs"
    _run(sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file",
         str(source / ".ci/mkdocs.yml"), "--site-dir", str(out), NO_MKDOCS_2_WARNING="1",
         SOURCE_DATE_EPOCH=str(epoch))  # fmt: skip
    for name, path in _files(out):
        yield f"{out.name}/{name}", path.read_bytes(), 0o644


def chart(source: Path, digests: dict[str, str]) -> Files:
    """Return the chart's files, with objects in place of links, and with the image's digest."""
    for name, path in _files(source / "k8s/chart"):
        content = path.read_bytes()
        if name == "values.yaml":
            text = content.decode().replace('digest: ""', f"digest: {digests['csi-fleet']}", 1)
            content = text.encode()
        yield f"csi-fleet/{name}", content, 0o644


def manifests(asked: Release, source: Path, digests: dict[str, str]) -> Files:
    """Return the manifests with images by digest, compose.yaml, and the pages."""
    for one in UNPACKED:
        place = source / one
        found = _files(place) if place.is_dir() else [("", place)]
        for name, path in found:
            content = path.read_bytes()
            if one.startswith("k8s/") and path.suffix == ".yaml":
                content = by_digest(content.decode(), asked.version, digests).encode()
            inside = f"csi-fleet-{asked.version}/{one}{f'/{name}' if name else ''}"
            yield inside, content, 0o755 if os.access(path, os.X_OK) else 0o644


def relinked(text: str, folder: Path, version: str) -> str:
    """Return the page of `folder`, with links that lead into the unpacked manifests next to it."""

    def link(found: re.Match[str]) -> str:
        return f"](csi-fleet-{version}/{os.path.normpath(folder / found[1])}"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)", link, text)


def by_digest(text: str, version: str, digests: dict[str, str]) -> str:
    """Return the manifest with digests in place of the tags of csi-fleet's images."""
    text = text.replace(f"newTag: {version}", f"digest: {digests['csi-fleet']}")
    for name, digest in digests.items():
        text = re.sub(rf"(image: (?:\S+/)?{name}):{re.escape(version)}\b", rf"\1@{digest}", text)
    return text


def plugin(asked: Release, source: Path, epoch: int) -> None:
    """Write kubectl's plug-in as an archive, and the manifest with which krew installs it."""
    archive = asked.out / f"kubectl-csi_fleet-{asked.version}.tar.gz"
    files = [
        ("kubectl-csi_fleet", (source / "workers/cli/kubectl.py").read_bytes(), 0o755),
        ("LICENSE", (source / "LICENSE").read_bytes(), 0o644),
    ]
    pack(archive, files, epoch)
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "csi-fleet"},
        "spec": {
            "version": f"v{chart_version(asked.version)}",
            "homepage": asked.url,
            "shortDescription": "Explain stuck volumes and operate csi-fleet",
            "description": "Says why a claim, volume, attachment or snapshot is stuck, and "
            "operates csi-fleet.\n",
            "caveats": "Needs Python 3.11 or newer on the PATH.\n",
            "platforms": [
                {
                    "selector": {
                        "matchExpressions": [
                            {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
                        ]
                    },
                    "uri": f"{asked.url}/{archive.name}",
                    "sha256": _sha256(archive),
                    "files": [{"from": name, "to": "."} for name, _, _ in files],
                    "bin": "kubectl-csi_fleet",
                }
            ],
        },
    }
    text = yaml.safe_dump(manifest, sort_keys=False)
    (asked.out / "csi-fleet.krew.yaml").write_text(text)


def requirements(out: Path, scratch: Path) -> None:
    """Write one file that pip installs with hashes: the locked packages, and the wheel next to
    it."""
    locked = product_requirements(scratch, "--universal", "--extra", "embedded").read_text()
    (wheel,) = out.glob("*.whl")
    ours = f"./{wheel.name} --hash=sha256:{_sha256(wheel)}\n"
    (out / "requirements.txt").write_text(locked + ours)


def provenance(asked: Release, digests: dict[str, str]) -> None:
    """Write an in-toto statement (SLSA provenance): the commit, lock and base image, and the
    files made from them."""
    commit = _run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    lock = {"uri": "requirements.lock", "digest": {"sha256": _sha256(ROOT / "requirements.lock")}}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": one.name, "digest": {"sha256": _sha256(one)}}
            for one in sorted(asked.out.iterdir())
        ]
        + [
            {"name": name, "digest": {"sha256": digest.partition(":")[2]}}
            for name, digest in sorted(digests.items())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{asked.url}#make-release",
                "externalParameters": {"version": asked.version, "base": asked.base},
                "resolvedDependencies": [
                    {"uri": f"git+{asked.url}", "digest": {"gitCommit": commit}},
                    lock,
                ],
            },
            "runDetails": {"builder": {"id": f"{asked.url}#make-release"}},
        },
    }
    text = json.dumps(statement, indent=2) + "\n"
    (asked.out / "provenance.intoto.json").write_text(text)


def checksums(folder: Path) -> Path:
    """Write SHA256SUMS for all files in the folder, as `sha256sum --check` reads them."""
    path = folder / SUMS
    files = sorted(one for one in folder.iterdir() if one.is_file() and one != path)
    path.write_text("".join(f"{_sha256(one)}  {one.name}\n" for one in files))
    return path


def sign(sums: Path, key: Path) -> None:
    """Write SHA256SUMS.sig, and the public half of the key."""
    signature = f"{sums}.sig"
    _run("openssl", "dgst", "-sha256", "-sign", str(key), "-out", signature, str(sums))
    _run("openssl", "pkey", "-in", str(key), "-pubout", "-out", f"{sums}.pub")


def pack(path: Path, files: Files, epoch: int) -> None:
    """Write a tar.gz that has the same bytes for the same files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, mode in sorted(files):
            _add(archive, name, content, mode, epoch)
    with path.open("wb") as out, gzip.GzipFile("", "wb", fileobj=out, mtime=epoch) as packed:
        packed.write(data.getvalue())


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), epoch, mode
    archive.addfile(entry, io.BytesIO(content))


def _files(folder: Path) -> list[tuple[str, Path]]:
    """Return every file by its path below `folder`, following links to folders."""
    return [
        (str((Path(place) / one).relative_to(folder)), Path(place) / one)
        for place, _, names in os.walk(folder, followlinks=True)
        for one in names
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def say(line: str) -> None:
    """Print the progress."""
    sys.stderr.write(f"[release] {line}\n")


def _run(*command: str, cwd: Path | None = None, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: {done.stderr[-1500:]}")
    return done.stdout


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("version")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--sign-key", type=Path)
    parser.add_argument("--url", default=NOWHERE)
    parser.add_argument("--base", default=BASE)
    parser.add_argument("--digest", default="")
    parser.add_argument("--tag", action="store_true")
    given = vars(parser.parse_args())
    try:
        build(Release(**given | {"out": given["out"].resolve()}))
    except ReleaseError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
