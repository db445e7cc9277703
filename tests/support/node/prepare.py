"""Prepares everything that the node's first start needs: `python -m tests.support.node.prepare`."""

from __future__ import annotations

from tests.support.controlplane_binaries import NODE_BINARIES, binaries_directory
from tests.support.node import debian
from tests.support.node.requirements import lacking

if __name__ == "__main__" and not lacking():
    debian.programs()
    binaries_directory(names=NODE_BINARIES)
