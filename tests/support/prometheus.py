"""Debian's Prometheus: its programs, without its service."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support import apt


def binary(name: str) -> str:
    """The path of a program of Debian's package `prometheus`, which is installed if need be.

    Its service is not started. Where it cannot be had tests are skipped; in CI they fail.
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
