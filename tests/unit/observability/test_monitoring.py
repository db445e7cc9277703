"""Alert rules and dashboard load, and every metric they name exists in the real exposition."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from workers.observability.exposition import Exposition
from workers.observability.lanes import LaneCollector
from workers.observability.metrics import Metrics
from workers.queue.inspect import read_sizes
from workers.queue.limits import LaneLimits, LaneStats

DOCS = Path(__file__).parents[3] / "docs"
NAME = re.compile(r"\b(?:csi_fleet|csi_sidecar|csistorage|controller|workqueue)_\w+")
LANE = LaneStats("claims|d", 1, 1, 1, 1, 1.0, 1.0, LaneLimits(2), 1, 1, {"breaker": "x"})


class Answers:
    """A Redis pipeline that answers 0 to everything, to learn the names of the sizes."""

    def pipeline(self, *, transaction):
        return self

    def __getattr__(self, name):
        return lambda *_: None

    def execute(self):
        return [0] * 7


def exported() -> set[str]:
    """Names of all series of a fed process, as a scrape sees them."""
    metrics = Metrics()
    for metric in vars(metrics).values():
        if getattr(metric, "_labelnames", ()):
            child = metric.labels(*["x"] * len(metric._labelnames))
            feed = [getattr(child, name, None) for name in ("observe", "set", "inc")]
            next(filter(None, feed))(1)
    lanes = LaneCollector(lambda: {LANE.lane: LANE}, lambda: read_sizes(Answers()))
    text = generate_latest(Exposition(metrics.registry, lanes)).decode()
    return {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }


def rules() -> list[dict]:
    loaded = yaml.safe_load((DOCS / "alerts" / "csi-fleet.yaml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def panels() -> list[dict]:
    return json.loads((DOCS / "dashboards" / "csi-fleet.json").read_text())["panels"]


def named(text: str) -> set[str]:
    return set(NAME.findall(text))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert_names_real_metrics_and_tells_what_to_do(rule):
    names = named(rule["expr"])
    assert names, "an alert without a metric never fires"
    assert names <= exported()
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panel_names_real_metrics(panel):
    for target in panel["targets"]:
        names = named(target["expr"])
        assert names
        assert names <= exported()


def test_a_wrong_name_would_be_found():
    assert not named("rate(csi_fleet_no_such_total[5m])") <= exported()
