"""A permission that is missing for a while costs only time, and the log and `explain` name it.

Each row removes one verb on one resource from one account during work, until the log and `explain`
of each waiting object name it. Then it is restored. Nothing is lost or left over, no process exits
or causes a storm of refused requests, and all work finishes by itself. Each row waits in a
different place: a volume that is not saved yet, a status, a finalizer, a deletion, a secret, a
list. tests/e2e/test_rbac_removed.py shows that each permission is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.fleet import Scene
from tests.support.kube_api import JsonObject
from tests.support.life import CAPABILITIES, CONTROLLERS, FLAGS, Life, Operation
from tests.support.rights import ShippedWorld
from tests.support.shipped import K8S, RECORDS, kubeconfig_for
from tests.support.tool import Tool
from tests.support.waiting import wait_until

COMPONENTS = sorted(one.name for one in (K8S / "components").glob("controller-*"))
CONTENTS = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents"
# Each key backs off longer after each refusal; a slower machine has fewer refusals.
MOST_REFUSALS_PER_SECOND = 15.0
NAMED_SECONDS, DONE_SECONDS = 60, 120


class Right(NamedTuple):
    """Permission for one verb. `resource` may have a subresource."""

    account: str
    verb: str
    group: str
    resource: str

    @property
    def words(self) -> str:
        """The words that the API server uses when it refuses."""
        return f'cannot {self.verb} resource "{self.resource}"'


class World(ShippedWorld):
    """Every controller with the permissions in k8s/, the shipped Redis and one driver."""

    def __init__(self, redis_binary: str, directory: Path) -> None:
        capabilities = f"{CAPABILITIES},CLONE_VOLUME"
        super().__init__(
            redis_binary,
            directory,
            components=COMPONENTS,
            driver_arguments=[f"--capabilities={capabilities}"],
        )
        self.tool = Tool(self.plane.kubeconfig, self.redis.url)
        self.tool.flags = [f"--kubeconfig={self.plane.kubeconfig}", *self.redis.login("operator")]

    def start(self) -> None:
        """Start watcher and worker."""
        self.start_part("watcher")
        self.start_part("worker", f"--csi-address={self.driver.address}", *FLAGS)

    def start_part(self, name: str, *flags: str, wait: bool = True) -> None:
        """Start a component. Use `wait=False` if it cannot become ready."""
        common = (f"--namespace={RECORDS}", f"--controllers={CONTROLLERS}")
        self.parts.start(name, kubeconfig_for(self.plane, name), *common, *flags, wait=wait)

    @contextmanager
    def without(self, right: Right) -> Iterator[None]:
        """Remove the permission from every role of the account while the block runs."""
        roles = self.roles_of(right.account)
        try:
            for role in roles:
                self.api.apply({**role, "rules": list(_rules_without(role["rules"], right))})
            self._wait_allowed(right, wanted=False)
            yield
        finally:
            for role in roles:
                self.api.apply(role)
            self._wait_allowed(right, wanted=True)

    def refusals(self, right: Right) -> int:
        """Return how often the API server has refused the permission so far."""
        name, _, sub = right.resource.partition("/")
        return self.answers(
            right.account, right.group, name, code=403, verb=right.verb, subresource=sub
        )

    def left_over(self) -> dict[str, Any]:
        """Return the volumes, snapshots, contents and intent copies that are left."""
        maps = self.api.items(f"/api/v1/namespaces/{RECORDS}/configmaps")
        found = {
            "volumes": sorted(self.driver.volumes()),
            "snapshots": sorted(self.driver.snapshots()),
            "contents": [one["metadata"]["name"] for one in self.api.items(CONTENTS)],
            "records": [
                one["metadata"]["name"] for one in maps if "intent" in one["metadata"]["name"]
            ],
        }
        return {name: ones for name, ones in found.items() if ones}

    def _wait_allowed(self, right: Right, *, wanted: bool) -> None:
        verbs = {right.verb}
        self.wait_allowed(right.account, right.group, right.resource, verbs, wanted=wanted)


class RestoringLife(Life):
    """A life with a restore and a clone."""

    def prepare(self) -> None:
        """Prepare as usual, and take one more snapshot, which stays."""
        super().prepare()
        self._cut("kept")
        wait_until(lambda: self._is_ready("kept"), 60, "the kept snapshot is ready")

    def operations(self) -> dict[str, Operation]:
        """Return all operations with clone and restore.

        `explain` is called for the snapshot, not for its content.
        """
        group, found = {"apiGroup": "snapshot.storage.k8s.io"}, super().operations()
        old = ("snapshot", f"{self.scene.namespace}/{self.name}-old")
        return found | {
            "delete-snapshot": replace(found["delete-snapshot"], explained=old),
            "clone": self._sourced("clone", {"kind": "PersistentVolumeClaim"}, "is-cut"),
            "restore": self._sourced("restore", {"kind": "VolumeSnapshot", **group}, "kept"),
        }

    def clean_up(self) -> None:
        """Delete the snapshot that stayed, too."""
        self.api.delete(self._snapshot_path("kept"))
        super().clean_up()

    def _sourced(self, name: str, kind: dict[str, str], source: str) -> Operation:
        own, data = f"{self.name}-{name}", {**kind, "name": f"{self.name}-{source}"}
        return Operation(
            "CreateVolume",
            lambda: self.scene.claim(own, self.storage_class, dataSource=data),
            lambda: self._claimed(name)["status"]["phase"] == "Bound",
            ("pvc", f"{self.scene.namespace}/{own}"),
        )


def _rules_without(rules: list[JsonObject], right: Right) -> Iterator[JsonObject]:
    for rule in rules:
        if right.group not in rule["apiGroups"] or right.resource not in rule["resources"]:
            yield rule
            continue
        others = [one for one in rule["resources"] if one != right.resource]
        verbs = [one for one in rule["verbs"] if one != right.verb]
        if others:
            yield {**rule, "resources": others}
        if verbs:
            yield {**rule, "resources": [right.resource], "verbs": verbs}


@pytest.fixture(scope="module")
def world(redis_binary, tmp_path_factory):
    world = World(redis_binary, tmp_path_factory.mktemp("rights"))
    try:
        world.start()
        yield world
    finally:
        world.close()


@pytest.fixture
def life(world):
    scene = Scene(world.api)
    scene.secret("login", user="bWU=")
    life = RestoringLife(scene, world.driver, "login")
    yield life
    life.clean_up()
    scene.clean_up()


STORAGE, SNAPSHOT = "storage.k8s.io", "snapshot.storage.k8s.io"
NEW = {"create", "clone", "restore"}
ALL = NEW | {"delete", "attach", "detach", "expand", "modify", "snapshot", "delete-snapshot"}
# The operations that wait without each permission. An operation that began before the refusal
# continues: a volume is created, but not saved.
ROWS = [
    (Right("worker", "create", "", "persistentvolumes"), NEW),
    (
        Right("worker", "patch", "", "persistentvolumes"),
        {"delete", "attach", "expand", "modify"},
    ),
    (Right("worker", "patch", "", "persistentvolumeclaims/status"), {"expand", "modify"}),
    (Right("worker", "patch", STORAGE, "volumeattachments"), {"attach", "detach"}),
    (Right("worker", "delete", SNAPSHOT, "volumesnapshotcontents"), {"delete-snapshot"}),
    (Right("worker", "get", "", "secrets"), ALL),
    (Right("watcher", "list", "", "persistentvolumeclaims"), NEW | {"expand", "modify"}),
]


@pytest.mark.parametrize(
    ("right", "waiting"),
    [pytest.param(*row, id=f"{row[0].account} cannot {row[0].verb} {row[0].resource}")
     for row in ROWS],
)  # fmt: skip
def test_what_waits_for_a_right_names_it_and_goes_on_with_it(world, life, right, waiting):
    life.prepare()
    lengths = {name: len(world.parts.log_text(name)) for name in world.parts.processes}
    refused, begun = world.refusals(right), time.monotonic()
    with world.without(right):
        if right.account == "watcher":
            # The API server checks the permission only when a watch begins, so the watch must begin
            # again.
            world.parts.stop("watcher")
            world.start_part("watcher", wait=False)
        life.begin()
        wait_until(lambda: set(life.undone()) == waiting, NAMED_SECONDS, "the others are done")
        wait_until(
            lambda: right.words in new_log(world, right.account, lengths),
            NAMED_SECONDS,
            "the log names it",
        )
        for name in sorted(waiting):
            asked = life.operations()[name].explained
            wait_until(
                lambda asked=asked: right.words in world.tool.explain(*asked),
                NAMED_SECONDS,
                f"explain names it for {name}",
            )
        assert set(life.undone()) == waiting
        per_second = (world.refusals(right) - refused) / (time.monotonic() - begun)
        assert 0 < per_second < MOST_REFUSALS_PER_SECOND

    wait_until(lambda: not life.undone(), DONE_SECONDS, "everything is done by itself")
    for name, process in world.parts.processes.items():
        assert process.is_running(), name
        assert "Traceback" not in new_log(world, name, lengths)
    life.clean_up()
    life.scene.clean_up()
    wait_until(lambda: nothing_left(world), DONE_SECONDS, "nothing is left")


def nothing_left(world):
    left = world.left_over()
    assert not left, left
    return True


def new_log(world, name, lengths):
    """Return the log since the given lengths, with the quotes in its fields unescaped."""
    return world.parts.log_text(name)[lengths[name] :].replace('\\"', '"')
