"""Alert rules and dashboard are valid PromQL, and their metrics and labels really exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from workers.controllers import catalogue
from workers.observability.exposition import Exposition
from workers.observability.lanes import LaneCollector
from workers.observability.metrics import Metrics
from workers.queue.inspect import read_memory, read_sizes
from workers.queue.limits import LaneLimits, LaneStats
from workers.queue.names import USUAL

DOCS = Path(__file__).parents[3] / "docs"
LANE = LaneStats("claims|d", 1, 1, 1, 1.0, LaneLimits(2), 1, 1, {"driver": "x"})


class Answers:
    """A Redis pipeline that answers 0 to everything, which reveals the names of the sizes."""

    names = USUAL

    def pipeline(self, *, transaction):
        self.asked = []
        return self

    def info(self, section):
        return {"used_memory": 1, "maxmemory": 4}

    def scan_iter(self, match, count):
        return [match.replace("\\", "").replace("*", "driver")]

    def __getattr__(self, name):
        return lambda *_: self.asked.append(name)

    def execute(self, raise_on_error=True):
        return [{"time": (0, 0), "get": None}.get(name, 0) for name in self.asked]


@cache
def exported() -> dict[str, frozenset[str]]:
    """Return the labels of all series by name, as a scrape of a process with data sees them."""
    metrics = Metrics()
    for metric in vars(metrics).values():
        if getattr(metric, "_labelnames", ()):
            child = metric.labels(*["x"] * len(metric._labelnames))
            feed = [getattr(child, name, None) for name in ("observe", "set", "inc")]
            next(filter(None, feed))(1)
    sizes = {**read_sizes(Answers()), **read_memory(Answers())}
    lanes = LaneCollector(lambda: {LANE.lane: LANE}, lambda: sizes)
    text = generate_latest(Exposition(metrics.registry, lanes)).decode()
    return {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def rules() -> list[dict]:
    loaded = yaml.safe_load((DOCS / "alerts" / "csi-fleet.yaml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def panels() -> list[dict]:
    return json.loads((DOCS / "dashboards" / "csi-fleet.json").read_text())["panels"]


def parts(node) -> Iterator[object]:
    """Yield all expressions of a parsed query."""
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from parts(child)
    for child in getattr(node, "args", ()):
        yield from parts(child)


def mistakes(text: str) -> list[str]:
    """Return the metrics and labels of a query that no scrape shows; raise if it is not PromQL.

    Prometheus itself adds the label `instance`.
    """
    found = list(parts(promql_parser.parse(text)))
    selectors = [one for one in found if isinstance(one, promql_parser.VectorSelector)]
    assert selectors, "a query without a metric shows nothing"
    unknown = [one.name for one in selectors if one.name not in exported()]
    labels = frozenset({"instance"}).union(*(exported().get(one.name, ()) for one in selectors))
    for one in selectors:
        given = {matcher.name for matcher in one.matchers.matchers}
        unknown += sorted(given - exported().get(one.name, frozenset()))
    for one in found:
        if isinstance(one, promql_parser.AggregateExpr) and one.modifier is not None:
            unknown += sorted(set(one.modifier.labels) - labels)
    return unknown


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert_names_real_metrics_and_tells_what_to_do(rule):
    assert mistakes(rule["expr"]) == []
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"]
    assert rule["annotations"]["runbook_url"]
    assert rule["labels"]["severity"] in {"warning", "critical"}


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panel_names_real_metrics(panel):
    for target in panel["targets"]:
        assert mistakes(target["expr"]) == []


def test_objectives_name_real_metrics():
    """Sloth replaces its template with the window."""
    loaded = yaml.safe_load((DOCS / "alerts" / "slo.yaml").read_text())
    queries = [
        query for slo in loaded["slos"] for kind in slo["sli"].values() for query in kind.values()
    ]
    assert len(queries) == 5
    for query in queries:
        assert "[{{.window}}" in query
        assert mistakes(query.replace("{{.window}}", "5m")) == []


def test_the_page_names_all_our_metrics_and_no_others():
    page = set(re.findall(r"`(csi_fleet_\w+)`", (DOCS / "monitoring.md").read_text()))
    ours = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exported()}
    assert page == {name for name in ours if name.startswith("csi_fleet_")}


def test_the_dashboards_choice_of_drivers_names_a_real_label():
    loaded = json.loads((DOCS / "dashboards" / "csi-fleet.json").read_text())
    for variable in loaded["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]
            text = query if isinstance(query, str) else query["query"]
            metric, label = text.removeprefix("label_values(").rstrip(")").split(", ")
            assert label in exported()[metric]


def test_the_dashboards_choice_of_a_controller_has_all_kinds_of_each():
    loaded = json.loads((DOCS / "dashboards" / "csi-fleet.json").read_text())
    (variable,) = [one for one in loaded["templating"]["list"] if one["name"] == "kind"]
    kinds: dict[str, list[str]] = {}
    for spec in catalogue.SPECS:
        kinds.setdefault(spec.part_of or spec.name, []).extend(one.name for one in spec.kinds)
    wanted = {name: "|".join(found) for name, found in kinds.items()}
    assert {one["text"]: one["value"] for one in variable["options"]} == wanted
    assert variable["query"] == ", ".join(f"{name} : {found}" for name, found in wanted.items())
    of_keys = [
        target["expr"]
        for panel in loaded["panels"]
        for target in panel["targets"]
        if re.search(r"csi_fleet_(keys|attempts_total|lane_)", target["expr"])
    ]
    assert of_keys
    assert all('kind=~"${kind:raw}"' in text for text in of_keys)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        pytest.param("rate(csi_fleet_no_such_total[5m])", ["csi_fleet_no_such_total"], id="metric"),
        pytest.param('csi_fleet_keys{drivername="d"} > 1', ["drivername"], id="label"),
        pytest.param("sum by (clas) (csi_fleet_keys)", ["clas"], id="grouping"),
    ],
)
def test_a_wrong_name_would_be_found(query, wrong):
    assert mistakes(query) == wrong


def test_broken_promql_would_be_found():
    with pytest.raises(ValueError, match="unclosed"):
        mistakes("sum by (class (csi_fleet_keys)")
