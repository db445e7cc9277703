"""The matrix of supported systems: a table is written only for what ran."""

from __future__ import annotations

import pytest

from tests.support import matrix

LIFE, QUEUE = matrix.SELECTION
CLAIM = '<testcase classname="tests.e2e.test_claims" name="a"'
SCRIPT = '<testcase classname="tests.integration.queue.test_locks" name="b"'


@pytest.mark.parametrize(
    ("cases", "life", "queue"),
    [
        (f"{CLAIM}/>{SCRIPT}/>{SCRIPT}/>", "1 passed", "2 passed"),
        (f"{CLAIM}><failure/></testcase>{CLAIM}/>", "**1 failed**, 1 passed", "**0 failed**"),
        (f"{CLAIM}><error/></testcase>{SCRIPT}/>", "**1 failed**, 0 passed", "1 passed"),
        (f"{CLAIM}/>{SCRIPT}><skipped/></testcase>", "1 passed", "0 passed, 1 skipped"),
    ],
)
def test_a_cell_counts_its_part_of_the_report(cases, life, queue):
    cells = matrix.results(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert cells[LIFE] == life
    assert cells[QUEUE].startswith(queue)


def test_a_run_that_wrote_no_report_has_passed_nothing():
    assert set(matrix.results("").values()) == {"**0 failed**, 0 passed"}


def test_a_system_that_cannot_be_had_is_a_row_that_says_so(monkeypatch):
    def none(_):
        raise matrix.UnavailableError("no mirror")

    monkeypatch.setattr(matrix, "debian", none)
    cells = matrix.run(matrix.ROWS[0])
    known = {"System": "Debian 12", "Kubernetes": "v1.36.1"}
    assert cells == dict.fromkeys(matrix.HEADINGS, "not to be had") | known


def test_a_row_is_replaced_and_the_others_stay():
    page = "before\n<!-- matrix -->\n<!-- end of matrix -->\nafter\n"
    for number, word in ((1, "first"), (0, "second"), (1, "third")):
        page = matrix.written(page, number, dict.fromkeys(matrix.HEADINGS, word))
    rows = page.splitlines()[4:]
    assert "second" in rows[0]
    assert "third" in rows[1]
    assert [row.count("not run") for row in rows[2:-2]] == [2] * (len(matrix.ROWS) - 2)
    assert page.startswith("before\n<!-- matrix -->\n| System |")
    assert page.endswith("\n<!-- end of matrix -->\nafter\n")


def test_the_page_has_the_rows_of_the_matrix():
    text = matrix.TABLE.search(matrix.PAGE.read_text())[0]
    rows = [line for line in text.splitlines() if line.startswith("| Debian")]
    assert [row.split("|")[1].strip() for row in rows] == [one.system for one in matrix.ROWS]
