"""Runs `csi-fleet flower` as a child process, with a login, and reads its pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

import requests

from tests.support.fleet import ROOT, START_SECONDS, environment, program
from tests.support.processes import Process, free_port, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until
from workers.app import make_app
from workers.config.load import parse

LOGIN: Final = ("viewer", "see-only")


class Flower(Running):
    """Flower on loopback; with a kubeconfig its page /fleet reads the API server."""

    def __init__(self, directory: Path, redis_url: str, kubeconfig: str | Path) -> None:
        self.directory = directory
        self.redis_url = redis_url
        self.kubeconfig = kubeconfig
        self.url = f"127.0.0.1:{free_port()}"
        self._process: Process | None = None

    def start(self) -> Self:
        self._process = start_process(
            "flower",
            [
                *(*program(), "flower", f"--flower-port={self.url.rpartition(':')[2]}"),
                *(f"--redis-url={self.redis_url}", f"--kubeconfig={self.kubeconfig}"),
            ],
            log=self.directory / "flower.log",
            env=environment(CSI_FLEET_FLOWER_BASIC_AUTH=":".join(LOGIN)),
            cwd=ROOT,
        )
        wait_until(
            lambda: requests.get(f"http://{self.url}/healthcheck", timeout=2).ok,
            START_SECONDS,
            "Flower answers",
        )
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def signed_in(self, path: str) -> str:
        """Return the URL of a page with the login."""
        return f"http://{LOGIN[0]}:{LOGIN[1]}@{self.url}{path}"

    def page(self, path: str) -> str:
        """Return the HTML of a page as the server sends it."""
        return requests.get(self.signed_in(path), timeout=30).text

    def api(self, path: str) -> Any:
        """Return the answer of one of Flower's resources."""
        return requests.get(self.signed_in(path), timeout=30).json()

    def wait_workers(self, count: int) -> None:
        """Wait until Flower knows that many workers and all of them send task events."""
        app = make_app(parse("worker", [f"--redis-url={self.redis_url}"], {}))

        def are_asked() -> bool:
            found = app.control.enable_events(reply=True, timeout=5)
            asked = sum("already" in str(one) for one in found or ())
            return asked >= count and len(self.api("/api/workers")) >= count

        try:
            wait_until(are_asked, START_SECONDS, "Flower sees the workers")
        finally:
            app.close()
