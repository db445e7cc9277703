"""Runs the commands of a page literally, as a reader would type them, and times each command.

```
walk = Walkthrough(folder, kubeconfig, programs={"docker": "..."})
walk.follow("README.md", "First volume")        # the ```sh blocks of that section, in order
print(walk.timeline())
```
A block of YAML that begins with `# NAME.yaml` is saved under that name first. `replaced`
lists the texts that a reader would replace; everything else is run as on the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.controlplane_binaries import binaries_directory, cache_directory, cache_root
from tests.support.fleet import ROOT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.yaml)\b")


class CommandFailedError(AssertionError):
    """A command of the page failed; the text contains its output."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command that was run."""

    command: str
    seconds: float
    output: str


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading.

    Raises:
        LookupError: the page has no such heading.
    """
    found: list[str] | None = None
    is_fenced = False
    for line in page.splitlines(keepends=True):
        is_fenced ^= line.startswith("```")
        is_heading = line.startswith("#") and not is_fenced
        if found is not None:
            if is_heading:
                break
            found.append(line)
        elif is_heading and line.strip("# \n") == heading:
            found = []
    if found is None:
        raise LookupError(f"no heading {heading!r}")
    return "".join(found)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Return language and content of each fenced block."""
    for match in _FENCE.finditer(text):
        yield match[1], match[2]


def commands(block: str) -> list[str]:
    """Return one command for each line that is not a comment; a backslash at the end continues a
    line."""
    joined = re.sub(r"\\\n\s*", "", block)
    return [one for one in joined.splitlines() if one.strip() and not one.startswith("#")]


class Walkthrough:
    """One reader at one terminal, in a folder that holds the checkout or a release.

    Args:
        folder: a new one; also the reader's home.
        kubeconfig: of the cluster.
        programs: scripts (`sh`) by the name under which the page calls them.
        content: what the reader has. Who has the checkout has its programs as well.
    """

    def __init__(
        self, folder: Path, kubeconfig: Path, programs: Mapping[str, str], content: Path = ROOT
    ) -> None:
        self.folder = folder / content.name
        self.steps: list[Step] = []
        self._exported = folder / "environment"
        tools = folder / "tools"
        for one in (self.folder, tools, folder / "home/.local/bin"):
            one.mkdir(parents=True)
        for path in content.iterdir():
            (self.folder / path.name).symlink_to(path)
        (tools / "kubectl").symlink_to(kubectl())
        helm = f'PYTHONPATH={ROOT} exec {sys.executable} -m tests.support.helm "$@"'
        for name, script in {"helm": helm, **programs}.items():
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
        self._exported.touch()
        own = [Path(sys.executable).parent] if content == ROOT else []
        places = [folder / "home/.local/bin", tools, *own]
        self._environment = os.environ | {
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(cache_root().parent),
            "KUBECONFIG": str(kubeconfig),
            "PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]]),
        }

    def follow(
        self,
        page: str,
        heading: str,
        replaced: Mapping[str, str] | None = None,
        *,
        program: str = "",
    ) -> None:
        """Run the commands of a section of the page, or those that call a program."""
        text = section((self.folder / page).read_text(), heading)
        for old, new in (replaced or {}).items():
            text = text.replace(old, new)
        for language, content in blocks(text):
            if language == "sh":
                for command in commands(content):
                    if command.startswith(program):
                        self.run(command)
            elif language == "yaml" and (match := _FILE.match(content)):
                (self.folder / match[1]).write_text(content)

    def run(self, command: str) -> str:
        """Run one command in a shell that has the variables exported before.

        Raises:
            CommandFailedError: it did not end with 0.
        """
        script = f". {self._exported}\nset -euo pipefail\n{command}\nexport -p > {self._exported}\n"
        started = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        step = Step(command, time.monotonic() - started, done.stdout)
        self.steps.append(step)
        print(f"{step.seconds:7.1f} s  {command}\n{done.stdout}", flush=True)
        if done.returncode:
            raise CommandFailedError(f"{command}\nexit {done.returncode}: {done.stdout[-3000:]}")
        return step.output

    def printed(self, text: str) -> str:
        """Return what the last command that contains the text printed."""
        return next(one.output for one in reversed(self.steps) if text in one.command)

    def timeline(self) -> str:
        """Return a text with the time since the first command, and the duration, of each
        command."""
        lines, total = [], 0.0
        for one in self.steps:
            total += one.seconds
            lines.append(f"{total:7.1f} s  (+{one.seconds:5.1f})  {one.command[:110]}")
        return "\n".join(lines)


def kubectl() -> Path:
    """Return the kubectl on PATH, or this repository's own, which is built if necessary."""
    built = cache_directory() / "kubectl"
    found = shutil.which("kubectl")
    if found and not built.exists():
        return Path(found).resolve()
    return binaries_directory(names=("kubectl",)) / "kubectl"
