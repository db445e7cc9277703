"""The conformance kit finds the known defects of drivers."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from csi_client.errors import NoStatusError
from tests.support.bad_driver import DEFECTS, served
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import program
from workers.conformance.driver import CHECKS, check_driver


@pytest.fixture
def place():
    """Return a folder with a short path: a unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="csi-") as folder:
        yield Path(folder)


def test_a_good_driver_breaks_nothing(place):
    with served(place / "root", place / "s") as client:
        report = check_driver(client)
    assert report.broken == [], report.text()
    assert len(report.findings) == len(CHECKS)


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_planted_defect_is_found(place, defect):
    """Each defect alone is found by its own check, and the finding states the reason."""
    with served(place / "root", place / "s", defect) as client:
        report = check_driver(client)
    assert DEFECTS[defect] in {one.check for one in report.broken}, report.text()
    found = next(one for one in report.broken if one.check == DEFECTS[defect])
    assert len(found.words.split()) > 8


def test_nothing_is_left_behind(place):
    with served(place / "root", place / "s") as client:
        check_driver(client)
        left = [entry for page in client.list_volumes() for entry in page.entries]
    assert left == []


def test_a_driver_that_is_gone_is_an_error_with_words(place):
    with served(place / "root", place / "s") as client:
        pass
    with pytest.raises(NoStatusError, match="connection to the driver is closed"):
        check_driver(client)


def test_the_command_checks_a_live_driver():
    """`csi-fleet conformance` exits with 0, and with 1 and a reason if the driver breaks a rule."""
    with DirectoryDriver(arguments=["--topology", "zone=z1"]) as driver:
        command = [*program(), "conformance", "--endpoint", driver.endpoint]
        good = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert good.returncode == 0, good.stdout + good.stderr
        assert "29 ok, 0 BROKEN, 1 skipped" in good.stdout
        driver.set_rules({"method": "DeleteVolume", "code": "NOT_FOUND", "message": "who?"})
        bad = subprocess.run(
            [*command, "--output", "json"], capture_output=True, text=True, timeout=120, check=False
        )
    assert bad.returncode == 1
    findings = {one["check"]: one for one in json.loads(bad.stdout)["findings"]}
    assert findings["delete-unknown"]["verdict"] == "BROKEN"
    assert "instead of OK" in findings["delete-unknown"]["words"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param([], 2, "--endpoint is needed", id="no endpoint"),
        pytest.param(["--endpoint=unix:///s", "--parameter=x"], 2, "KEY=VALUE", id="parameter"),
        pytest.param(["--endpoint=http://x"], 2, "--endpoint", id="scheme"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, code, words):
    done = subprocess.run(
        [*program(), "conformance", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
