"""Runs commands and the watcher against a hostile Redis, to test how they handle its records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import redis

from tests.support.memory_api import MemoryApi
from watcher.keeper import Keeper
from watcher.machine import Machine
from workers.cli import explain, failed, pause, shadow, status
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.settings import RedisSettings, Settings
from workers.config.toolflags import ToolSettings
from workers.controllers import catalogue
from workers.controllers.provisioner.filters import keys_of_unsaved
from workers.controllers.provisioner.served import Drivers
from workers.kube import paths
from workers.queue.catalog import CatalogWriter
from workers.queue.recovery import Recovery
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

# The objects that `explain` is asked about: those of `cluster`, by noun.
ASKED = ("pvc team/own", "pv pvc-u1", "va attached", "volumesnapshotcontent content")


def cluster(driver: str) -> MemoryApi:
    """Return a class, a waiting claim, a volume and an attachment of one driver."""
    api = MemoryApi()
    api.add(paths.STORAGE_CLASSES, {"metadata": {"name": "one"}, "provisioner": driver})
    provisioned = {"volume.kubernetes.io/storage-provisioner": driver}
    claim = {"namespace": "team", "name": "own", "uid": "u1", "annotations": provisioned}
    api.add(
        paths.CLAIMS,
        {"metadata": claim, "spec": {"storageClassName": "one"}, "status": {"phase": "Pending"}},
    )
    source = {"csi": {"driver": driver, "volumeHandle": "h"}}
    dynamic = {"pv.kubernetes.io/provisioned-by": driver}
    api.add(
        paths.VOLUMES,
        {
            "metadata": {"name": "pvc-u1", "annotations": dynamic},
            "spec": {**source, "persistentVolumeReclaimPolicy": "Delete"},
            "status": {"phase": "Released"},
        },
    )
    spec = {"attacher": driver, "nodeName": "n", "source": {"persistentVolumeName": "pvc-u1"}}
    api.add(paths.ATTACHMENTS, {"metadata": {"name": "attached"}, "spec": spec})
    return api


@dataclass
class Desk:
    """A person who runs commands, and a watcher, on one Redis."""

    client: redis.Redis
    driver: str
    api: MemoryApi = field(init=False)

    def __post_init__(self) -> None:
        self.api = cluster(self.driver)

    def tools(self, *arguments: str, **tool: Any) -> Tools:
        """Return the connections of one command to the objects of this test."""
        at_hand = RedisSettings(url="redis://at-hand:6379/0")
        settings = Settings(command=Command.PAUSE, redis=at_hand)
        made = Tools(replace(settings, arguments=arguments, tool=ToolSettings(**tool)))
        made.__dict__.update(redis=self.client, kube=self.api.kube, publish=lambda _: None)
        return made

    def ask(self, output: str) -> None:
        """Run everything that shows the content of Redis."""
        for asked in ASKED:
            explain.run(self.tools(*asked.split(), output=output))
        status.run(self.tools(output=output))
        failed.run(self.tools(output=output))
        shadow.run(self.tools("report", output=output))

    def stop(self) -> None:
        """Pause a driver on all its nodes."""
        pause.run(self.tools(driver=self.driver))

    def watch(self) -> None:
        """Run one check of a watcher, and its recovery of records."""
        queue = WorkQueue(self.client, publish=lambda _: None)
        machine = Machine(
            catalogue.SPECS,
            cast("Any", _Nowhere()),
            chosen=(),
            epoch=lambda: "e",
            follow=lambda *_: None,
        )
        machine.begin()
        Keeper(
            queue,
            CatalogWriter(self.client),
            DriverRegistry(self.client),
            on_epoch=lambda _: None,
            on_drivers=machine.set_records,
        ).step()
        drivers = Drivers.of_records(machine.records_of("provisioner"))
        Recovery(self.client, queue, period_seconds=0.001).run(
            lambda volume: keys_of_unsaved(volume, drivers)
        )


class _Nowhere:
    """An outbox that sends nothing."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_options: None
