"""Compares a recorded case with an actual one, field by field.

Repetition counts are compared as 'once' or 'repeated' unless the case says exact.
"""

import json


def _shown(value, length=300):
    return json.dumps(value, ensure_ascii=False)[:length]


def _walk(path, want, got, out):
    if isinstance(want, dict) and isinstance(got, dict):
        for key in sorted(set(want) | set(got)):
            if key not in want:
                out.append(f"{path}.{key}: unexpected {_shown(got[key])}")
            elif key not in got:
                out.append(f"{path}.{key}: missing, recorded {_shown(want[key])}")
            else:
                _walk(f"{path}.{key}", want[key], got[key], out)
    elif isinstance(want, list) and isinstance(got, list):
        for i in range(max(len(want), len(got))):
            if i >= len(got):
                out.append(f"{path}[{i}]: missing, recorded {_shown(want[i])}")
            elif i >= len(want):
                out.append(f"{path}[{i}]: unexpected {_shown(got[i])}")
            else:
                _walk(f"{path}[{i}]", want[i], got[i], out)
    elif want != got:
        out.append(f"{path}: recorded {_shown(want, 400)} got {_shown(got, 400)}")


def _sort_affinity(pv):
    """Sort the expressions of node selector terms, whose order is random in the Go sidecar."""
    for term in (
        pv.get("spec", {}).get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms", [])
    ):
        term.get("matchExpressions", []).sort(key=lambda e: json.dumps(e, sort_keys=True))


def _prepare(record, rules, components):
    record = json.loads(json.dumps(record))
    exact = rules.get("exact_counts", False)
    for part in ("csi_calls", "events"):
        for item in record.get(part, []):
            if not exact:
                item["count"] = "once" if item["count"] == 1 else "repeated"
            if part == "csi_calls" and (item["method"], item["code"]) == ("DeleteVolume", "OK"):
                item.pop(
                    "count"
                )  # csi-provisioner repeats it if the last update races with the finalizer
                continue
            if part == "events" and item["reason"] == "Provisioning":
                item.pop("count", None)
            if part == "events" and not components:
                item.pop("component", None)
    for name in rules.get("any_count", []):  # a part of the record, or one CSI method
        for item in record.get(
            name, [c for c in record.get("csi_calls", []) if c["method"] == name]
        ):
            item.pop("count", None)
    if rules.get("csi_calls") == "set":
        unique = {}
        for item in record.get("csi_calls", []):
            item.pop("count", None)
            unique[json.dumps(item, sort_keys=True)] = item
        record["csi_calls"] = [unique[k] for k in sorted(unique)]
    for state in (
        s for states in record.get("objects", {}).values() for s in states if isinstance(s, dict)
    ):
        state.get("status", {}).get("conditions", []).sort(
            key=lambda c: c["type"]
        )  # a map list: its order carries no meaning
    loose = rules.get(
        "objects", {}
    )  # "final", or {Kind: "final"}: only the last state of the objects
    for name, states in record.get("objects", {}).items():
        if loose == "final" or (
            isinstance(loose, dict) and loose.get(name.split("/")[0]) == "final"
        ):
            record["objects"][name] = states[-1:]
    record["events"] = sorted(record.get("events", []), key=lambda x: json.dumps(x, sort_keys=True))
    for pv in record.get("pv", []):
        _sort_affinity(pv)
    return record


def differences(case, actual, ignore=(), components=False):
    rules = case.get("compare", {})
    want, got = (_prepare(r, rules, components) for r in (case["recorded"], actual))
    for part in list(ignore) + rules.get("ignore", []):
        want.pop(part, None)
        got.pop(part, None)
    out = []
    _walk("", want, got, out)
    return out
