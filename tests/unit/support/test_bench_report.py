"""The tables of a measurement: rounds are combined, text outside the marks is kept."""

from __future__ import annotations

import pytest

from tests.bench import felt
from tests.bench.report import BEGIN, END, grouped, measured, requests, spread, write_tables
from tests.bench.throughput import quantile

RUN = {
    "system": "csi-fleet",
    "drivers": 10,
    "mode": "Immediate",
    "claims": 400,
    "pv_per_s": 100.0,
    "bound_per_s": 50.0,
    "pv_p50": 0.1,
    "pv_p99": 0.2,
    "bound_p50": 1.0,
    "bound_p99": 2.0,
    "deleted_per_s": 40.0,
    "cpu_ms_total": 7.5,
    "cpu_ms": {"workers": 6.5, "redis": 1.0},
    "cpu_ms_delete": {"workers": 5.0, "redis": 1.0},
    "api_cpu_ms": 11.0,
    "pss_total": 150.0,
    "pss": {"workers": 100.0, "redis": 50.0},
    "watches": 3,
    "requests": {"GET persistentvolumeclaims": 1.0, "PUT persistentvolumes/status": 1.0},
}


def test_rounds_are_one_row_with_median_and_range():
    rounds = [RUN, RUN | {"pv_per_s": 120.0}, RUN | {"pv_per_s": 90.0}]
    ((key, group),) = grouped(rounds)
    assert key == ("Immediate", 10, "csi-fleet", 400)
    assert spread(group, "pv_per_s") == "100.0 (90.0-120.0)"
    assert spread([RUN], "pv_per_s") == "100.0"


def test_systems_stand_side_by_side():
    runs = [RUN | {"drivers": 20}, RUN | {"system": "reference"}, RUN]
    assert [key[1:3] for key, _ in grouped(runs)] == [
        (10, "csi-fleet"),
        (10, "reference"),
        (20, "csi-fleet"),
    ]


def test_only_the_provisioners_requests_are_shown():
    """The cluster's own binding requests are the same for all systems."""
    assert requests(RUN["requests"]) == "GET claim 1.0"


def test_text_around_the_marks_stays(tmp_path):
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_tables(document, {"machine": {"date": "today"}, "throughput": [RUN]})
    write_tables(document, {"machine": {"date": "today"}, "throughput": [RUN]})
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("### Bursts\n") == 1
    assert "workers 6.5, redis 1.0" in text


def test_sections_that_did_not_run_stay_with_their_date(tmp_path):
    document = tmp_path / "performance.md"
    document.write_text(f"{BEGIN}\n{END}\n")
    write_tables(document, {"machine": {"date": "monday"}, "throughput": [RUN]})
    write_tables(document, {"machine": {"date": "friday"}, "queue": [{"line": "5 cycles/s"}]})
    text = document.read_text()
    assert text.index("### Bursts") < text.index("date: monday") < text.index("### Queue alone")
    assert text.index("### Queue alone") < text.index("date: friday") < text.index("5 cycles/s")


def test_scaling_is_told_against_the_first():
    runs = [RUN | {"workers": 1, "pv_per_s": 20.0}, RUN | {"workers": 2, "pv_per_s": 39.0}]
    assert "| 2 | 39.0 | 1.95 | 7.5 |" in measured({"scaling": runs})[0]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 51.0), (0.99, 100.0), (1.0, 100.0)])
def test_quantile(share, expected):
    assert quantile([float(number) for number in range(1, 101)], share) == expected


def test_bursts_that_were_not_run_again_stay(tmp_path):
    """If only one of the two kinds was measured, the other keeps its last figures."""
    document = tmp_path / "performance.md"
    document.write_text(f"{BEGIN}{END}")
    waiting = RUN | {"mode": "WaitForFirstConsumer"}
    write_tables(document, {"throughput": [RUN], "topology": [waiting]})
    write_tables(document, {"throughput": [RUN | {"pv_per_s": 7.25}]})
    text = document.read_text()
    assert text.count("| WaitForFirstConsumer |") == 2
    assert (text.count("| 7.2 |"), text.count("| 100.0 |")) == (1, 1)


def test_what_users_feel_stands_beside_the_other_commit_and_go():
    """Figures are medians of the rounds; a figure that a system does not have stays empty."""
    base, go = {"system": "csi-fleet, base"}, {"system": "reference"}
    runs = [RUN | {"bound_p50": seconds} for seconds in (1.0, 3.0, 2.0)]
    runs += [RUN | base | {"bound_p50": 4.0}, RUN | go, RUN | {"system": "reference, default qps"}]
    explain = [{"system": "csi-fleet", "median_s": 0.51}]
    rows = list(felt.rows({"throughput": runs, "explain": explain}))
    assert rows[0] == ["claim to Bound, p50 s", "10 drivers, Immediate", "2", "4", "1", "0.50"]
    assert rows[-1] == ["`csi-fleet explain`, s", "", "0.51", "", "", ""]
