"""A CSI driver that answers by script and keeps each request as protobuf JSON."""

import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import grpc_tools
from google.protobuf.json_format import MessageToDict


def _load_messages():
    """Compile the CSI messages ($CSI_PROTO, package csi.v1) once, and import them."""
    proto = Path(
        os.environ.get("CSI_PROTO")
        or sys.exit("set CSI_PROTO to a csi.proto (package csi.v1, CSI 1.12)")
    ).resolve()
    out = tempfile.mkdtemp(prefix="golden-pb-")
    include = str(Path(grpc_tools.__file__).parent / "_proto")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{proto.parent}",
            f"-I{include}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            proto.name,
        ],
        check=True,
    )
    sys.path.insert(0, out)
    module = proto.stem.replace("-", "_")
    return importlib.import_module(f"{module}_pb2"), importlib.import_module(f"{module}_pb2_grpc")


pb, rpc = _load_messages()
CODES = {c.name: c for c in grpc.StatusCode}
CREATED = "2026-01-02T03:04:05Z"  # creation time of every snapshot unless a step has another


class Script:
    """The answers of one method: a list of steps, each used `times` times, the last one forever."""

    def __init__(self, steps):
        self.steps, self.used, self.lock = list(steps or [{}]), 0, threading.Lock()

    def next(self):
        with self.lock:
            step = self.steps[0]
            self.used += 1
            if len(self.steps) > 1 and self.used >= int(step.get("times", 1)):
                self.steps.pop(0)
                self.used = 0
            return step


