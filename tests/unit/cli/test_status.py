"""status prints one line per driver, problems first, within eighty columns."""

from __future__ import annotations

import os

import pytest

from workers.cli import status, terminal

QUIET = {"ready": 0, "retry": 0, "running": 0, "limit": 4, "delayed": 0, "oldest": 0.0}


def driver(state="ok", failing=0, **lane):
    return {"state": state, "work": {"claims": {**QUIET, **lane}}, "failing": failing}


def report(drivers, **fields):
    return {
        "drivers": drivers,
        "paused_classes": {},
        "watchers": ["a:1"],
        "workers": [f"w{number}:{number}" for number in range(40)],
        "beat": True,
        "troubles": [],
        "counts": dict.fromkeys(
            ("intents", "unsaved_volumes", "failing_keys", "abandoned_keys", "quarantined_records"),
            0,
        ),
        "redis": {"version": "7", "memory": "1M", "clients": "3", "policy": "noeviction"},
        "redis_age": 1000.0,
        "problems": [],
    } | fields


TWENTY = {f"driver-{number:02}.csi.example.org": driver() for number in range(20)}


def shown(capsys, found, **options):
    status.show(found, **options)
    return capsys.readouterr().out.splitlines()


def test_twenty_drivers_fit_on_a_screen(capsys):
    lines = shown(capsys, report(TWENTY))
    assert len(lines) <= 28
    assert max(map(len, lines)) <= 80
    assert "beat     ticks" in lines
    assert any(line.startswith("workers  40: w0:0, w1:1, w2:2, and 37 more") for line in lines)


def test_what_needs_a_person_comes_first(capsys):
    sick = {
        "driver-19.csi.example.org": driver("disconnected: driver socket lost", ready=7),
        "driver-18.csi.example.org": driver(failing=3),
        "driver-17.csi.example.org": driver("not served", ready=2, oldest=90.0),
        "driver-16.csi.example.org": driver("paused: array upgrade", ready=1),
        "driver-15.csi.example.org": driver(ready=3, oldest=5.0),
    }
    lines = shown(capsys, report(TWENTY | sick, problems=["it burns"]))
    assert lines[0] == "! it burns"
    assert "- driver driver-16.csi.example.org: paused: array upgrade" in lines
    rows = [line.split() for line in lines if line.startswith("driver-")]
    assert [row[0][7:9] for row in rows[:6]] == ["17", "19", "18", "16", "15", "00"]
    assert rows[0][1:] == ["not", "served", "2", "0", "0", "1", "min", "30", "s"]
    assert rows[2][1:] == ["failing", "0", "0", "3", "-"]


def test_a_driver_that_nobody_serves_and_nobody_waits_for_is_last(capsys):
    lines = shown(capsys, report(TWENTY | {"a": driver("not served")}))
    assert [line for line in lines if line.startswith(("driver-", "a "))][-1].startswith("a ")


def test_the_nodes_of_a_driver_are_one_line(capsys):
    nodes = {f"local@n{number}": driver(ready=1, failing=number % 2) for number in range(9)}
    rows = [line for line in shown(capsys, report(nodes)) if line.startswith("local")]
    assert rows == ["local (9 nodes)  failing      9        0        4       -"]


def test_wide_has_a_line_for_each_kind(capsys):
    nobodys = {**QUIET, "limit": None}
    work = {"claims": QUIET, "volumes": {**nobodys, "ready": 1}, "changes": nobodys}
    two = {"work": work, "state": "ok", "failing": 0}
    lines = shown(capsys, report({"d": two}), is_wide=True)
    rows = [line.split() for line in lines if line.startswith("d ")]
    assert [(row[2], row[6]) for row in rows] == [("claims", "4"), ("volumes", "-")]


def test_wide_has_the_order_and_the_states_of_the_short_table(capsys):
    drivers = {"a": driver(), "b": driver("paused: upgrade"), "c": driver(failing=1)}
    found = report(drivers | {"d": driver("disconnected: socket lost")})
    for is_wide in (False, True):
        rows = [line.split()[:2] for line in shown(capsys, found, is_wide=is_wide)]
        states = [["d", "disconnected"], ["c", "failing"], ["b", "paused"], ["a", "ok"]]
        assert [row for row in rows if row and row[0] in drivers | {"d": 0}] == states


def test_it_names_the_command_for_the_causes_if_there_is_work(capsys):
    command = "what waits, and why: csi-fleet pending"
    assert command in shown(capsys, report({"a": driver(failing=1)}))
    assert command not in shown(capsys, report({"a": driver()}))


@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_terminal_takes_from_the_name(capsys, monkeypatch, columns):
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    monkeypatch.setattr(terminal, "write_lines", lambda lines, style="": [print(x) for x in lines])
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 40)))
    monkeypatch.setattr(terminal.sys.stdout, "fileno", lambda: 1, raising=False)
    name = "a-very-long-name-of-a-driver-in-a-cluster.of.ours.csi.example.org"
    lines = shown(capsys, report({name: driver(ready=123456, oldest=9e9)}))
    (row,) = (line for line in lines if "~" in line)
    assert len(row) <= columns
    assert row.startswith("a-")
