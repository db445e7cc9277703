"""Makes container images without an engine or a registry, as archives that `ctr images import`
reads.

Layers are plain tars. The base is the Debian of `tests.support.docker`; csi-fleet is added as in
the Dockerfile, with the packages of requirements.lock.
"""

from __future__ import annotations

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import apt, docker
from tests.support.controlplane_binaries import cache_root
from tests.support.fleet import ROOT
from tests.support.node.debian import programs
from workers.entry import SIDECARS

PRODUCT = "opt/csi-fleet"
PACKAGES = ("csi_client", "workers", "watcher")
PAUSE_IMAGE = "localhost/pause:1"
BUSYBOX_IMAGE = "localhost/busybox:1"
FLEET_IMAGE = "csi-fleet:0.1.0"
EXAMPLE_IMAGE = "csi-fleet-example:0.1.0"
_ENTRY = """\
#!/usr/bin/python3
import sys
from workers.entry import main
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Image:
    """One image of the archive; `config` contains ENTRYPOINT and other settings of the
    Dockerfile."""

    name: str
    layers: Sequence[Path]
    config: dict[str, object] = field(default_factory=dict)


def write_archive(target: Path, images: Sequence[Image]) -> None:
    """Write all images in docker-archive's layout; a layer that several images share is written
    once."""
    sums = {one: _sha256(one) for one in dict.fromkeys(p for i in images for p in i.layers)}
    manifest = []
    with tarfile.open(target, "w") as tar:
        for path, digest in sums.items():
            tar.add(path, f"{digest}.tar")
        for image in images:
            digests = [sums[one] for one in image.layers]
            content = json.dumps(
                {
                    "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
                    "os": "linux",
                    "config": image.config,
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in digests]},
                }
            ).encode()
            name = f"{hashlib.sha256(content).hexdigest()}.json"
            _add(tar, name, content)
            layers = [f"{one}.tar" for one in digests]
            manifest.append({"Config": name, "RepoTags": [image.name], "Layers": layers})
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def full_name(image: str) -> str:
    """Return the image's name as containerd stores it."""
    return image if image.startswith("localhost/") else f"docker.io/library/{image}"


def held_by_digest() -> dict[str, str]:
    """Return the images that the manifests name by a registry's digest, each with its local
    substitute.

    kubelet looks up such an image as `docker.io/library/redis@sha256:...`, without the tag.
    """
    ours = {"redis": docker.REDIS_IMAGE, "busybox": BUSYBOX_IMAGE}
    text = "".join(one.read_text("utf-8") for one in (ROOT / "k8s").rglob("*.yaml"))
    found = re.findall(r"image: (\w+):[^@\s]+@(sha256:\w+)", text)
    return {f"docker.io/library/{name}@{digest}": ours[name] for name, digest in found}


def standard_images(scratch: Path) -> list[Image]:
    """Return the images pause, busybox, Redis, csi-fleet and the example driver; new layers are
    written to `scratch`."""
    if shutil.which("debootstrap") is None:
        apt.install("debootstrap")
    base, busybox = docker.base_archive(), busybox_layer(scratch)
    product = [base, _dependencies_layer(), _product_layer(scratch)]
    # As in the Dockerfile.
    environment = {
        "PATH": f"/{PRODUCT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "CSI_FLEET_STATE_DIR": "/run/csi-fleet",
        "PYTHONPATH": f"/{PRODUCT}/lib",
    }
    example = environment | {"PYTHONPATH": f"/opt/example:/{PRODUCT}/lib"}
    return [
        Image(PAUSE_IMAGE, [busybox], {"Cmd": ["/bin/sleep", "2147483647"]}),
        Image(BUSYBOX_IMAGE, [busybox], {"Env": ["PATH=/bin"], "Cmd": ["sh"]}),
        Image(docker.REDIS_IMAGE, [base], {"WorkingDir": "/data", "Cmd": ["redis-server"]}),
        Image(
            FLEET_IMAGE,
            product,
            {"Env": _lines(environment), "User": "10001:10001", "Entrypoint": ["csi-fleet"]},
        ),
        Image(
            EXAMPLE_IMAGE,
            [*product, _example_layer(scratch)],
            {
                "Env": _lines(example),
                "User": "10001:10001",
                "Entrypoint": ["python3", "-m", "examples.directory_driver"],
            },
        ),
    ]


