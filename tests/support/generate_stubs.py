"""Regenerates csi_client/_generated from the files of csi_client/proto, or checks that it is
current.

`python -m tests.support.generate_stubs` rewrites the committed files (this is `make proto`). With
`--check` it changes nothing, and exits with 1 and the names of the files that differ.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO_DIR = ROOT / "csi_client" / "proto"
TARGET = ROOT / "csi_client" / "_generated"
PROTOS = ("csi", "pluginregistration", "snapshotmetadata")
# Of the last two, only the messages are needed: generic handlers serve their methods.
FILES = (
    *("csi_pb2.py", "csi_pb2.pyi", "csi_pb2_grpc.py", "csi_pb2_grpc.pyi"),
    *("pluginregistration_pb2.py", "pluginregistration_pb2.pyi"),
    *("snapshotmetadata_pb2.py", "snapshotmetadata_pb2.pyi"),
)


def generate(output: Path, *, proto_dir: Path = PROTO_DIR, verbose: bool = False) -> Path:
    """Run protoc and return the folder that contains `FILES`.

    protoc sees the file under the virtual path `csi_client/_generated/csi.proto`, so the generated
    modules import each other by their place in this package, without any rewriting.

    Raises:
        subprocess.CalledProcessError: protoc refused the file; its words are on stderr.
    """
    scripts = Path(sysconfig.get_path("scripts"))
    plugins = [
        f"--plugin=protoc-gen-{name}={scripts / f'protoc-gen-{name}'}"
        for name in ("mypy", "mypy_grpc")
    ]
    outputs = [f"--{kind}_out={output}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            *plugins,
            f"-Icsi_client/_generated={proto_dir}",
            *outputs,
            *(f"csi_client/_generated/{name}.proto" for name in PROTOS),
        ],
        check=True,
        cwd=ROOT,
        stderr=None if verbose else subprocess.DEVNULL,
    )
    return output / "csi_client" / "_generated"


def stale_files(target: Path = TARGET, *, proto_dir: Path = PROTO_DIR) -> list[str]:
    """Return the names of generated files in `target` that protoc would write differently."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch), proto_dir=proto_dir)
        return [
            name
            for name in FILES
            if not (target / name).is_file()
            or (target / name).read_bytes() != (fresh / name).read_bytes()
        ]


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with `--check` only compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, exit 1 on a difference")
    if parser.parse_args(arguments).check:
        stale = stale_files()
        if stale:
            print("stale, run `make proto`:", *stale, file=sys.stderr)
        return 1 if stale else 0
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch), verbose=True)
        for name in FILES:
            shutil.copyfile(fresh / name, TARGET / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
