"""The summary that ends `make test-all`; CI relies on its last line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import suites
from tests.support.suites import Outcome


@pytest.fixture(autouse=True)
def took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use another file for these runs: the suite that runs this test keeps its own."""
    path = tmp_path / "took" / "suites.json"
    monkeypatch.setattr(suites, "TOOK", path)
    return path


def test_a_heading_says_how_long_the_rest_took_last_time(monkeypatch, capsys):
    seconds = {"unit": 240.0, "e2e": 600.0}
    monkeypatch.setattr(
        suites, "run_pytest", lambda suite: Outcome(suite, ok=True, seconds=seconds[suite])
    )
    suites.main(["unit", "e2e"])
    assert "=== unit (1 of 2) ===" in capsys.readouterr().out
    suites.main(["unit", "e2e"])
    printed = capsys.readouterr().out
    assert "=== unit (1 of 2, about 14 min left) ===" in printed
    assert "=== e2e (2 of 2, about 10 min left) ===" in printed


def test_quick_leaves_out_what_is_named_and_every_named_file_exists():
    for folder, names in (suites.NOT_QUICK).items():
        for name in names:
            assert (suites.ROOT / "tests" / folder / name).is_file(), name
    unit = suites.chosen(suites.ROOT / "tests" / "unit")
    assert unit[0].endswith("tests/unit")
    assert all(one.startswith("--ignore=") for one in unit[1:])
    beside = [one for one in suites.chosen(suites.ROOT / "tests" / "integration") if "/e2e/" in one]
    assert beside
    assert all(Path(one).is_file() for one in beside)


def test_counts_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="10" failures="1" errors="2" skipped="3"/></testsuites>'
    )
    assert suites.count(report) == (4, 3, 3)


def test_failed_suite_fails_the_run_and_the_next_still_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {
        "unit": Outcome("unit", ok=False, passed=3, failed=1),
        "e2e": Outcome("e2e", ok=True, passed=2, skipped=1),
    }
    monkeypatch.setattr(suites, "run_pytest", outcomes.__getitem__)
    assert suites.main(["unit", "e2e"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "tests: 5 passed, 1 failed, 1 skipped"


def test_all_good_is_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "run_pytest", lambda suite: Outcome(suite, ok=True, passed=1))
    assert suites.main(["unit"]) == 0


def test_those_that_mostly_wait_run_side_by_side(tmp_path, monkeypatch, capsys):
    """Each waits for the other's mark; their outputs are not mixed, and all tests are counted."""
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "prepare_node", lambda: None)
    for suite, other in (("node", "chaos"), ("chaos", "node")):
        write_suite(
            tmp_path,
            "import time\n\n\ndef test_meets():\n"
            f"    Path({str(tmp_path)!r}, {suite!r}).touch()\n"
            f"    while not Path({str(tmp_path)!r}, {other!r}).exists():\n"
            "        time.sleep(0.01)\n",
            suite,
        )
    assert suites.main(["node", "chaos"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "tests: 2 passed, 0 failed"
    places = [printed.index(text) for text in ("=== node ===", "1 passed", "=== chaos ===")]
    assert places == sorted(places)


def test_unknown_suite_is_a_usage_error() -> None:
    assert suites.main(["units"]) == 2


def write_suite(root, body, suite="e2e"):
    folder = root / "tests" / suite
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(f"from pathlib import Path\n\n{body}")


def test_a_test_that_passes_alone_is_flaky(tmp_path, monkeypatch, capfd):
    """It is counted and reported with its error at the end, which a truncated log still has."""
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    write_suite(
        tmp_path,
        "def test_other():\n    pass\n\n"
        "def test_second_time():\n"
        f"    mark = Path({str(tmp_path)!r}, 'mark')\n"
        "    seen = mark.exists()\n    mark.touch()\n    assert seen, 'not yet'\n",
    )
    assert suites.main(["e2e"]) == 0
    end = capfd.readouterr().out.splitlines()
    assert end[-1] == "tests: 2 passed, 0 failed"
    assert "1 flaky" in end[-2]
    told = end.index("failed once: tests.e2e.test_it::test_second_time: AssertionError: not yet")
    assert told > end.index("--- e2e: the failed ones once more ---")


def test_a_test_that_fails_twice_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    write_suite(tmp_path, "def test_never():\n    assert not Path('.')\n")
    outcome = suites.run_pytest("e2e")
    assert (outcome.ok, outcome.passed, outcome.failed, outcome.flaky) == (False, 0, 1, 0)
