"""Lists the product's dependencies and checks them for known vulnerabilities:

`make sbom` and `make audit`.

Both read only the locked requirements of the product, not the tools of development. They run in
their own environments (`uv tool run`), at the versions named here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
SBOM_TOOL = ("cyclonedx-bom==7.5.0", "cyclonedx-py")
AUDIT_TOOL = ("pip-audit==2.10.1", "pip-audit")
SBOM = ROOT / "dist" / "sbom.cdx.json"
# An unreachable database must not delay a check for longer.
AUDIT_SECONDS = 45
UNREACHABLE = "audit: no database of vulnerabilities is reachable; nothing was checked"


def product_requirements(folder: Path, *options: str) -> Path:
    """Write the product's requirements in exactly the locked versions, with hashes.

    Args:
        folder: where the file goes.
        options: further options of `uv pip compile`.
    """
    path = folder / "requirements.txt"
    subprocess.run(
        [UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes",
         "--no-emit-index-url", "--python-version", "3.11", "--constraint", "requirements.lock",
         *options, "pyproject.toml", "--output-file", path],
        check=True, cwd=ROOT,
    )  # fmt: skip
    return path


def tool(of: tuple[str, str], *arguments: str | Path) -> list[str | Path]:
    """Return a command line that runs a tool outside this environment."""
    package, program = of
    return [UV, "tool", "run", "--quiet", "--from", package, program, *arguments]


def write_sbom(target: Path = SBOM) -> None:
    """Write the bill of materials in CycloneDX's JSON; it is the same for the same lock."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        requirements = product_requirements(Path(scratch))
        subprocess.run(
            tool(SBOM_TOOL, "requirements", "--pyproject", "pyproject.toml",
                 "--output-reproducible", "--output-format", "JSON", "--output-file", target,
                 requirements),
            check=True, cwd=ROOT,
        )  # fmt: skip


def audit() -> str:
    """Return one line; raise SystemExit if the product has a known vulnerability."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            requirements = product_requirements(Path(scratch))
        except subprocess.CalledProcessError:
            return UNREACHABLE
        command = tool(AUDIT_TOOL, "--vulnerability-service", "osv", "--format", "json",
                       "--disable-pip", "--require-hashes", "--timeout", "5",
                       "--requirement", requirements)  # fmt: skip
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=AUDIT_SECONDS
            )
            found = verdict(done.stdout)
        except subprocess.TimeoutExpired:
            found = None
    if found is None:
        return UNREACHABLE
    if found:
        raise SystemExit("audit: known vulnerabilities:\n" + "\n".join(found))
    return "audit: no known vulnerability"


def verdict(report: str) -> list[str] | None:
    """Return a line per vulnerability in pip-audit's JSON; None if the database was not
    reachable."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    return [
        f"{one['name']} {one['version']}: {bad['id']}, fixed in {', '.join(bad['fix_versions'])}"
        for one in packages
        for bad in one.get("vulns", ())
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["sbom"]:
        write_sbom()
        print(f"{SBOM.relative_to(ROOT)}: {len(json.loads(SBOM.read_text())['components'])} parts")
    else:
        print(audit())
