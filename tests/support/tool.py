"""Runs the commands that a person runs next to the system:

`csi-fleet explain`, `status`, `audit`, ...
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.fleet import environment, program
from tests.support.waiting import wait_until


class Tool:
    """Runs commands for one cluster and one Redis."""

    def __init__(self, kubeconfig: str | Path, redis_url: str, **env: str) -> None:
        self.flags = [f"--kubeconfig={kubeconfig}", f"--redis-url={redis_url}"]
        self.env = env

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run one command; its output is a pipe, so it has no colours."""
        return subprocess.run(
            [*program(), arguments[0], *self.flags, *arguments[1:]],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment(**self.env),
        )

    def ok(self, *arguments: str) -> str:
        """Run one command that must succeed; return its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run one command with `-o json`; return the decoded output."""
        done = self.run(*arguments, "-o", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def explain(self, kind: str, name: str) -> str:
        """Return the text of explain."""
        return self.run("explain", kind, name).stdout

    def wait_cause(self, kind: str, name: str, cause: str, timeout_seconds: float = 60) -> str:
        """Wait until explain reports that cause; return its whole text."""
        last = ""

        def found() -> bool:
            nonlocal last
            last = self.explain(kind, name)
            if not last.startswith(f"{kind} {name}: {cause}\n"):
                raise AssertionError(last)
            return True

        wait_until(found, timeout_seconds, f"{kind} {name} is explained as {cause}")
        return last
