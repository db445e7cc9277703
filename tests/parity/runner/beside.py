"""Runs a shadow next to a case's component, to compare its predictions with what the component did.

The shadow has a twin of the case's driver, so that its calls can be told apart from the
component's. It starts first and sees the case's changes first. A call of the component that changes
something waits briefly until the shadow predicts the same call: with a driver that answers at once,
nothing would be left to predict.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import redis
from csi_driver import RecordingDriver
from process import Component

from workers.queue.names import NAMES as REDIS_NAMES

START_SECONDS = 60
HEAD_START_SECONDS = 0.5
HOLD_SECONDS = 3
JUDGE_SECONDS = 5
READS = ("GetCapacity", "ListVolumes", "ControllerGetVolume", "ListSnapshots", "GetSnapshot")
COMPARED = (
    "PersistentVolume",
    "PersistentVolumeClaim",
    "VolumeAttachment",
    "VolumeSnapshot",
    "VolumeSnapshotContent",
    "VolumeGroupSnapshot",
    "VolumeGroupSnapshotContent",
)
COMPONENTS = (
    "csi-provisioner",
    "csi-attacher",
    "csi-resizer",
    "csi-snapshotter",
    "snapshot-controller",
)
OPEN = REDIS_NAMES["shadow_open"].full
FORESEEN = REDIS_NAMES["shadow_known"].full
PREFIXED = ("resync-period",)  # two controllers in one program have a value each
RACES = ("flight-02",)  # a pause would change the recorded outcome
NOT_SENT = "GRPC call not sent"
NAMES = ("volume_id", "snapshot_id", "group_snapshot_id", "name")


class Beside:
    """The shadow of one case. `command` and `report` are templates with {state} and {flags}."""

    def __init__(self, command, report, kubeconfig):
        self.template, self.report, self.kubeconfig = command, report, kubeconfig
        self.lock, self.held, self.met, self.lines = threading.Lock(), set(), [], []
        self.place, self.twin, self.process = 0, None, None

    # -- start and stop
    def start(self, run, components):
        """Start the shadow with the flags of the components; return when it is up or ended."""
        self.run, self.kube = run, run.kube
        self.state = Path(run.work, "shadow")
        address = str(Path(run.work, "twin.sock"))
        self.log = Path(run.logs, run.case["id"] + ".shadow.log")
        self.values = {
            "kubeconfig": self.kubeconfig,
            "csi_address": address,
            "state": str(self.state),
        }
        if "driver" in run.case:
            self.twin = RecordingDriver(run.case["driver"], address)
            run.driver.before_answer = self.hold
        flags, env = {}, {}
        for one in components:
            for flag, value in one.get("flags", {}).items():
                is_own = len(components) > 1 and flag in PREFIXED
                flags[f"{one['component']}-{flag}" if is_own else flag] = value
            env |= one.get("env", {})
        self.process = Component(
            ",".join(one["component"] for one in components),
            flags,
            env,
            self.values,
            {"*": self.template},
            self.log,
        )
        self.process.start()
        end = time.time() + START_SECONDS
        parts = [self.state / part for part in ("watcher", "worker-0")]
        while time.time() < end and self.process.exit_code() is None:
            if all(any(part.glob("*.ready")) for part in parts):
                break
            time.sleep(0.05)
        time.sleep(HEAD_START_SECONDS)

    @contextlib.contextmanager
    def ahead(self, action):
        """Stop the components until the shadow has seen what the action changes."""
        is_change = not {"wait", "respond", "stop", "start", "restart", "kill"} & action.keys()
        is_change &= self.run.case["id"] not in RACES
        parts = [
            part
            for part in self.run.parts
            if is_change and part.process and part.exit_code() is None
        ]
        for part in parts:
            os.killpg(part.process.pid, signal.SIGSTOP)
        try:
            yield
            if parts:
                time.sleep(HEAD_START_SECONDS)
        finally:
            for part in parts:
                os.killpg(part.process.pid, signal.SIGCONT)

    def respond(self, responses):
        if self.twin:
            self.twin.respond(responses)

    def stop(self):
        if self.process:
            self.process.close()
        if self.twin:
            self.twin.stop()

    # -- what the shadow would call
    def would(self):
        """Return the shadow's calls that were not sent, from its log."""
        with self.lock:
            with self.log.open("rb") as log:
                log.seek(self.place)
                text = log.read()
            text = text[: text.rfind(b"\n") + 1]
            self.place += len(text)
            for line in text.splitlines():
                if NOT_SENT.encode() in line:
                    told = json.loads(line)
                    method = told["method"].rpartition("/")[2]
                    self.lines.append({"method": method, "request": json.loads(told["content"])})
            return list(self.lines)

    def hold(self, entry, context):
        """Delay the answer to a component's call until the shadow predicts it, or time is up."""
        self.met.append({"entry": entry, "has_volume": self.has_volume(entry)})
        what = (entry["method"], about(entry["request"]))
        if entry["method"] in READS or what in self.held:
            return
        self.held.add(what)
        end = time.time() + min(HOLD_SECONDS, 0.6 * (context.time_remaining() or HOLD_SECONDS))
        while time.time() < end and context.is_active() and self.process.exit_code() is None:
            if any((one["method"], about(one["request"])) == what for one in self.would()):
                time.sleep(0.2)  # the shadow records what follows from the answer right after it
                break
            time.sleep(0.03)

    def has_volume(self, entry):
        handle = entry["request"].get("volume_id")
        volumes = self.run.now("PersistentVolume").values()
        return any(handle and handle in json.dumps(v["spec"]) for v in volumes)

    # -- results
    def told(self):
        """Return everything that is needed to judge the case."""
        found = {"exit_code": self.process.exit_code(), "would": self.would()}
        found["handshake"] = sorted(set(self.twin.handshake)) if self.twin else []
        found["called"] = self.twin.snapshot() if self.twin else []
        found["asked"] = [{**m["entry"], "has_volume": m["has_volume"]} for m in self.met]
        found["report"], found["live"], found["foreseen"] = {}, {}, []
        found["wrote"] = self.wrote()
        if found["exit_code"] is None:
            self.wait_judged()
            found["foreseen"] = self.foreseen()
            line = self.report
            for key, value in self.values.items():
                line = line.replace("{" + key + "}", value)
            answer = subprocess.run(line.split(), capture_output=True, text=True, check=False)
            if answer.returncode not in (0, 1):
                raise RuntimeError(f"{line}: {answer.stderr}")
            found["report"] = json.loads(answer.stdout)["drivers"]
        for driver in found["report"].values():
            for waiting in driver["waiting"]:
                url = self.kube.server + waiting["path"]
                found["live"][waiting["path"]] = self.now(url)
        return found

    def wait_judged(self):
        """Wait until predictions have a verdict; most have one after the judge has looked twice."""
        end = time.time() + JUDGE_SECONDS
        with redis.Redis(unix_socket_path=str(self.state / "redis.sock")) as client:
            while time.time() < end:
                if not sum(client.hlen(name) for name in client.scan_iter(match=f"{OPEN}*")):
                    break
                time.sleep(0.2)

    def now(self, url):
        """Return the object as the shadow's judge reads it."""
        obj = self.kube.call("GET", url, missing_ok=True)
        if obj:
            obj["metadata"].pop("managedFields", None)
        return obj

    def foreseen(self):
        """Return the paths of all objects that the shadow ever predicted to be written."""
        with redis.Redis(unix_socket_path=str(self.state / "redis.sock")) as client:
            families = client.scan_iter(match=f"{FORESEEN}*")
            return sorted(path.decode() for family in families for path in client.smembers(family))

    def wrote(self):
        """Return the paths of the objects that the component changed, by their managedFields."""
        found = set()
        for kind in COMPARED:
            for _, obj in self.run.seen(kind):
                managers = {one["manager"] for one in obj["metadata"].get("managedFields", [])}
                if managers & set(COMPONENTS):
                    url = self.kube.url(kind, obj["metadata"].get("namespace"))
                    found.add(f"{url}/{obj['metadata']['name']}".removeprefix(self.kube.server))
        return sorted(found)


def about(request):
    return next((request[name] for name in NAMES if request.get(name)), "")
