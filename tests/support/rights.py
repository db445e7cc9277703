"""Watcher and worker on the rights in k8s/, and a way to take one of them away.

```
with RightsWorld(redis_binary, directory) as world:
    world.take_away("worker", "", "secrets")
    ...                                        # world.refusals("worker", "", "secrets") > 0
    world.give_back()
```
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.components import Components
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.kube_api import JsonObject
from tests.support.pods import reference
from tests.support.processes import Process
from tests.support.secure_redis import SecureRedis
from tests.support.shipped import NAMESPACE, RECORDS, install, kubeconfig_for
from tests.support.waiting import wait_until

CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,LIST_VOLUMES,GET_CAPACITY,CREATE_DELETE_SNAPSHOT,"
    "CLONE_VOLUME,MODIFY_VOLUME,PUBLISH_UNPUBLISH_VOLUME"
)
ZONE = "zone.csi.example.org"
POD = "worker-1"
WORKER_FLAGS = (
    f"--namespace={RECORDS}",
    "--retry-interval-start=200ms",
    "--retry-interval-max=1s",
    "--timeout=8s",
    "--enable-capacity",
    "--capacity-ownerref-level=2",
    # Only what events trigger is published, so that the effect of a missing permission is visible.
    "--capacity-poll-interval=1h",
    "--feature-gates=CrossNamespaceVolumeDataSource=true",
)


class ShippedWorld:
    """A control plane with RBAC and an audit log, the objects of k8s/, the shipped Redis, and
    one driver.

    Args:
        redis_binary: the server.
        directory: for everything.
        components: of k8s/components, installed too.
        driver_arguments: flags of the driver.
    """

    def __init__(
        self,
        redis_binary: str,
        directory: Path,
        *,
        components: Sequence[str] = (),
        driver_arguments: Sequence[str],
    ) -> None:
        self.plane = ControlPlane(directory / "plane", audit_log=True).start()
        self.api = self.plane.api()
        self.objects = install(self.api, *components)
        self.redis = SecureRedis(redis_binary, directory / "redis").start()
        self.driver = DirectoryDriver(arguments=list(driver_arguments)).start()
        self.parts = Components(directory / "parts", self.redis)

    def close(self) -> None:
        """Stop everything."""
        self.parts.stop()
        self.driver.close()
        self.redis.stop()
        self.api.close()
        self.plane.stop()

    def answers(
        self,
        account: str,
        group: str,
        resource: str,
        *,
        code: int,
        verb: str = "",
        subresource: str | None = None,
    ) -> int:
        """Return how often the API server gave this answer; without `subresource`, for all
        subresources."""
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        found = 0
        for line in self.plane.audit_log.read_text().splitlines():
            if f'"code":{code}' not in line or not line.endswith("}"):
                continue
            event = json.loads(line)
            target = event.get("objectRef", {})
            found += (
                event["user"]["username"] == user
                and target.get("resource") == resource
                and target.get("apiGroup", "") == group
                and verb in {"", event["verb"]}
                and subresource in {None, target.get("subresource", "")}
            )
        return found

    def roles_of(self, account: str) -> list[JsonObject]:
        """Return the roles that are bound to the account."""
        bound = {
            (one["roleRef"]["kind"], one["roleRef"]["name"])
            for one in self.objects
            if one["kind"].endswith("Binding")
            and any(subject["name"] == account for subject in one["subjects"])
        }
        return [one for one in self.objects if (one["kind"], one["metadata"]["name"]) in bound]

    def wait_allowed(
        self, account: str, group: str, resource: str, verbs: set[str], *, wanted: bool
    ) -> None:
        """Wait until the API server has the new permission; `resource` may have a subresource."""
        place = RECORDS if resource == "configmaps" else NAMESPACE
        name, _, subresource = resource.partition("/")
        # The one that a watcher may write; others may each.
        object_name = "csi-fleet-pauses" if resource == "configmaps" else ""

        def is_allowed(verb: str) -> bool:
            answer = self.api.create(
                {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SubjectAccessReview",
                    "metadata": {},
                    "spec": {
                        "user": f"system:serviceaccount:{NAMESPACE}:{account}",
                        "resourceAttributes": {"namespace": place, "verb": verb, "group": group,
                                               "resource": name, "subresource": subresource,
                                               "name": object_name},
                    },
                }
            )  # fmt: skip
            return bool(answer["status"]["allowed"])

        wait_until(lambda: all(is_allowed(one) == wanted for one in verbs), 15, "RBAC follows")


class RightsWorld(ShippedWorld):
    """A world with both components, in which permissions for whole resources are taken away."""

    def __init__(self, redis_binary: str, directory: Path) -> None:
        arguments = (f"--capabilities={CAPABILITIES}", f"--topology={ZONE}=a")
        super().__init__(redis_binary, directory, driver_arguments=arguments)
        self._changed: list[JsonObject] = []

    def start(self) -> None:
        """Create the pod that the worker names, then start both components."""
        self._add_pod()
        self.add_node("node-1")
        self.start_watcher()
        self.start_main_worker()

    def start_main_worker(self, *, wait: bool = True) -> None:
        """Start the worker that all scenarios share; without `wait`, also next to a broken
        watcher."""
        lease = ("--leader-election", f"--leader-election-namespace={NAMESPACE}")
        self.start_worker("worker", *lease, wait=wait)

    def start_watcher(self, *, wait: bool = True) -> None:
        """Start the watcher; without `wait`, also if it cannot list everything."""
        kubeconfig = kubeconfig_for(self.plane, "watcher")
        self.parts.start("watcher", kubeconfig, f"--namespace={RECORDS}", wait=wait)

    def start_worker(self, name: str, *flags: str, wait: bool = True) -> Process:
        """Start one more worker process."""
        return self.parts.start(
            "worker",
            kubeconfig_for(self.plane, "worker"),
            f"--csi-address={self.driver.address}",
            *WORKER_FLAGS,
            *flags,
            name=name,
            wait=wait,
            POD_NAME=POD,
            NAMESPACE=NAMESPACE,
        )

    def is_ready(self, name: str) -> bool:
        """Return True if a component reports that it is ready."""
        return any((self.parts.directory / f"state-{name}").glob("*.ready"))

    def add_node(self, name: str) -> None:
        """Add a node on which the driver runs."""
        meta = {"name": name, "labels": {ZONE: "a"}}
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        drivers = [{"name": self.driver.name, "nodeID": name, "topologyKeys": [ZONE]}]
        self.api.create(
            {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
             "spec": {"drivers": drivers}}
        )  # fmt: skip

    def lose_redis_data(self) -> None:
        """Empty Redis, as on a first start: then only what the API server shows is known."""
        with self.redis.client("operator") as client:
            client.flushall()

    def take_away(self, account: str, group: str, resource: str) -> None:
        """Remove every verb of the account on the resource, and wait until this takes effect."""
        verbs = set()
        for role in self.roles_of(account):
            body = copy.deepcopy(role)
            for rule in body["rules"]:
                if group in rule["apiGroups"] and resource in rule["resources"]:
                    verbs |= set(rule["verbs"])
                    rule["resources"] = [one for one in rule["resources"] if one != resource]
            body["rules"] = [one for one in body["rules"] if one["resources"]]
            if body != role:
                self._changed.append(role)
                self.api.apply(body)
        assert verbs, f"{account} has no right on {resource}"
        self.wait_allowed(account, group, resource, verbs, wanted=False)
        self._taken = (account, group, resource, verbs)

    def give_back(self) -> None:
        """Restore the permissions of the manifests; safe to repeat."""
        while self._changed:
            self.api.apply(self._changed.pop())
            if not self._changed:
                self.wait_allowed(*self._taken, wanted=True)

    def refusals(self, account: str, group: str, resource: str) -> int:
        """Return how often the API server has refused the account this resource so far."""
        return self.answers(account, group, resource, code=403)

    def watches(self, account: str, group: str, resource: str) -> int:
        """Return how many watches of the resource the account has begun so far."""
        return self.answers(account, group, resource, code=200, verb="watch")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_pod(self) -> None:
        """Create the worker's pod and its ReplicaSet, the owners of capacity objects."""
        labels = {"app": "worker"}
        meta = {"name": "worker", "namespace": NAMESPACE, "labels": labels}
        spec = {"containers": [{"name": "worker", "image": "csi-fleet"}]}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment",
                      "metadata": {"name": "worker", "uid": "u-1"}}  # fmt: skip
        sets = self.api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {**meta, "ownerReferences": [reference(deployment)]},
                "spec": {"replicas": 0, "selector": {"matchLabels": labels},
                         "template": {"metadata": {"labels": labels}, "spec": spec}},
            }
        )  # fmt: skip
        owners = {"ownerReferences": [reference(sets)]}
        self.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": POD, **owners},
             "spec": spec}
        )  # fmt: skip
