"""Runs headless Chromium from its command line, to get pages as text and as pictures.

`apt-get install chromium` provides it; a test run as root installs it automatically. On a machine
without Chromium the tests are skipped, but in CI they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.support import apt

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)


@cache
def find_browser() -> str:
    """Return the path of the browser."""
    if found := _browser():
        return found
    try:
        apt.install("chromium")
    except apt.AptError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no chromium on PATH: {error}")
        pytest.skip(f"no chromium on PATH: {error}")
    return _browser()


def _browser() -> str:
    return shutil.which("chromium") or shutil.which("chromium-browser") or ""


def page_text(url: str, *, budget_ms: int = 6000) -> str:
    """Return the text of the page after its scripts have run."""
    return _run("--dump-dom", f"--virtual-time-budget={budget_ms}", url)


def page_of(html: str) -> str:
    """Return the text of a given page after its scripts have run."""
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(html)
        file.flush()
        return page_text(f"file://{file.name}")


def screenshot(url: str, path: Path, *, size: tuple[int, int] = (1360, 560)) -> None:
    """Save a picture of the page."""
    path.unlink(missing_ok=True)
    width, height = size
    _run(
        f"--screenshot={path}",
        f"--window-size={width},{height}",
        "--virtual-time-budget=6000",
        url,
    )


def _run(*arguments: str) -> str:
    # Each page has its own profile, so no login is remembered from an earlier page.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [find_browser(), *_FLAGS, f"--user-data-dir={profile}", *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    return done.stdout
