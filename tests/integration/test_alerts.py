"""Each alert fires for its cause and for no other cause, after its real delay.

promtool (Debian's package prometheus) runs the rules on made-up scrapes of two watchers and three
workers. Every cause is one change of a healthy system.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.prometheus import binary

pytestmark = pytest.mark.integration

DOCS = Path(__file__).resolve().parents[2] / "docs"
RULES = DOCS / "alerts" / "csi-fleet.yaml"
MINUTES = 60
LANE = 'kind="claims",driver_name="d"'
ATTACH = 'kind="attachments",driver_name="d"'
CLASS = 'class="fast",source=""'
WATCHERS, WORKERS = ("w1", "w2"), ("k1", "k2", "k3")


def healthy():
    """Return the values of every process' series in promtool's notation, by series."""
    found = {}
    for instance in WATCHERS:
        for name, value in (
            ("csi_fleet_queue_up", 1),
            ("csi_fleet_worker_processes", 3),
            ("csi_fleet_unsaved_volumes", 0),
            ("csi_fleet_abandoned_keys", 0),
            ("csi_fleet_quarantined_records", 0),
            ("csi_fleet_redis_memory_ratio", 0.2),
        ):
            found[f'{name}{{instance="{instance}"}}'] = f"{value}x{MINUTES}"
        for name in ("csi_fleet_keys_head_age_seconds", "csi_fleet_untaken_age_seconds"):
            found[f'{name}{{{LANE},instance="{instance}"}}'] = f"1x{MINUTES}"
        found[f'csi_fleet_keys{{{LANE},state="ready",instance="{instance}"}}'] = f"5x{MINUTES}"
    for instance in WORKERS:
        one = f'instance="{instance}"'
        rising = {
            f"controller_persistentvolumeclaim_provision_total{{{CLASS},{one}}}": 60,
            f"controller_persistentvolumeclaim_provision_failed_total{{{CLASS},{one}}}": 1,
            f'controller_persistentvolume_delete_failed_total{{class="fast",{one}}}': 1,
            f'controller_persistentvolume_delete_total{{class="fast",{one}}}': 60,
            f'csi_fleet_api_requests_total{{code="200",{one}}}': 60,
            f'csi_fleet_api_requests_total{{code="0",{one}}}': 1,
            f'csi_fleet_lease_losses_total{{kind="claims",{one}}}': 0,
            f"csi_fleet_unexpected_errors_total{{{LANE},{one}}}": 0,
            f'csi_fleet_attempts_total{{{ATTACH},outcome="done",{one}}}': 20,
            f'csi_fleet_attempts_total{{{ATTACH},outcome="retry",{one}}}': 1,
            f'csi_fleet_attempts_total{{{LANE},outcome="done",{one}}}': 0,
            f'csi_fleet_attempts_total{{{LANE},outcome="retry",{one}}}': 1,
        }
        for place in ("5", "60", "300", "+Inf"):
            name = "csi_fleet_claim_to_volume_seconds_bucket"
            rising[f'{name}{{driver_name="d",class="fast",le="{place}",{one}}}'] = 60
        found |= {name: f"0+{step}x{MINUTES}" for name, step in rising.items()}
        found[f'csi_fleet_driver_connected{{driver_name="d",{one}}}'] = f"1x{MINUTES}"
    return found


def changed(name, value, *, only=""):
    """Return the healthy series, with this value for all of `name` whose labels contain `only`."""
    series = healthy()
    places = [one for one in series if one.startswith(name + "{") and only in one]
    assert places, name
    return series | dict.fromkeys(places, value)


def added(name, value):
    return healthy() | {name: value}


def without(*names):
    return {one: value for one, value in healthy().items() if one.partition("{")[0] not in names}


def flat(value):
    return f"{value}x{MINUTES}"


def rising(step):
    return f"0+{step}x{MINUTES}"


OLD = "csi_fleet_keys_head_age_seconds"
PAUSED = f'csi_fleet_lane_paused{{{LANE},pause="%s",instance="w1"}}'
SLOW = "csi_fleet_claim_to_volume_seconds_bucket"
FAILS = "controller_persistentvolumeclaim_provision_failed_total"
DELETES = "controller_persistentvolume_delete_failed_total"

CAUSES = {
    "CsiFleetQueueUnreachable": changed("csi_fleet_queue_up", flat(0), only="w2"),
    "CsiFleetRedisMemory": changed("csi_fleet_redis_memory_ratio", flat(0.7), only="w1"),
    "CsiFleetNoWatcher": without(
        *("csi_fleet_queue_up", "csi_fleet_worker_processes", "csi_fleet_unsaved_volumes"),
        *("csi_fleet_abandoned_keys", "csi_fleet_quarantined_records", OLD),
        *("csi_fleet_untaken_age_seconds", "csi_fleet_keys", "csi_fleet_redis_memory_ratio"),
    ),
    "CsiFleetNoWorker": changed("csi_fleet_worker_processes", flat(0)),
    "CsiFleetApiServerFails": changed(
        "csi_fleet_api_requests_total", rising(120), only='code="0",instance="k3"'
    ),
    "CsiFleetKeysWaitLong": changed(OLD, rising(60)),
    "CsiFleetKeysNotTaken": changed("csi_fleet_untaken_age_seconds", rising(60)),
    "CsiFleetDriverDisconnected": changed("csi_fleet_driver_connected", flat(0), only="k2"),
    "CsiFleetDriverWithoutWorker": without("csi_fleet_driver_connected"),
    "CsiFleetVolumesUnsaved": changed("csi_fleet_unsaved_volumes", flat(1)),
    "CsiFleetProvisioningFails": changed(FAILS, rising(120)),
    "CsiFleetDeletionFails": changed(DELETES, rising(120)),
    "CsiFleetWorkFails": changed(
        "csi_fleet_attempts_total", rising(30), only=f'{ATTACH},outcome="retry"'
    ),
    "CsiFleetKeysGivenUp": changed("csi_fleet_abandoned_keys", flat(1)),
    "CsiFleetLeasesLost": changed("csi_fleet_lease_losses_total", rising(6)),
    "CsiFleetClaimsSlow": changed(SLOW, rising(1), only='le="60"')
    | {one: rising(1) for one in healthy() if one.startswith(SLOW) and 'le="5"' in one},
    "CsiFleetInternalErrors": changed("csi_fleet_unexpected_errors_total", rising(1)),
    "CsiFleetRecordsUnreadable": changed("csi_fleet_quarantined_records", flat(1)),
}

QUIET = {
    "healthy": healthy(),
    "old keys of a driver that an operator paused": changed(OLD, rising(60))
    | {PAUSED % "operator": flat(1)},
    "a driver of nodes": {
        one.replace(f"csi_fleet_keys{{{LANE}", f'csi_fleet_keys{{{LANE[:-1]}@n1"'): value
        for one, value in healthy().items()
    },
    "a driver without workers and without work": changed("csi_fleet_keys", flat(0))
    | dict.fromkeys(
        [one for one in healthy() if one.startswith("csi_fleet_driver_connected")], "stale"
    ),
}
# These series have no successes, as for a class that no claim could use yet.
NEVER = {
    one: value
    for one, value in healthy().items()
    if not one.startswith(
        ("controller_persistentvolumeclaim", "controller_persistentvolume_delete")
    )
}
# At the maximum back-off there is one failure every five minutes, each on another worker.
ELSEWHERE = {f'{FAILS}{{{CLASS},instance="n{n}"}}': f"_x{5 * n} 1x{MINUTES}" for n in range(12)}
STEPS = " ".join(f"{count}x4" for count in range(12))

ALSO = {
    "a class that never succeeded": (
        "CsiFleetProvisioningFails",
        NEVER | {f'{FAILS}{{{CLASS},instance="k1"}}': rising(6)},
    ),
    "each failure on a worker that had none": ("CsiFleetProvisioningFails", NEVER | ELSEWHERE),
    "one attachment at the end of its back-off": (
        "CsiFleetWorkFails",
        {one: value for one, value in healthy().items() if ATTACH not in one}
        | {f'csi_fleet_attempts_total{{{ATTACH},outcome="retry",instance="k1"}}': STEPS}
        | {f'csi_fleet_attempts_total{{{ATTACH},outcome="done",instance="k1"}}': flat(0)},
    ),
    "a driver of which one worker of three is gone": (
        "CsiFleetDriverDisconnected",
        changed("csi_fleet_driver_connected", flat(0), only="k1"),
    ),
    "one volume at the end of its back-off": (
        "CsiFleetDeletionFails",
        NEVER | {f'{DELETES}{{class="fast",instance="k1"}}': STEPS},
    ),
}


def alerts():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def promtool():
    return binary("promtool")


@pytest.fixture(scope="module")
def judged(promtool, tmp_path_factory):
    """Run promtool on all cases and return its output for the failing cases, by name."""
    cases = {
        **{name: (name, series) for name, series in CAUSES.items()},
        **{name: ("", series) for name, series in QUIET.items()},
        **ALSO,
    }
    folder = tmp_path_factory.mktemp("alerts")
    failures = {}
    for index, (name, (expected, series)) in enumerate(cases.items()):
        path = folder / f"{index}.yaml"
        path.write_text(yaml.safe_dump(case(expected, series)))
        done = subprocess.run(
            [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            failures[name] = done.stdout + done.stderr
    return failures


def case(expected, series):
    """Return a unit test of the alerts that fire after an hour; annotations are not compared."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    # One expression returns the names of all firing alerts, so the test also finds a wrong alert.
    fires = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{expected}"}}', "value": 1}] if expected else []
    check = {"expr": f"{fires} > bool 0", "eval_time": f"{MINUTES - 1}m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": [check]}
    return {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}


@pytest.mark.parametrize("alert", alerts())
def test_alert_fires_by_its_cause_and_no_other_does(judged, alert):
    assert alert in CAUSES, "an alert needs a cause that is tested"
    assert alert not in judged, judged[alert]


@pytest.mark.parametrize("name", [*QUIET, *ALSO])
def test_other_situations(judged, name):
    """No alert fires in a healthy system or for a paused driver; other causes fire one alert."""
    assert name not in judged, judged[name]


def test_each_alert_has_its_section_in_the_runbook():
    """The runbook has no section for an alert that does not exist."""
    sections = re.findall(r"^## (\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    assert sections == alerts()
    groups = yaml.safe_load(RULES.read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        anchor = f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == anchor
