"""Runs Debian's Prometheus, which scrapes real processes, with csi-fleet's rules in shorter time.

```
with Prometheus(directory, {"watcher": [port, ...]}, shortened(rules)) as prometheus:
    prometheus.firing()
    prometheus.query('up{job="watcher"}')
```
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import requests
import yaml

from tests.support import apt
from tests.support.processes import Process, free_port, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until

Labels = frozenset[tuple[str, str]]
# The label that names the subject of an alert.
SUBJECTS = ("driver_name", "class", "instance")

# A slower scrape yields nothing, and if all scrapes of the workers fail, a rule begins again. On
# two processors that twenty other processes share, a scrape takes up to a second.
SCRAPE_SECONDS = 2.0
EVALUATE_SECONDS = 0.5
# The factor by which rules are shortened, because nobody would run a test that waits a quarter of
# an hour for each rule. It is the same for all times, because a rule is correct only if it waits
# longer than its window. It is not larger, because a process that is stopped for 5 s must not be
# missing from half of a rule's window.
DIVISOR = 20
_WAITS = re.compile(r"> (\d{2,})\b(?!\.)")
_MINUTES = re.compile(r"\b(\d+)m\b")


def binary(name: str) -> str:
    """Return the program of Debian's package `prometheus`, which is installed if necessary.

    The package's service is not started. If the package is unavailable, tests are skipped, and in
    CI they fail.
    """
    if shutil.which(name) is None:
        try:
            apt.install("prometheus")
        except apt.AptError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
    found = shutil.which(name)
    assert found, name
    return found


def shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same rules with all times divided by twenty: a minute becomes three seconds.

    An age in an expression (a whole number from 10 on) is shortened too: a wait of five minutes
    becomes 15 s. Shares and rates are unchanged.
    """
    groups = []
    for group in document["groups"]:
        rules = [
            rule
            | {"expr": shortened_query(rule["expr"])}
            | ({"for": _shortened_for(rule["for"])} if "for" in rule else {})
            for rule in group["rules"]
        ]
        groups.append(group | {"rules": rules, "interval": f"{int(EVALUATE_SECONDS * 1000)}ms"})
    return {"groups": groups}


def shortened_query(text: str) -> str:
    """Shorten one expression, as `shortened` describes."""
    text = _MINUTES.sub(lambda one: f"{int(one[1]) * 60 // DIVISOR}s", text)
    return _WAITS.sub(lambda one: f"> {int(one[1]) / DIVISOR:g}", text)


def _shortened_for(text: str) -> str:
    minutes = _MINUTES.fullmatch(text)
    assert minutes, f"for: {text} is not in minutes"
    return f"{int(minutes[1]) * 60 // DIVISOR}s"


class Prometheus(Running):
    """One server whose data is stored in `directory`.

    Args:
        directory: made if missing.
        targets: ports on loopback by job.
        rules: a rules file's content.
    """

    def __init__(
        self, directory: Path, targets: Mapping[str, Sequence[int]], rules: Mapping[str, Any]
    ) -> None:
        self.directory = directory
        self._targets, self._rules = targets, rules
        self._port = free_port()
        self._session = requests.Session()
        self._process: Process | None = None

    def start(self) -> Self:
        program = binary("prometheus")
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "rules.yaml").write_text(yaml.safe_dump(dict(self._rules)))
        jobs = [
            {
                "job_name": job,
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
            for job, ports in self._targets.items()
        ]
        times = {
            "scrape_interval": f"{int(SCRAPE_SECONDS * 1000)}ms",
            "evaluation_interval": f"{int(EVALUATE_SECONDS * 1000)}ms",
        }
        config = {"global": times, "rule_files": ["rules.yaml"], "scrape_configs": jobs}
        (self.directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._process = start_process(
            "prometheus",
            [
                program,
                f"--config.file={self.directory / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self.directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
            log=self.directory / "prometheus.log",
        )
        try:
            wait_until(self._is_ready, 60, "Prometheus is ready", fatal=RuntimeError)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._process.log_tail()}") from error
        return self

    def stop(self) -> None:
        self._session.close()
        if self._process is not None:
            self._process.kill()  # its data is not needed

    def query(self, text: str, at: float | None = None) -> dict[Labels, float]:
        """Return an instant query's values by labels, without the metric's name."""
        parameters = {"query": text} | ({"time": f"{at:.3f}"} if at is not None else {})
        answer = self._get("/api/v1/query", **parameters)
        return {
            frozenset((k, v) for k, v in one["metric"].items() if k != "__name__"): float(
                one["value"][1]
            )
            for one in answer["result"]
        }

    def firing(self) -> set[tuple[str, str]]:
        """Return the name and subject (driver, class, instance or "") of each alert that is
        firing."""
        return {
            (labels["alertname"], next((labels[one] for one in SUBJECTS if one in labels), ""))
            for labels in self._alerts()
        }

    def _alerts(self) -> Iterator[dict[str, str]]:
        for one in self._get("/api/v1/alerts")["alerts"]:
            if one["state"] == "firing":
                yield one["labels"]

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._session.get(
            f"http://127.0.0.1:{self._port}{path}", params=parameters, timeout=30
        )
        body = answer.json()
        assert body["status"] == "success", (parameters, body)
        return body["data"]

    def _is_ready(self) -> bool:
        assert self._process is not None
        if not self._process.is_running():
            raise RuntimeError(f"Prometheus ended:\n{self._process.log_tail()}")
        url = f"http://127.0.0.1:{self._port}/-/ready"
        return self._session.get(url, timeout=5).status_code == 200
