"""`make release`: everything that a release consists of, in dist/, from one commit and its tag.

    python -m tests.support.release dist [v1.2.3]

The version is the tag's; nothing in the repository has to be edited for it. Wheel, chart, notes
from CHANGELOG.md, the bill of materials where `make sbom` is there, the image where Docker is,
checksums of all files. The same commit gives the same bytes (but for the image).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_TAG: Final = re.compile(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")
PLATFORMS: Final = "linux/amd64,linux/arm64"


class ReleaseError(RuntimeError):
    """One line: what is missing."""


def version_of(tag: str) -> str:
    """`v1.2.3` -> `1.2.3`.

    Raises:
        ReleaseError: it is no version.
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ReleaseError(f"{tag!r} is no release tag such as v1.2.3 or v1.2.3rc1")
    return match[1]


def chart_version(version: str) -> str:
    """As Helm spells it: `1.2.3rc1` -> `1.2.3-rc.1`."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def current_tag() -> str:
    """The tag of this very commit.

    Raises:
        ReleaseError: it has none.
    """
    found = _run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split()
    tags = [one for one in found if _TAG.fullmatch(one)]
    if not tags:
        raise ReleaseError("this commit has no tag v1.2.3: git tag it, or name one")
    return tags[-1]


def notes(changelog: str, version: str) -> str:
    """The changelog's section of the version, or what is unreleased.

    Raises:
        ReleaseError: neither is there, or it is empty.
    """
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    sections = {part.partition("\n")[0].split()[0].strip("[]"): part for part in parts}
    found = sections.get(version) or sections.get("Unreleased") or ""
    text = found.partition("\n")[2].strip()
    if not text:
        raise ReleaseError(f"CHANGELOG.md says nothing of {version}")
    return f"# csi-fleet {version}\n\n{text}\n"


def stamp(source: Path, version: str) -> None:
    """Write the version where tools read it, in a copy of the source."""
    for name, pattern in (
        ("pyproject.toml", r'(?m)^version = ".*"$'),
        ("k8s/chart/Chart.yaml", r"(?m)^(version|appVersion): .*$"),
    ):
        path = source / name
        text = path.read_text()
        if name.endswith(".toml"):
            new, count = re.subn(pattern, f'version = "{version}"', text, count=1)
        else:
            new, count = re.subn(pattern, rf"\1: {chart_version(version)}", text)
            new = new.replace(f"appVersion: {chart_version(version)}", f"appVersion: {version}")
        if not count:
            raise ReleaseError(f"{name} names no version")
        path.write_text(new)


def chart(source: Path, target: Path, version: str, *, epoch: int) -> Path:
    """The chart's archive as Helm wants it, with the objects in the place of the links to them."""
    path = target / f"csi-fleet-{chart_version(version)}.tgz"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in sorted(_files(source / "k8s" / "chart")):
            entry = tarfile.TarInfo(f"csi-fleet/{name}")
            content = file.read_bytes()
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            archive.addfile(entry, io.BytesIO(content))
    with path.open("wb") as out, gzip.GzipFile("", "wb", fileobj=out, mtime=epoch) as packed:
        packed.write(data.getvalue())
    return path


def _files(folder: Path) -> list[tuple[str, Path]]:
    """Every file by its path below `folder`, through links to folders."""
    found = []
    for place, _, names in os.walk(folder, followlinks=True):
        found += [
            (str((Path(place) / one).relative_to(folder)), Path(place) / one) for one in names
        ]
    return found


def checksums(folder: Path) -> Path:
    """SHA256SUMS of all files there, as `sha256sum --check` reads them."""
    path = folder / "SHA256SUMS"
    files = sorted(one for one in folder.iterdir() if one.is_file() and one != path)
    lines = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files]
    path.write_text("".join(lines))
    return path


def build(target: Path, tag: str) -> None:
    """Everything of one release into `target`, which is emptied first.

    Raises:
        ReleaseError: the last one, that of the image, leaves all else built.
    """
    version = version_of(tag)
    text = notes((ROOT / "CHANGELOG.md").read_text(), version)
    epoch = int(_run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="csi-fleet-release-") as scratch:
        source = Path(scratch)
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(source, filter="tar")
        stamp(source, version)
        wheel = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
        _run(sys.executable, *wheel, cwd=source, SOURCE_DATE_EPOCH=str(epoch))
        chart(source, target, version, epoch=epoch)
        lacking = image(source, target, version)
    (target / "RELEASE_NOTES.md").write_text(text)
    bill_of_materials(target)
    checksums(target)
    for one in sorted(target.iterdir()):
        say(f"{one.name} ({one.stat().st_size // 1024} KiB)")
    if lacking:
        raise ReleaseError(f"all but the image is built: {lacking}")


def image(source: Path, target: Path, version: str) -> str:
    """One archive for both machines where the builder can, else for this one alone.

    Returns:
        Why there is none; empty when there is.
    """
    if not shutil.which("docker"):
        return "there is no docker here"
    name, out = f"csi-fleet:{version}", f"{target}/csi-fleet-{version}-image.tar"
    buildx = ["docker", "buildx", "build", "--platform", PLATFORMS, "--output"]
    if subprocess.run([*buildx, f"type=oci,dest={out}", str(source)], check=False).returncode == 0:
        return ""
    say(f"the builder cannot build for {PLATFORMS}: the image is for this machine alone")
    try:
        _run("docker", "build", "--tag", name, str(source), cwd=source)
        _run("docker", "save", "--output", out, name, cwd=source)
    except ReleaseError as error:
        return str(error).strip().splitlines()[-1]
    return ""


def bill_of_materials(target: Path) -> None:
    """What the release contains, where the repository knows how to say it."""
    if not re.search(r"^sbom:", (ROOT / "Makefile").read_text(), re.MULTILINE):
        say("no bill of materials: there is no `make sbom`")
        return
    _run("make", "sbom", cwd=ROOT)
    for one in (ROOT / "dist").glob("*.cdx.json"):
        if one.parent != target:
            shutil.copy(one, target)


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(f"[release] {line}\n")


def _run(*command: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: {done.stderr[-1000:]}")
    return done.stdout


def main() -> int:
    """Command line."""
    try:
        build(Path(sys.argv[1]).resolve(), sys.argv[2] if sys.argv[2:] else current_tag())
    except ReleaseError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
