"""Judges a recorded case in which a shadow ran next to the sidecar, from the runner's file only.

The sidecar's calls and the calls that the shadow would have sent are compared as whole requests,
and the objects by the product's own verdicts. Predictions that are open at the end of a case are
judged here, in the state at that time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workers.drivers.standin import ASKED
from workers.engine.shadow.comparing import Verdict, compare, leaves

Result = dict[str, Any]
READS = {"GetCapacity", "ListVolumes", "ControllerGetVolume", "ListSnapshots", "GetSnapshot"}
HANDSHAKE = {method.rpartition("/")[2] for method in ASKED}
NAMES = ("volume_id", "snapshot_id", "group_snapshot_id", "name")


@dataclass(slots=True)
class Agreement:
    """One case.

    Attributes:
        compared: the number of requests and objects that are equal.
        differences: the differences, as text.
        drivers: what depends on the driver's answer, so that it cannot be compared.
        broken: forbidden actions of the shadow, and effects that it had on the sidecar.
        refused: why no shadow could run.
    """

    case: str
    defect: str = ""
    compared: int = 0
    differences: list[str] = field(default_factory=list)
    drivers: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    refused: str = ""

    @property
    def verdict(self) -> str:
        """Return `broken`, `differs`, `not comparable` or `agrees`."""
        if self.broken:
            return "broken"
        if self.refused:
            return "not comparable"
        if self.differences:
            return "differs"
        # It is agreement too if both did nothing.
        return "agrees" if self.compared or not self.drivers else "not comparable"


def agreement_of(result: Result) -> Agreement:
    """Judge the runner's record of one case."""
    told = result["shadow"]
    found = Agreement(result["id"], result.get("reference_defect", ""))
    flags = result.get("flags") or result.get("provisioner_flags") or {}
    found.broken += [f"the record: {line}" for line in result["unlike"]]
    found.broken += [f"called {one['method']}" for one in told["called"]]
    found.broken += [f"asked {one}" for one in told["handshake"] if one not in HANDSHAKE]
    if told["exit_code"] is not None:
        ends_too = "exit_code" in result["recorded"]
        found.compared += ends_too
        if flags.get("node-deployment"):
            found.refused = "node deployment"
        elif not ends_too:
            found.broken.append(f"ended with {told['exit_code']}")
        return found
    _calls(told, found)
    for driver in told["report"].values():
        _closed(driver, found)
        for record in driver["waiting"]:
            _waiting(record, told, found)
    for path in told["wrote"]:
        if path not in told["foreseen"]:
            found.differences.append(f"unforeseen write: {path}")
    return found


def _calls(told: Result, found: Agreement) -> None:
    would = _unique(told["would"])
    asked = _unique(told["asked"])
    told_already = set()
    for key, one in would.items():
        if key in asked:
            found.compared += 1
            continue
        told_already.add(_about(one))
        same = [a for a in asked.values() if _about(a) == _about(one)]
        what = "; ".join(_fields(one, same[-1])) if same else "not asked by the sidecar"
        found.differences.append(f"{one['method']} {_about(one)[1]}: {what}")
    for key, one in asked.items():
        if key in would or _about(one) in told_already:
            continue
        if one["method"] in READS:
            found.drivers.append(f"{one['method']} is not asked")
        elif _after_an_answer(one, told["asked"]):
            found.drivers.append(f"{one['method']} follows from an answer of the driver")
        else:
            found.differences.append(f"unforeseen: {one['method']} {_about(one)[1]}")


def _after_an_answer(one: Result, asked: list[Result]) -> bool:
    """Return True if the driver's answer led to the call: an error, or a volume that was
    rejected."""
    if one["method"] == "DeleteVolume" and not one["has_volume"]:
        return True
    earlier = asked[: asked.index(one)]
    return any(a["code"] != "OK" and _about(a) == _about(one) for a in earlier)


def _closed(driver: Result, found: Agreement) -> None:
    found.compared += driver["counts"].get(Verdict.AGREES.value, 0)
    for note in driver["differences"]:
        text = f"{note['path']}: {'; '.join(note['found'])}"
        if note["verdict"] in {Verdict.DIFFERS, "unforeseen"}:
            found.differences.append(f"{note['verdict']} {text}")
        else:
            found.drivers.append(f"{note['verdict']} {text}")


def _waiting(record: Result, told: Result, found: Agreement) -> None:
    """Judge a prediction that is open at the end of the case, after its quiet time."""
    path, base, wanted = record["path"], record["base"], record["wanted"]
    live = told["live"].get(path)
    verdict, fields = compare(path, base, wanted, live)
    text = f"{path}: {'; '.join(fields) or 'not done'}"
    if verdict is Verdict.AGREES:
        found.compared += 1
    elif verdict is Verdict.DIFFERS:
        found.differences.append(f"{verdict} {text}")
    elif verdict is Verdict.WAITS and not _is_the_drivers(record, told["asked"]):
        found.differences.append(f"open {text}")
    else:
        found.drivers.append(f"{verdict} {text}")


def _is_the_drivers(record: Result, asked: list[Result]) -> bool:
    """Return True if the sidecar sent the expected request but could not use the answer."""
    answers = {_key(one): one["code"] for one in asked}
    codes = [answers.get(_key(_short(call))) for call in record["calls"]]
    if not codes or None in codes:
        return False
    return record["wanted"] is not None or any(code != "OK" for code in codes)


def _short(call: Result) -> Result:
    return {"method": call["method"].rpartition("/")[2], "request": call["request"]}


def _unique(calls: list[Result]) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for one in calls:
        found.setdefault(_key(one), one)
    return found


def _key(one: Result) -> str:
    return json.dumps([one["method"], plain(one["request"])], sort_keys=True)


def _about(one: Result) -> tuple[str, str]:
    request = one["request"]
    return one["method"], next((str(request[n]) for n in NAMES if request.get(n)), "")


def _fields(ours: Result, theirs: Result) -> Iterator[str]:
    first, second = (dict(leaves(plain(one["request"]))) for one in (ours, theirs))
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            yield f"{name}: {first.get(name, '-')}, {second.get(name, '-')}"


def plain(value: Any) -> Any:
    """Return a request in one form: numbers as text (as in protobuf's JSON), no secrets."""
    if isinstance(value, dict):
        return {k: "***" if k == "secrets" else plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
