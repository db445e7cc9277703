"""Runs a private Docker engine from Debian's packages, with local substitutes for the base images.

No registry is needed: debootstrap creates a Debian with Python and Redis, which is imported under
the names that Dockerfile and compose.yaml use. Needs root. All files are in one folder, the daemon
has its own socket, and it is stopped by its pid.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support import apt
from tests.support.processes import Process, start_process
from tests.support.waiting import wait_until

PROGRAMS = ("dockerd", "docker", "docker-compose", "debootstrap", "iptables")
PACKAGES = ("docker.io", "docker-compose", "debootstrap", "iptables")
SUITE = "bookworm"
PYTHON_IMAGE = "python:3.11-slim-bookworm"
REDIS_IMAGE = "redis:7.2-bookworm"
INSIDE = "python3,python3-venv,ca-certificates,openssl,redis-server,haproxy"
CACHE = Path.home() / ".cache" / "csi-fleet" / "images"
AUTHORITIES = Path("etc/ssl/certs/ca-certificates.crt")
# The parts of the official Redis image that matter: its user id and its folder.
REDIS_RECIPE = f"""\
FROM {PYTHON_IMAGE}
RUN groupadd -g 999 redis7 && useradd -u 999 -g 999 -M redis7 && install -d -o 999 -g 999 /data
WORKDIR /data
CMD ["redis-server"]
"""


class DockerUnavailableError(RuntimeError):
    """No engine can run on this machine; the text contains the reason."""


def install() -> None:
    """Install missing packages with apt.

    Raises:
        DockerUnavailableError: not root, or no apt.
    """
    missing = [one for one in PROGRAMS if shutil.which(one) is None]
    if not missing:
        return
    try:
        apt.install(*PACKAGES)
    except apt.AptError as error:
        raise DockerUnavailableError(f"missing {', '.join(missing)}: {error}") from error


class Engine:
    """A running dockerd; `directory` must be short, because a socket's path has at most 107
    bytes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = f"unix://{directory / 'docker.sock'}"
        self._process: Process | None = None

    def start(self) -> Engine:
        """Start the daemon and wait until it answers.

        Raises:
            DockerUnavailableError: it ended; the text is the end of its log.
        """
        install()
        if os.geteuid() != 0:
            raise DockerUnavailableError("dockerd needs root")
        self._process = start_process(
            "dockerd",
            [
                *("dockerd", "--host", self.host, "--data-root", str(self.directory / "data")),
                *("--exec-root", str(self.directory / "exec")),
                *("--pidfile", str(self.directory / "docker.pid")),
            ],
            log=self.directory / "dockerd.log",
        )
        wait_until(self._answers, 60, "dockerd answers", fatal=DockerUnavailableError)
        return self

    def stop(self) -> None:
        """Stop the daemon and remove its files."""
        if self._process:
            self._process.stop(30)
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, *arguments: str, text: str | None = None, timeout_seconds: float = 900) -> str:
        """Run one docker command; return its output.

        Raises:
            RuntimeError: it failed; with the end of its output.
        """
        return self.command(["docker", *arguments], text=text, timeout_seconds=timeout_seconds)

    def command(
        self,
        command: Sequence[str],
        *,
        text: str | None = None,
        timeout_seconds: float = 900,
        cwd: Path | None = None,
        **env: str,
    ) -> str:
        """Return the output of any program that uses this engine."""
        # The classic builder, because BuildKit's front end would come from a registry.
        surroundings = {**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0", **env}
        surroundings.pop("KUBECONFIG", None)
        done = subprocess.run(
            command,
            env=surroundings,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
            cwd=cwd,
        )
        if done.returncode:
            tail = (done.stdout + done.stderr)[-3000:]
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {tail}")
        return done.stdout

    def make_base_images(self) -> None:
        """Import the substitutes for the base images."""
        self.run("import", "-c", "CMD python3", str(base_archive()), PYTHON_IMAGE)
        self.run("build", "-q", "-t", REDIS_IMAGE, "-", text=REDIS_RECIPE)

    def _answers(self) -> bool:
        assert self._process is not None
        if not self._process.is_running():
            raise DockerUnavailableError(f"dockerd ended:\n{self._process.log_tail(10)}")
        try:
            self.run("version", timeout_seconds=5)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True


def base_archive() -> Path:
    """Return an archive with a minimal Debian; it is made once (about 80 s) and kept in the
    cache."""
    archive = CACHE / f"{SUITE}-python-redis-haproxy.tar"
    if archive.exists():
        return archive
    CACHE.mkdir(parents=True, exist_ok=True)
    root = CACHE / f"{SUITE}.{os.getpid()}"
    try:
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={INSIDE}", SUITE, str(root)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        # The packages are downloaded with the certificates that this machine trusts.
        shutil.copyfile(Path("/") / AUTHORITIES, root / AUTHORITIES)
        (root / "etc/pip.conf").write_text(f"[global]\ncert = /{AUTHORITIES}\n")
        for path in (root / "var/cache/apt/archives").glob("*.deb"):
            path.unlink()
        draft = archive.with_suffix(f".{os.getpid()}")
        subprocess.run(["tar", "-C", str(root), "-cf", str(draft), "."], check=True)
        draft.replace(archive)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return archive
