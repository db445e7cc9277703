"""What the measurement of several systems concludes, and where it writes the result."""

from __future__ import annotations

import pytest

from tests.bench import several
from tests.bench.sections import SECTIONS, Plan
from tests.bench.several import (
    BEGIN,
    DOCUMENT,
    DRIVERS,
    END,
    driver_names,
    model,
    tables,
    write,
)
from tests.bench.standin_api import place

COST = {"workers_ms": 4.0, "redis_ms": 0.5, "api_ms": 1.0, "drivers_ms": 1.0}
ONE = {"systems": 1, "load": "burst", "watcher_ms": 1.0, "claims_per_s": 200.0, **COST}


def records(foreign):
    """Return records of a watcher: 1 ms per own claim, `foreign` ms per other system's claim."""
    two = ONE | {"systems": 2, "watcher_ms": 1.0 + foreign}
    steady = two | {"load": "steady", "workers_ms": 90.0}
    return [ONE, two, two, steady]


def test_a_watcher_that_sees_only_its_own_claims_scales_without_loss():
    found = model(records(0.0))
    assert found["workers_cores"] == pytest.approx(4.0)
    assert found["watcher_cores"] == pytest.approx(1.0)
    assert found["redis_cores"] == pytest.approx(0.5)
    assert found["watchers_full_per_s"] == pytest.approx(4000)
    assert found["redis_full_per_s"] == pytest.approx(8000)
    assert found["scaling"] == pytest.approx(1.0)


@pytest.mark.parametrize(("count", "full"), [(1, 1000), (2, 1600), (4, 1000 / 0.4375)])
def test_what_a_watcher_reads_of_other_systems_bounds_all_of_them(count, full):
    """At 0.25 ms per foreign claim, a claim costs 1/n of 1 ms plus (n-1)/n of 0.25 ms."""
    found = model(records(0.25), systems=count)
    assert found["watchers_full_per_s"] == pytest.approx(full)
    assert found["watcher_cores"] == pytest.approx(1 + 0.25 * (count - 1))
    assert found["scaling"] == pytest.approx(full / 1000 / count)


def test_the_first_process_that_is_full_is_the_bound():
    """Redis at 2 ms per claim is saturated before the watchers are."""
    slow = [one | {"redis_ms": 2.0} for one in records(0.0)]
    found = model(slow)
    assert found["redis_full_per_s"] == pytest.approx(2000)
    assert found["scaling"] == pytest.approx(1.0)


def test_noise_is_no_gain():
    """A watcher that seems cheaper next to another system reads foreign events for free at best."""
    assert model(records(-0.1))["watcher_foreign_ms"] == 0


def test_the_page_gets_the_figures_between_its_marks(tmp_path):
    page = tmp_path / "scale.md"
    page.write_text(f"before\n{BEGIN}\n\nnot measured yet\n\n{END}\nafter\n")
    write(records(0.25), page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\n| systems |")
    assert text.endswith(f"{END}\nafter\n")
    assert "not measured" not in text
    assert tables(records(0.25)) in text
    page.write_text(DOCUMENT.read_text())
    write(records(0.25), page)
    assert "| systems |" in page.read_text()
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks"):
        write(records(0.25), page)
    assert page.read_text() == "no marks"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_system_gets_as_many_drivers(count):
    found = driver_names(count)
    assert [len(one) for one in found] == [DRIVERS] * count
    assert len({name for names in found for name in names}) == DRIVERS * count


@pytest.mark.parametrize(("path", "found"), [
    ("/api/v1/persistentvolumeclaims", ("v1/persistentvolumeclaims", "")),
    ("/api/v1/namespaces/a/persistentvolumeclaims/b", ("v1/persistentvolumeclaims", "a/b")),
    ("/api/v1/persistentvolumes/x", ("v1/persistentvolumes", "x")),
    ("/apis/storage.k8s.io/v1/storageclasses", ("storage.k8s.io/v1/storageclasses", "")),
    ("/apis/events.k8s.io/v1/namespaces/a/events", ("events.k8s.io/v1/events", "")),
    ("/api/v1", ("", "")),
    ("/apis/storage.k8s.io/v1", ("", "")),
])  # fmt: skip
def test_the_stand_in_api_server_knows_what_a_path_means(path, found):
    assert place(path) == found


@pytest.mark.parametrize(("is_quick", "size"), [(True, (600, 10.0)), (False, (3000, 60.0))])
def test_make_bench_keeps_the_records_and_writes_the_page(monkeypatch, tmp_path, is_quick, size):
    asked, written = [], []
    monkeypatch.setattr(several, "measured", lambda *sizes: asked.append(sizes) or records(0.25))
    monkeypatch.setattr(several, "write", written.append)
    plan = Plan(None, tmp_path, None, is_quick, 1)
    SECTIONS["systems"](plan)
    assert asked == [size]
    assert plan.records["systems"] == records(0.25)
    assert written == [records(0.25)]
