"""Three drivers with a class each, with an API server in memory and a real Redis.

The world for tests of the commands that show what waits: `pending`, `explain driver`, the page
`/fleet`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.memory_api import MemoryApi
from tests.support.taking import take
from workers.cli import pending
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.settings import RedisSettings, Settings
from workers.config.toolflags import ToolSettings
from workers.kube import paths
from workers.observability import trail
from workers.queue.catalog import CatalogWriter
from workers.queue.keys import Key
from workers.queue.presence import Presence
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

if TYPE_CHECKING:
    import redis

DRIVERS = [f"d{number}.csi.example.org" for number in range(3)]
CREATED = "2026-01-01T00:00:00Z"


class World:
    """Three drivers with a class each; the test adds the claims."""

    def __init__(self, client: redis.Redis, url: str) -> None:
        self.api, self.client, self.url = MemoryApi(), client, url
        self.queue = WorkQueue(client, publish=lambda _: None)
        CatalogWriter(client).epoch()
        Presence(client).announce("watcher")
        self.queue.register_process()
        for number, name in enumerate(DRIVERS):
            record = {"name": name, "queue_name": name, "controllers": ["provisioner", "attacher"]}
            DriverRegistry(client).register(name, record, ttl_seconds=60)
            body = {"metadata": {"name": f"class{number}"}, "provisioner": name}
            self.api.add(paths.STORAGE_CLASSES, body)

    def claim(
        self, name: str, storage_class: str, namespace: str = "shop", phase: str = "Pending"
    ) -> Key:
        """Add a claim; return the key of its work."""
        uid = f"uid-{namespace}-{name}"
        metadata = {
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "creationTimestamp": CREATED,
            "annotations": {"volume.kubernetes.io/storage-provisioner": "x"},
        }
        spec = {"storageClassName": storage_class}
        self.api.add(paths.CLAIMS, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})
        return Key("claims", f"d{storage_class[-1]}.csi.example.org", f"{namespace}/{name}", uid)

    def fail(self, key: Key, error: str) -> None:
        """Let an attempt of the key fail; the next attempt is far in the future."""
        self.queue.set_limits(key.lane, 10)
        self.queue.add([key])
        lease = take(self.queue, key)
        assert lease is not None
        with trail.collect():
            trail.note("error", error)
            self.queue.fail(lease, base_seconds=100, cap_seconds=100)

    def tools(
        self, command: Command = Command.PENDING, arguments: tuple[str, ...] = (), **tool: Any
    ) -> Tools:
        """Return the connections of a command."""
        settings = Settings(
            command=command,
            arguments=arguments,
            redis=RedisSettings(url=self.url),
            tool=ToolSettings(**tool),
        )
        made = Tools(settings)
        made.__dict__.update(kube=self.api.kube)
        return made

    def groups(self, capsys: Any, **tool: Any) -> Any:
        """Return the groups of `pending` as JSON values."""
        assert pending.run(self.tools(output="json", **tool)) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["apiVersion"], report["kind"]) == ("csi-fleet.io/v1", "Pending")
        assert sum(one["count"] for one in report["groups"]) == report["waiting"]
        return report["groups"]