class RecordingDriver(
    rpc.IdentityServicer, rpc.ControllerServicer, rpc.GroupControllerServicer, rpc.NodeServicer
):
    def __init__(self, spec, address):
        self.spec, self.calls, self.handshake, self.lock = spec, [], [], threading.Lock()
        self.published, self.snapshots, self.groups, self.scripts = (
            {},
            {},
            {},
            {},
        )  # the OK answers so far; the answers to come
        self.before_answer = None  # called with (recorded call, context) before the answer
        self.respond(spec.get("responses", {}))
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
        rpc.add_IdentityServicer_to_server(self, self.server)
        rpc.add_ControllerServicer_to_server(self, self.server)
        rpc.add_GroupControllerServicer_to_server(self, self.server)
        rpc.add_NodeServicer_to_server(self, self.server)
        self.server.add_insecure_port("unix://" + address)
        self.server.start()

    def stop(self):
        self.server.stop(0).wait(2)

    def respond(self, responses):
        """Set new answers for the named methods; `Method:id` means those for one object."""
        self.scripts.update({key: Script(steps) for key, steps in responses.items()})

    def count(self, method, code=None):
        with self.lock:
            return sum(
                1
                for c in self.calls
                if c["method"] == method and (c["code"] == code if code else c["code"] != "PENDING")
            )

    def snapshot(self):
        with self.lock:
            return [dict(c) for c in self.calls]

    def _step(self, method, context, request=None):
        name = next(
            (
                getattr(request, f)
                for f in ("volume_id", "snapshot_id", "group_snapshot_id", "name")
                if getattr(request, f, "")
            ),
            "",
        )
        script = self.scripts.get(f"{method}:{name}") or self.scripts.get(method)
        step = script.next() if script else {}
        if "pages" in step:  # {starting token: step}
            step = step["pages"].get(request.starting_token, {})
        if step.get("delay"):
            end = time.time() + step["delay"]
            while time.time() < end and context.is_active():
                time.sleep(0.05)
        return step

    # -- identity, node and capabilities: not recorded
    def _handshake(self, method, context, answer):
        self.handshake.append(method)
        step = self._step(method, context)
        if step.get("code"):
            context.abort(CODES[step["code"]], step.get("message", ""))
        if method == "Probe" and "ready" in step:
            answer.ready.value = step["ready"]
        return answer

    def Probe(self, request, context):
        return self._handshake("Probe", context, pb.ProbeResponse())

    def GetPluginInfo(self, request, context):
        return self._handshake(
            "GetPluginInfo",
            context,
            pb.GetPluginInfoResponse(name=self.spec["name"], vendor_version="1.0"),
        )

    def GetPluginCapabilities(self, request, context):
        answer = pb.GetPluginCapabilitiesResponse()
        for cap in self.spec.get("plugin_caps", []):
            if cap in ("ONLINE", "OFFLINE"):
                answer.capabilities.add().volume_expansion.type = (
                    pb.PluginCapability.VolumeExpansion.Type.Value(cap)
                )
            else:
                answer.capabilities.add().service.type = pb.PluginCapability.Service.Type.Value(cap)
        return self._handshake("GetPluginCapabilities", context, answer)

    def _rpc_caps(self, method, context, answer, kinds, caps):
        for cap in caps:
            answer.capabilities.add().rpc.type = kinds.RPC.Type.Value(cap)
        return self._handshake(method, context, answer)

    def ControllerGetCapabilities(self, request, context):
        return self._rpc_caps(
            "ControllerGetCapabilities",
            context,
            pb.ControllerGetCapabilitiesResponse(),
            pb.ControllerServiceCapability,
            self.spec.get("controller_caps", []),
        )

    def GroupControllerGetCapabilities(self, request, context):
        return self._rpc_caps(
            "GroupControllerGetCapabilities",
            context,
            pb.GroupControllerGetCapabilitiesResponse(),
            pb.GroupControllerServiceCapability,
            self.spec.get("group_caps", []),
        )

    def NodeGetCapabilities(self, request, context):
        return self._rpc_caps(
            "NodeGetCapabilities",
            context,
            pb.NodeGetCapabilitiesResponse(),
            pb.NodeServiceCapability,
            self.spec.get("node_caps", []),
        )

    def NodeGetInfo(self, request, context):
        node = self.spec.get("node", {})
        answer = pb.NodeGetInfoResponse(node_id=node.get("node_id", "node"))
        if "segments" in node:
            answer.accessible_topology.segments.update(node["segments"])
        return self._handshake("NodeGetInfo", context, answer)

    # -- controller: each method records itself and answers with the function _<Method>, if any
    def _record(self, method, request, context):
        entry = {
            "method": method,
            "request": MessageToDict(request, preserving_proto_field_name=True),
            "code": "PENDING",
        }
        with self.lock:
            self.calls.append(entry)
        if self.before_answer:
            self.before_answer(entry, context)
        step = self._step(method, context, request)
        answer = getattr(pb, method + "Response")()
        if not context.is_active():
            entry["code"] = "CLIENT_GONE"
            return answer
        if step.get("code"):
            entry["code"] = step["code"]
            context.abort(CODES[step["code"]], step.get("message", ""))
        with self.lock:
            getattr(self, "_" + method, lambda *_: None)(request, step, answer)
        entry["code"] = "OK"
        return answer

    def _CreateVolume(self, request, step, answer):
        size = step.get("capacity_bytes", "requested")
        volume = answer.volume
        volume.capacity_bytes = (
            request.capacity_range.required_bytes if size == "requested" else int(size)
        )
        volume.volume_id = step.get("volume_id", "h-{name}").replace("{name}", request.name)
        volume.volume_context.update(step.get("volume_context", {}))
        topology = step.get("accessible_topology", [])
        if topology == "preferred0":
            topology = [dict(t.segments) for t in request.accessibility_requirements.preferred[:1]]
        for segments in topology:
            volume.accessible_topology.add().segments.update(segments)
        source = step.get("content_source", "echo")
        if source == "echo" and request.HasField("volume_content_source"):
            volume.content_source.CopyFrom(request.volume_content_source)
        elif isinstance(source, dict):
            volume.content_source.snapshot.snapshot_id = source["snapshot_id"]

    def _GetCapacity(self, request, step, answer):
        segments = dict(request.accessible_topology.segments)
        for rule in step.get("by_segments", []):
            if rule["segments"] == segments:
                step = rule
        answer.available_capacity = int(step.get("available_capacity", 0))
        if "maximum_volume_size" in step:
            answer.maximum_volume_size.value = int(step["maximum_volume_size"])

    def _ControllerPublishVolume(self, request, step, answer):
        answer.publish_context.update(step.get("publish_context", {}))
        nodes = self.published.setdefault(request.volume_id, [])
        if request.node_id not in nodes:
            nodes.append(request.node_id)

    def _ControllerUnpublishVolume(self, request, step, answer):
        nodes = self.published.setdefault(request.volume_id, [])
        nodes[:] = [n for n in nodes if n != request.node_id]

    def _ListVolumes(self, request, step, answer):
        """Answer with the step's `entries`, or with what is published now."""
        truth = [
            {"volume_id": v, "published_node_ids": nodes}
            for v, nodes in sorted(self.published.items())
        ]
        for item in step.get("entries", truth):
            self._volume(item, answer.entries.add())
        answer.next_token = step.get("next_token", "")

    def _ControllerGetVolume(self, request, step, answer):
        truth = {
            "volume_id": request.volume_id,
            "published_node_ids": self.published.get(request.volume_id, []),
        }
        self._volume({**truth, **step}, answer)

    @staticmethod
    def _volume(item, answer):
        answer.volume.volume_id = item["volume_id"]
        answer.volume.capacity_bytes = int(item.get("capacity_bytes", 0))
        if item.get("no_status"):
            return
        answer.status.SetInParent()
        answer.status.published_node_ids.extend(item.get("published_node_ids", []))
        if "abnormal" in item:
            answer.status.volume_condition.abnormal = item["abnormal"]
            answer.status.volume_condition.message = item.get("condition", "")

    def _ControllerExpandVolume(self, request, step, answer):
        answer.capacity_bytes = int(
            step.get("capacity_bytes", request.capacity_range.required_bytes)
        )
        answer.node_expansion_required = step.get("node_expansion_required", False)

    def _CreateSnapshot(self, request, step, answer):
        name = step.get("snapshot_id", "s-{name}").replace("{name}", request.name)
        known = {"source_volume_id": request.source_volume_id, **step, "snapshot_id": name}
        self.snapshots[name] = known
        self._snapshot(known, answer.snapshot)

    def _DeleteSnapshot(self, request, step, answer):
        self.snapshots.pop(request.snapshot_id, None)

    def _ListSnapshots(self, request, step, answer):
        """Answer with the step's `entries`, or with the requested snapshot and step's fields."""
        entries = step.get("entries")
        if entries is None:
            entries = [
                s
                for s in (
                    self._known(n, step)
                    for n in (
                        [request.snapshot_id] if request.snapshot_id else sorted(self.snapshots)
                    )
                )
                if s
            ]
        for item in entries:
            self._snapshot(item, answer.entries.add().snapshot)
        answer.next_token = step.get("next_token", "")

    def _GetSnapshot(self, request, step, answer):
        self._snapshot(
            self._known(request.snapshot_id, step) or {"snapshot_id": request.snapshot_id},
            answer.snapshot,
        )

    def _known(self, name, step):
        fields = {
            k: v
            for k, v in step.items()
            if k
            in (
                "ready_to_use",
                "size_bytes",
                "creation_time",
                "creation_seconds",
                "source_volume_id",
                "group_snapshot_id",
            )
        }
        return (
            {**self.snapshots.get(name, {}), **fields, "snapshot_id": name}
            if name in self.snapshots or fields
            else None
        )

    @staticmethod
    def _snapshot(item, snapshot):
        snapshot.snapshot_id, snapshot.source_volume_id = (
            item["snapshot_id"],
            item.get("source_volume_id", ""),
        )
        snapshot.size_bytes, snapshot.ready_to_use = (
            int(item.get("size_bytes", 0)),
            item.get("ready_to_use", True),
        )
        snapshot.group_snapshot_id = item.get("group_snapshot_id", "")
        if "creation_seconds" in item:
            snapshot.creation_time.seconds = int(item["creation_seconds"])
        elif item.get("creation_time", CREATED):  # null: not set
            snapshot.creation_time.FromJsonString(item.get("creation_time", CREATED))

    def _CreateVolumeGroupSnapshot(self, request, step, answer):
        """Answer with the step's `snapshots`, or s-{name}-{volume} with its `member` fields."""
        group = step.get("group_snapshot_id", "g-{name}").replace("{name}", request.name)
        members = step.get("snapshots")
        if members is None:
            members = [
                {
                    "snapshot_id": f"s-{request.name}-{v}",
                    "source_volume_id": v,
                    "group_snapshot_id": group,
                    **step.get("member", {}),
                }
                for v in request.source_volume_ids
            ]
        known = {**step, "group_snapshot_id": group, "snapshots": members}
        self.groups[group] = known
        self.snapshots.update({m["snapshot_id"]: m for m in members})
        self._group(known, answer.group_snapshot)

    def _DeleteVolumeGroupSnapshot(self, request, step, answer):
        self.groups.pop(request.group_snapshot_id, None)

    def _GetVolumeGroupSnapshot(self, request, step, answer):
        self._group(
            {
                **self.groups.get(request.group_snapshot_id, {}),
                **step,
                "group_snapshot_id": request.group_snapshot_id,
            },
            answer.group_snapshot,
        )

    def _group(self, item, group):
        group.group_snapshot_id, group.ready_to_use = (
            item["group_snapshot_id"],
            item.get("ready_to_use", True),
        )
        for member in item.get("snapshots", []):
            self._snapshot(member, group.snapshots.add())
        if "creation_seconds" in item:
            group.creation_time.seconds = int(item["creation_seconds"])
        elif item.get("creation_time", CREATED):
            group.creation_time.FromJsonString(item.get("creation_time", CREATED))


RECORDED = (
    "CreateVolume",
    "DeleteVolume",
    "GetCapacity",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ListVolumes",
    "ControllerGetVolume",
    "ControllerExpandVolume",
    "ControllerModifyVolume",
    "CreateSnapshot",
    "DeleteSnapshot",
    "ListSnapshots",
    "GetSnapshot",
    "CreateVolumeGroupSnapshot",
    "DeleteVolumeGroupSnapshot",
    "GetVolumeGroupSnapshot",
)
for _method in RECORDED:
    setattr(
        RecordingDriver,
        _method,
        lambda self, request, context, method=_method: self._record(method, request, context),
    )