def busybox_layer(scratch: Path, folder: str = "bin") -> Path:
    """Return a layer with busybox under the names of all its programs, in one folder."""
    root = scratch / "busybox"
    place = root / folder
    place.mkdir(parents=True)
    (root / "tmp").mkdir()
    shutil.copy2(programs() / "bin/busybox", place / "busybox")
    names = subprocess.run(
        [place / "busybox", "--list"], check=True, capture_output=True, text=True
    ).stdout.split()
    for name in names:
        if name != "busybox":
            (place / name).symlink_to("busybox")
    return _tar(root, scratch / "busybox.tar")


def program_layer(scratch: Path, program: Path) -> Path:
    """Return a layer with one program in the root folder."""
    root = scratch / program.name
    root.mkdir(parents=True)
    shutil.copy2(program, root / program.name)
    return _tar(root, scratch / f"{program.name}.tar")


def _dependencies_layer() -> Path:
    """Return a layer with csi-fleet's dependencies by the lock, for the base's Python; cached."""
    wanted = hashlib.sha256()
    for name in ("requirements.lock", "pyproject.toml"):
        wanted.update((ROOT / name).read_bytes())
    target = docker.CACHE / f"dependencies-{wanted.hexdigest()[:16]}.tar"
    if not target.exists():
        with _base_root() as root:
            library = root / PRODUCT / "lib"
            _install(library)
            for name in PACKAGES:
                shutil.rmtree(library / name)
            shutil.rmtree(library / "kubernetes/aio")  # the Dockerfile leaves it out as well
            _compile(root)
            draft = target.with_suffix(f".{os.getpid()}")
            _tar(root, draft, PRODUCT).replace(target)
    return target


def _install(library: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [
        *(str(uv), "pip", "install", "--quiet", "--target", str(library)),
        *("--python-version", "3.11", "--no-build-isolation"),
        *("--constraint", "requirements.lock", "."),
    ]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")


def _product_layer(scratch: Path) -> Path:
    with _base_root() as root:
        for name in PACKAGES:
            _copy(ROOT / name, root / PRODUCT / "lib" / name)
        program = root / PRODUCT / "bin/csi-fleet"
        program.parent.mkdir()
        program.write_text(_ENTRY)
        program.chmod(0o755)
        _compile(root)
        for name in SIDECARS:
            (root / name).symlink_to(f"/{PRODUCT}/bin/csi-fleet")
        state = root / "run/csi-fleet"
        state.mkdir(parents=True)
        state.chmod(0o777)  # the Dockerfile gives this folder to csi-fleet's user
        return _tar(root, scratch / "product.tar", PRODUCT, "run/csi-fleet", *SIDECARS)


def _example_layer(scratch: Path) -> Path:
    folder = scratch / "example"
    for name in ("__init__.py", "directory_driver", "nfs_csi_driver"):
        _copy(ROOT / "examples" / name, folder / "opt/example/examples" / name)
    return _tar(folder, scratch / "example.tar")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


@contextmanager
def _base_root() -> Iterator[Path]:
    """Yield a folder with the base, of which only `/opt` may be changed."""
    kept = cache_root() / "images" / f"{docker.SUITE}-root"
    if not kept.exists():
        archive = docker.base_archive()
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=kept.parent))
        subprocess.run(["tar", "-C", draft, "-xf", archive], check=True)
        draft.chmod(0o755)
        try:
            draft.rename(kept)
        except OSError:  # another run was faster
            shutil.rmtree(draft)
    # Hard links cost nothing and do not change the cached copy.
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        root = Path(scratch, "root")
        subprocess.run(["cp", "-al", kept, root], check=True)
        yield root


def _compile(root: Path) -> None:
    """Compile the bytecode with the base's own Python, because pods have a read-only root."""
    command = ["chroot", str(root), "python3", "-m", "compileall", "-q", "-j2"]
    command += ["--invalidation-mode", "unchecked-hash", f"/{PRODUCT}/lib"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def _tar(root: Path, target: Path, *inside: str) -> Path:
    owner = ["--owner=0", "--group=0", "--numeric-owner"]
    subprocess.run(["tar", "-C", root, *owner, "-cf", target, *(inside or ".")], check=True)
    return target


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _lines(environment: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
