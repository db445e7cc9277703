"""Replaces volatile values by placeholders, in the same way for every recording."""

import json
import re
import time
from datetime import datetime

DROP_META = (
    "managedFields",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "selfLink",
)


def strip_meta(obj):
    meta = {k: v for k, v in obj["metadata"].items() if k not in DROP_META}
    if "deletionTimestamp" in meta:
        meta["deletionTimestamp"] = "<TIME>"
        meta.pop("deletionGracePeriodSeconds", None)
    if "finalizers" in meta:
        meta["finalizers"] = sorted(meta["finalizers"])
    return meta


def status(obj):
    """Return the status without the condition that Kubernetes 1.37 itself puts on every claim."""
    found = dict(obj["status"])
    left = [c for c in found.pop("conditions", []) if c["type"] != "Unused"]
    return {**found, "conditions": left} if left else found


def recent(value, seconds):
    """Return a placeholder for a time of this run; keep a fixed time of the case's data."""
    return "<TIME>" if abs(seconds - time.time()) < 86400 else value


def plain(thing):
    """Return a copy without resource versions and without recent times given as nanoseconds."""
    if isinstance(thing, dict):
        return {
            k: "<HOLDER>" if k == "holderIdentity" else plain(v)
            for k, v in thing.items()
            if k != "resourceVersion"
        }
    if isinstance(thing, list):
        return [plain(v) for v in thing]
    return recent(thing, thing / 1e9) if type(thing) is int else thing


class Normalizer:
    def __init__(self, case, hostname):
        self.case, self.hostname, self.pairs, self.counter = case, hostname, [], {}
        flags = case.get("flags", case.get("provisioner_flags", {}))
        self.prefix = flags.get("volume-name-prefix", "pvc")
        self.length = int(flags.get("volume-name-uuid-length", -1))

    def learn(self, uid, name):
        """Remember a UID under a name: Kind/name, or the name of a claim or snapshot.

        A second gets #2.
        """
        if any(uid == known for known, _ in self.pairs):
            return
        name = self.text(name)
        self.counter[name] = self.counter.get(name, 0) + 1
        label = name if self.counter[name] == 1 else f"{name}#{self.counter[name]}"
        self.pairs.append((uid, f"<UID:{label}>"))
        dashless = uid.replace("-", "")
        if self.length >= 0:
            self.pairs.append(
                (
                    f"{self.prefix}-{dashless[: self.length]}",
                    f"{self.prefix}-<UID:{label}:first-{self.length}-dashless>",
                )
            )
        self.pairs.append((dashless, f"<UID:{label}:dashless>"))

    def text(self, text):
        for raw, label in self.pairs:
            text = text.replace(raw, label)
        driver = re.escape(self.case.get("driver", {}).get("name", "-"))
        text = re.sub(r"\b\d{13}-\d{1,4}-" + driver, "<IDENTITY>", text)
        if "record" in self.case:
            text = re.sub(
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z",
                lambda m: recent(m.group(), datetime.fromisoformat(m.group()).timestamp()),
                text,
            )
        # It is chance whether the client's or the server's clock ended the call.
        text = text.replace(
            "code = DeadlineExceeded desc = Deadline Exceeded",
            "code = DeadlineExceeded desc = context deadline exceeded",
        )
        text = text.replace(
            '"message": "Deadline Exceeded"', '"message": "context deadline exceeded"'
        )
        text = re.sub(r"(127\.0\.0\.1|localhost):\d+", "<APISERVER>", text)
        text = re.sub(
            r"Got \{(\w*) \[\][^\"]*?\}(?=\")", r"Got \1", text
        )  # in a dumped status only the phase counts
        # a dumped volume
        return re.sub(r"PV:\{TypeMeta:.*?\}\. Error", "PV:<PV>. Error", text)

    def value(self, thing):
        return json.loads(self.text(json.dumps(thing, sort_keys=True, ensure_ascii=False)))

    def volume(self, pv):
        spec = dict(pv["spec"])
        if "claimRef" in spec:
            spec["claimRef"] = dict(spec["claimRef"])
            if "resourceVersion" in spec["claimRef"]:
                spec["claimRef"]["resourceVersion"] = "<RESOURCE_VERSION>"
        return self.value({"metadata": strip_meta(pv), "spec": spec})

    def state(self, obj):
        rest = {k: v for k, v in obj.items() if k not in ("metadata", "kind", "apiVersion")}
        if "status" in rest:
            rest["status"] = status(obj)
        return self.value(plain({"metadata": strip_meta(obj), **rest}))

    def component(self, source):
        return re.sub(
            r"_[0-9a-f]{8}-[0-9a-f-]{27}$",
            "_<RANDOM>",
            source.replace(f"_{self.hostname}_", "_<HOST>_"),
        )
