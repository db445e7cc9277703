"""Each alert fires for its cause and ends with it, and each panel shows true values (OPS-4).

A real Prometheus (Debian's) scrapes two watchers and three workers. The rules are those of docs/
with shorter times (`tests.support.prometheus.shortened`). All tests share one run: first every
fault of a single driver occurs at the same time, each with its own driver, then the faults that
affect all drivers, one after another.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.support.causes import (
    ALONE,
    CAUSES,
    FROZEN,
    LIMITS,
    NO_API,
    PATIENCE,
    ROLES,
    SLOW,
    SLOW_SECONDS,
    TOGETHER,
    Actions,
)
from tests.support.controlplane import ControlPlane
from tests.support.dashboard import TRUTHS, Seen
from tests.support.monitored import Monitored
from tests.support.prometheus import SCRAPE_SECONDS, shortened
from tests.support.waiting import let_pass, wait_until

# The first test that needs the run starts it.
pytestmark = pytest.mark.timeout(2400)
DOCS = Path(__file__).resolve().parents[2] / "docs"
RULES = yaml.safe_load((DOCS / "alerts" / "csi-fleet.yaml").read_text())
ALERTS = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
PANELS = json.loads((DOCS / "dashboards" / "csi-fleet.json").read_text())["panels"]
QUERIES = [
    pytest.param(panel["title"], number, id=f"{panel['title']} {target['legendFormat']}")
    for panel in PANELS
    for number, target in enumerate(panel["targets"])
]


@dataclass
class Story:
    """The results of the run.

    Attributes:
        quiet: alerts that fired before the first fault.
        fired: alerts with roles that fired while their causes held.
        surprises: alerts that fired without a cause, after the action that began the current fault.
        lasting: alerts that still fired after their causes were gone.
        shown: results of the panels' queries by title and number, with the expected values.
    """

    quiet: set = field(default_factory=set)
    fired: set = field(default_factory=set)
    surprises: set = field(default_factory=set)
    lasting: set = field(default_factory=set)
    shown: dict = field(default_factory=dict)


class Teller:
    """Runs the story once for all tests."""

    def __init__(self, world):
        self.world, self.actions, self.story = world, Actions(world), Story()

    def firing(self):
        return {(alert, self.world.role(about)) for alert, about in self.world.prometheus.firing()}

    def tell(self):
        actions = self.actions
        actions.warm_up()
        actions.stuck = actions.bind("stuck", 4)[0]
        actions.broken = actions.bind("broken", 1)[0]
        self.world.tool.ok("pause", f"--driver={self.world.driver('paused')}", "--reason=firmware")
        actions.claim("paused", 20)
        # Until the first scrapes the watcher seems to be missing.
        with suppress(TimeoutError):
            wait_until(lambda: not self.firing(), PATIENCE, "nothing fires")
        self.story.quiet = self.firing()
        for cause in TOGETHER:
            cause.begin(actions)
        self.look_at_panels()
        NO_API.begin(actions)
        self.go_through([*TOGETHER, SLOW, FROZEN, NO_API])
        for cause in ALONE:
            cause.begin(actions)
            self.go_through([cause])
        return self.story

    def go_through(self, causes):
        """Record which alerts the causes fire, which others fire, and which outlast them."""
        wanted = set().union(*(cause.fires for cause in causes))
        allowed = wanted.union(*(cause.also for cause in causes))
        seen = set()

        def watch():
            now = self.firing()
            seen.update(now)
            return now

        def all_fired():
            if wanted <= watch() | seen:
                return True
            for cause in causes:
                if not cause.fires <= seen:  # a worker that is still being frozen fails less often
                    cause.goes_on(self.actions)
            return False

        with suppress(TimeoutError):  # the test of each alert reports it
            wait_until(all_fired, PATIENCE, "all fire", interval_seconds=0.3)
        for cause in causes:
            cause.mend(self.actions)
        self.story.fired |= seen & wanted
        try:
            wait_until(lambda: not watch(), PATIENCE, "all end", interval_seconds=0.3)
        except TimeoutError:
            self.story.lasting |= self.firing()
        self.story.surprises |= {(causes[0].begin.__name__, *one) for one in seen - allowed}

    def look_at_panels(self):
        """Fill a window with work, freeze a worker, and compare the result of every query."""
        world, actions = self.world, self.actions
        actions.wait_counted(
            ("controller_persistentvolumeclaim_provision_failed_total", "full"),
            ("controller_persistentvolume_delete_failed_total", "stuck"),
        )
        world.wait_scraped()
        since, before = time.time(), world.host.figures()
        let_pass(3 * SCRAPE_SECONDS)  # the window excludes what comes before its first scrape
        SLOW.begin(actions)
        slow = actions.claim("slow", 10)
        names, steady_wait = actions.bind("steady", 12)
        actions.delete(names[:10])
        FROZEN.begin(actions)
        slow_wait = actions.wait_bound(slow)
        states, sizes = [], []
        for _ in range(16):  # each interval contains one scrape, which takes up to an interval
            states.append(world.keys_by_state())
            sizes.append(
                {name: world.entries(name) for name in SIZES}
                | {"abandoned": world.client.zcard("csifleet:abandoned")}
            )
            let_pass(SCRAPE_SECONDS / 4)
        until = time.time()
        seen = Seen(
            world, since, until, (before, world.host.figures()), states, sizes,
            waits={"steady": steady_wait, "slow": slow_wait},
            delays={"slow": SLOW_SECONDS},
            made={"steady": 12, "slow": 10},
            deleted={"steady": 10},
            oldest={"paused": actions.asked_first("paused")},
            paused={"paused": "operator", "gone": "driver"},
        )  # fmt: skip
        for panel in PANELS:
            for number, target in enumerate(panel["targets"]):
                text = target["expr"].replace("$driver", ".*").replace("${kind:raw}", ".*")
                text = text.replace("[5m]", f"[{round(seen.seconds * 1000)}ms]")
                answer = world.prometheus.query(text, until)
                truths = TRUTHS.get(panel["title"], ())
                expected = truths[number] if number < len(truths) else None
                is_rate = "rate(" in text and "quantile" not in text and "/ sum" not in text
                factor = seen.seconds if is_rate else 1
                shown = {labels: value * factor for labels, value in answer.items()}
                self.story.shown[panel["title"], number] = shown, expected and expected(seen)


SIZES = ("intents", "unsaved", "fails")


@pytest.fixture(scope="module")
def story(tmp_path_factory, redis_binary):
    directory = tmp_path_factory.mktemp("monitored")
    with (
        ControlPlane(directory / "plane", audit_log=True) as plane,
        Monitored(
            directory / "world", plane, redis_binary, ROLES, LIMITS, shortened(RULES)
        ) as world,
    ):
        yield Teller(world).tell()


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_fires_by_its_cause(story, alert):
    """Each alert in the rules file needs a cause in this file."""
    expected = {one for cause in CAUSES for one in cause.fires if one[0] == alert}
    assert expected, "an alert needs a cause that is tested"
    assert expected <= story.fired


def test_nothing_fires_without_a_cause(story):
    assert story.quiet == set()
    assert story.surprises == set()


def test_each_alert_ends_with_its_cause(story):
    assert story.lasting == set()


@pytest.mark.parametrize(("title", "number"), QUERIES)
def test_each_query_of_the_dashboard_shows_what_is_true(story, title, number):
    """Each query of the dashboard needs an expected value that was measured elsewhere."""
    shown, expected = story.shown[title, number]
    assert expected is not None, "a query needs a truth to compare it with"
    for labels, (least, most) in expected.items():
        assert labels in shown, (dict(labels), shown)
        assert least <= shown[labels] <= most, (dict(labels), shown[labels], least, most)


def test_the_dashboard_has_no_fewer_queries_than_truths():
    titles = {panel["title"]: len(panel["targets"]) for panel in PANELS}
    assert {title: len(truths) for title, truths in TRUTHS.items()} == titles
