"""A headless Chromium, driven by its own command line: pages as text and as pictures.

`apt-get install chromium` brings it; a machine without one skips, CI fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)


def find_browser() -> str:
    """Path of the browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        missing = "no chromium on PATH: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def page_text(url: str, *, budget_ms: int = 6000) -> str:
    """The page's HTML after its scripts ran."""
    return _run("--dump-dom", f"--virtual-time-budget={budget_ms}", url)


def screenshot(url: str, path: Path, *, size: tuple[int, int] = (1100, 420)) -> None:
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
    # A profile of its own, so that no login is remembered from one page to the next.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [find_browser(), *_FLAGS, f"--user-data-dir={profile}", *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    return done.stdout
