"""What a scrape gets from one process and from the children of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from workers.engine.outcome import Action
from workers.observability.exposition import MULTIPROCESS_VARIABLE, Exposition, SharedMetrics
from workers.observability.metrics import Metrics

CLAIM = {"spec": {"storageClassName": "c"}}
TOTAL = "controller_persistentvolumeclaim_provision_total"
SECONDS = "controller_persistentvolumeclaim_provision_duration_seconds"

# A child of `run`: it counts and then waits to be killed, so that the test sees it running.
CHILD = textwrap.dedent("""
    import sys
    from workers.observability.metrics import Metrics
    metrics = Metrics()
    for _ in range(int(sys.argv[1])):
        metrics.provisioned({"spec": {"storageClassName": "c"}}, 0.2)
    metrics.work_unfinished_seconds.labels("claims").set(5)
    metrics.work_longest_seconds.labels("claims").set(int(sys.argv[1]))
    print("counted", flush=True)
    sys.stdin.readline()
""")


def samples(*sources):
    text = generate_latest(Exposition(*sources)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def filled():
    metrics = Metrics()
    metrics.provisioned(CLAIM, 0.2)
    metrics.provision_failed({"spec": {"storageClassName": 'odd "\\\n name'}})
    metrics.csi_observer("d")("/csi.v1.Controller/CreateVolume", "OK", 0.2)
    metrics.csi_observer("m", migrated=True)("/csi.v1.Controller/CreateVolume", "OK", 0.2)
    metrics.leader_status.labels("lease").set(1)
    return metrics


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_output_is_well_formed_and_each_family_comes_once(accept):
    encode, content_type = choose_encoder(accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    families = list(parse(encode(Exposition(filled().registry)).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert all(family.documentation for family in families)
    assert not any(s.name.endswith("_created") for f in families for s in f.samples)


def test_f030_migrated_is_shown_for_migrated_drivers_only():
    found = [dict(labels) for name, labels in samples(filled().registry)
             if name == "csi_sidecar_operations_seconds_count"]  # fmt: skip
    assert {labels["driver_name"]: labels.get("migrated") for labels in found} == {
        "d": None, "m": "true",
    }  # fmt: skip


def test_cap080_capacity_has_a_driver_label_with_several_drivers_only():
    metrics = Metrics()
    metrics.capacity_goal.labels("").set(3)
    assert samples(metrics.registry)["csistoragecapacities_desired_goal", ()] == 3
    metrics = Metrics()
    metrics.capacity_goal.labels("d").set(4)
    key = "csistoragecapacities_desired_goal", (("driver_name", "d"),)
    assert samples(metrics.registry)[key] == 4


def test_l095_an_empty_class_stays_a_label():
    """Only the labels that csi-provisioner omits are omitted."""
    metrics = Metrics()
    metrics.provisioned({"spec": {}}, 1)
    assert samples(metrics.registry)[TOTAL, (("class", ""), ("source", ""))] == 1


def test_f030_process_and_scrape_metrics_are_there():
    exposition = Exposition(Metrics().registry)
    exposition.scrapes.started()
    exposition.scrapes.ended(200)
    exposition.scrapes.started()
    names = {s.name: s.value for f in exposition.collect() for s in f.samples if not s.labels}
    assert names["promhttp_metric_handler_requests_in_flight"] == 1
    assert names["process_resident_memory_bytes"] > 0
    codes = {
        s.labels["code"]: s.value
        for f in exposition.collect() for s in f.samples if s.name.startswith("promhttp")
        and s.labels
    }  # fmt: skip
    assert codes == {"200": 1, "500": 0, "503": 0}


def test_a_driver_that_left_is_not_shown_and_may_come_back():
    """Otherwise the alert on a lost socket would fire forever after the driver was removed."""
    metrics = Metrics()
    connected = "csi_fleet_driver_connected", (("driver_name", "d"),)
    metrics.driver_connected.labels("d").set(0)
    assert samples(metrics.registry)[connected] == 0
    metrics.driver_left("d")
    assert connected not in samples(metrics.registry)
    metrics.driver_connected.labels("d").set(1)
    assert samples(metrics.registry)[connected] == 1


def test_what_an_alert_must_see_the_first_of_begins_at_0():
    """Prometheus sees no increase in a series that begins at 1."""
    metrics = Metrics()
    metrics.expect("d", ["claims"])
    found = samples(metrics.registry)
    errors = "csi_fleet_unexpected_errors_total", (("driver_name", "d"), ("kind", "claims"))
    assert found[errors] == 0
    assert found["csi_fleet_lease_losses_total", (("kind", "claims"),)] == 0
    ends = {dict(key[1])["outcome"] for key in found if key[0] == "csi_fleet_attempts_total"}
    assert ends == {one.value for one in Action}


class Children:
    """Processes that count into one folder, as the children of `run` do."""

    def __init__(self, shared):
        self.shared = shared
        self.running = []

    def start(self, count):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(count)],
            env=os.environ | {MULTIPROCESS_VARIABLE: str(self.shared.directory)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.running.append(child)
        assert child.stdout.readline() == "counted\n"
        return child

    def kill(self, child):
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
        self.running.remove(child)


@pytest.fixture
def children(tmp_path):
    shared = SharedMetrics(tmp_path / "metrics")
    shared.prepare()
    found = Children(shared)
    yield found
    for child in found.running[:]:
        found.kill(child)


def figures(shared):
    found = samples(shared)
    labels = (("class", "c"), ("source", ""))
    name = (("name", "claims"),)
    return (
        found.get((TOTAL, labels)),
        found.get((f"{SECONDS}_count", labels)),
        found.get((f"{SECONDS}_bucket", (("class", "c"), ("le", "0.25"), ("source", "")))),
        found.get(("workqueue_unfinished_work_seconds", name)),
        found.get(("workqueue_longest_running_processor_seconds", name)),
    )


def test_children_add_up_and_restarts_lose_no_count(children):
    """Counters and histograms never fall within a run; gauges come from living processes."""
    shared = children.shared
    first, _ = children.start(2), children.start(3)
    assert figures(shared) == (5, 5, 5, 10, 3)
    children.kill(first)
    shared.forget_process(first.pid)
    assert figures(shared) == (5, 5, 5, 5, 3)
    again = children.start(1)
    assert figures(shared) == (6, 6, 6, 10, 3)
    children.kill(again)
    shared.forget_process(again.pid)
    shared.forget_process(again.pid)
    assert figures(shared) == (6, 6, 6, 5, 3)


def test_files_do_not_pile_up_with_restarts(children):
    """A child in a crash loop must not fill the disk."""
    counts = set()
    for _ in range(3):
        child = children.start(1)
        children.kill(child)
        children.shared.forget_process(child.pid)
        counts.add(len(list(children.shared.directory.iterdir())))
    assert counts == {2}
    assert figures(children.shared)[0] == 3


def test_merged_output_is_well_formed(children):
    children.start(1)
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    families = [f.name for f in parse_openmetrics(encode(Exposition(children.shared)).decode())]
    assert len(families) == len(set(families))
    assert TOTAL.removesuffix("_total") in families


def test_a_new_run_starts_from_zero(tmp_path):
    shared = SharedMetrics(tmp_path / "metrics")
    shared.prepare()
    (shared.directory / "counter_1.db").write_bytes(b"old")
    shared.prepare()
    assert list(shared.directory.iterdir()) == []
    assert shared.directory.stat().st_mode & 0o777 == 0o700


def test_a_child_killed_while_it_made_its_file_is_forgotten(tmp_path):
    shared = SharedMetrics(tmp_path / "metrics")
    shared.prepare()
    (shared.directory / "counter_7.db").write_bytes(b"")
    shared.forget_process(7)
    assert list(shared.collect()) == []
    assert not (shared.directory / "counter_7.db").exists()
