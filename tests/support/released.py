"""A signed release of the checkout as it is now, for tests; its image was made elsewhere.

```
folder = make_release(committed(scratch / "source"), scratch / "release", digest="sha256:...")
```
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
VERSION: Final[str] = yaml.safe_load((ROOT / "k8s/chart/Chart.yaml").read_text())["version"]
_VENV: Final = Path(sys.executable).parents[1]
_IDENTITY: Final = ("-c", "user.name=Releaser", "-c", "user.email=releaser@example.invalid")


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command that must succeed prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd, env=env)
    return done.stdout


def committed(folder: Path) -> Path:
    """A new repository of one commit: the files that git knows, as they are now."""
    for name in filter(None, run("git", "ls-files", "-z", cwd=ROOT).split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    run("git", "init", "-q", cwd=folder)
    run("git", "add", "--all", "--force", cwd=folder)
    run("git", *_IDENTITY, "commit", "-qm", "as it is now", cwd=folder)
    return folder


def make_release(source: Path, out: Path, *, digest: str) -> Path:
    """Runs `make release` in `source`, with our environment; returns `out`.

    Args:
        source: from `committed`.
        out: the folder of the release.
        digest: of the image `csi-fleet`.
    """
    key = source.with_name(f"{source.name}-key.pem")
    if not key.exists():
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        run("openssl", "genpkey", *curve, "-out", key)
    env = {name: one for name, one in os.environ.items() if not name.startswith("MAKE")}
    # -o: the environment is up to date, whatever the ages of the copied files.
    run("make", "-o", f"{_VENV}/.synced", f"VENV={_VENV}", "release", f"VERSION={VERSION}",
        f"OUT={out}", f"SIGN_KEY={key}", f"DIGEST={digest}", cwd=source, env=env)  # fmt: skip
    return out
