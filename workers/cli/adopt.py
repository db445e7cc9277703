"""`csi-fleet adopt DRIVER` and `csi-fleet release DRIVER`: replace Go sidecars, or restore them.

Finds the driver's workload by the Leases of its sidecars or by the record of an adoption, checks
what the worker will need, and changes the workload with the user's own permissions. `adoptplan`
plans the change; `adoptcentral` creates the other objects that central workers need. Each step is
derived from the current objects, so the command can be killed and repeated at any point. A single
request changes the workload, and it fails if somebody else has changed the workload since it was
read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import yaml

from workers.cli import adoptcentral, adoptplan, hostnetwork, loginsecret, terminal
from workers.cli.adoptcentral import Surroundings, central_of
from workers.cli.adoptplan import CENTRAL, WORKER, Choice, Plan, is_central, place_of
from workers.cli.adoptverify import Verification
from workers.cli.doctor import FAIL, OK, WARN, Finding
from workers.cli.kubectl import DRIVERS_LABEL, PART_LABEL, RECORDS_ENDING, REDIS_VARIABLE
from workers.cli.migrate import (
    Holders,
    holders,
    may,
    of_rights,
    of_watcher,
    records_namespaces,
)
from workers.cli.onecontainer import Installation
from workers.cli.sidecars import sidecars_of
from workers.config.flags import Command
from workers.errors import ApiError, ConfigError
from workers.kube import paths
from workers.kube.errors import ConflictError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

POLL_SECONDS: Final = 1.0
_TRIES: Final = 5
_WORKLOADS: Final = {
    "Deployment": paths.DEPLOYMENTS,
    "StatefulSet": paths.STATEFUL_SETS,
    "DaemonSet": paths.DAEMON_SETS,
    "ReplicaSet": paths.REPLICA_SETS,
}
_SHORT: Final = {"deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet"}


def run(tools: Tools) -> int:
    """Run the command; return 1 if something prevents the change or the change did not finish."""
    words, tool = tools.settings.arguments, tools.settings.tool
    command = tools.settings.command
    if not words or len(words) > 2 or (words[1:] and "/" not in words[1]):
        raise ConfigError(
            f"the name of the driver is missing. Run `csi-fleet {command} DRIVER "
            "[NAMESPACE/WORKLOAD]`"
        )
    if tool.mode not in {WORKER, CENTRAL}:
        raise ConfigError(f"--as={tool.mode} is not a valid value. Use {WORKER} or {CENTRAL}")
    if tool.one_replica and tool.any_replica:
        raise ConfigError(
            "--one-replica and --any-replica cannot be combined. Remove one of the two flags"
        )
    choice = Choice(
        words[0], tool.one_replica, tool.any_replica, tool.force, tool.secret, tool.mode
    )
    if tool.storage_class and not tool.verify:
        raise ConfigError(
            "--class sets the storage class of the claim that --verify creates, so it needs "
            "--verify. Add --verify"
        )
    move = Move(tools, choice, (words[1:] or ("",))[0])
    try:
        return move.adopt() if command is Command.ADOPT else move.release()
    except ApiError as error:
        raise ConfigError(
            f"{error}. Nothing is left half done. Repeat the command, or undo it with `csi-fleet "
            f"{'release' if command is Command.ADOPT else 'adopt'} {choice.driver}`",
            exit_code=1,
        ) from error


@dataclass
class Move:
    """One run of `adopt` or `release`.

    Attributes:
        tools: the connections and settings.
        choice: the options that the user gave.
        named: the workload, as `NAMESPACE/[KIND/]NAME`; "" to search for it.
        sleep: a function that waits for the given number of seconds.
        clock: a function that returns the time in seconds.
    """

    tools: Tools
    choice: Choice
    named: str = ""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def adopt(self) -> int:
        """Replace the Go sidecars with a worker, or with the gateway for central workers."""
        workload = self.find()
        installation = self.installation()
        around = self.around(workload, installation) if self.choice.mode == CENTRAL else None
        problems = [] if around else self.choose_secret(workload["metadata"]["namespace"])
        target = around.central if around else installation
        plan = adoptplan.adopt(workload, target, self.choice)
        if around:
            plan.findings += self.needs_of_central(workload, around)
        else:
            plan.findings += problems or self.needs(workload, installation)
            self.check_network(workload, installation, plan)
        place = around.central.namespace if around else workload["metadata"]["namespace"]
        verification = self.verification(workload, plan)
        if self.tools.settings.tool.dry_run or plan.is_refused:
            return self.shown(workload, plan, around)
        self.tell(plan)
        self.label(workload["metadata"]["namespace"])
        if around:
            self.say_written(around.make(workload, plan.entry), "is written")
        workload = self.change(
            workload, plan, lambda one: adoptplan.adopt(one, target, self.choice)
        )
        code = self.finish(workload, plan, around, wants_ours=True)
        return code or (verification.run(place, "release") if verification else 0)

    def release(self) -> int:
        """Restore the Go sidecars."""
        workload = self.find()
        plan = adoptplan.release(workload, self.choice)
        around = None
        if not plan.is_refused and is_central(adoptplan.record_of(workload)):
            try:
                around = self.around(workload, self.installation())
            except ConfigError as error:
                plan.say(
                    "objects", WARN, f"The other objects that `adopt` created are kept: {error}"
                )
        verification = self.verification(workload, plan)
        if self.tools.settings.tool.dry_run or plan.is_refused:
            return self.shown(workload, plan, None)
        self.tell(plan)
        workload = self.change(workload, plan, lambda one: adoptplan.release(one, self.choice))
        code = self.finish(workload, plan, around, wants_ours=False)
        return code or (verification.run("", "adopt") if verification else 0)

    def verification(self, workload: JsonObject, plan: Plan) -> Verification | None:
        """Prepare the claim that --verify creates; a problem with it prevents the change.

        Return None if the flag was not given.
        """
        tool = self.tools.settings.tool
        if not tool.verify:
            return None
        namespace = workload["metadata"]["namespace"]
        found = Verification(
            self.tools,
            self.choice.driver,
            namespace,
            tool.storage_class,
            sleep=self.sleep,
            clock=self.clock,
        )
        plan.findings += found.findings()
        if not workload["spec"].get("replicas", 1):
            plan.say(
                "verify",
                FAIL,
                f"{place_of(workload)} has no replicas, so the claim of --verify would not be "
                "served. Scale the workload up (kubectl scale), or remove --verify",
            )
        return found

    def around(self, workload: JsonObject, installation: Installation) -> Surroundings:
        """Return the objects that the driver needs in central mode, apart from its workload.

        Raises:
            ConfigError: the installation has no central workers.
        """
        kube, namespace = self.tools.kube, workload["metadata"]["namespace"]
        central = central_of(kube, installation)
        if central is None:
            raise ConfigError(
                f"There is no Deployment {installation.namespace}/worker, so there are no central "
                "workers. Install them (docs/helm.md, mode central), or use --as=worker",
                exit_code=1,
            )
        return Surroundings(kube, self.choice.driver, namespace, central)

    # Reading the cluster.

    def find(self) -> JsonObject:
        """Find the driver's workload.

        Raises:
            ConfigError: there is no such workload, or more than one.
        """
        if self.named:
            return self._named()
        found = {place_of(one): one for one in self._recorded()}
        if not found:
            found = {place_of(one): one for one in self._by_leases()}
        command, driver = self.tools.settings.command, self.choice.driver
        if not found:
            raise ConfigError(
                f"No sidecar of {driver} holds a Lease, and no workload has a record of an "
                "adoption, so the driver's workload is not known. Name the workload: `csi-fleet "
                f"{command} {driver} NAMESPACE/NAME`",
                exit_code=1,
            )
        if len(found) > 1:
            raise ConfigError(
                f"{', '.join(sorted(found))} could all be the workload of {driver}. Specify the "
                f"right one: `csi-fleet {command} {driver} NAMESPACE/NAME`",
                exit_code=1,
            )
        return next(iter(found.values()))

    def _named(self) -> JsonObject:
        namespace, *rest = self.named.split("/")
        name = rest[-1]
        kind = rest[0].lower() if len(rest) == 2 else ""
        chosen = {
            one: resource
            for one, resource in _WORKLOADS.items()
            if not kind or kind.rstrip("s") == one.lower() or _SHORT.get(kind) == one
        }
        if len(rest) > 2 or not namespace or not name or not chosen:
            raise ConfigError(f"{self.named!r} does not name a workload. Use NAMESPACE/[KIND/]NAME")
        found = [one for one in (self._get(r, namespace, name) for r in chosen.values()) if one]
        if not found:
            raise ConfigError(f"There is no workload {self.named}. Correct the name", exit_code=1)
        if len(found) > 1:
            kinds = " and ".join(one["kind"] for one in found)
            raise ConfigError(
                f"{self.named} is ambiguous: it is the name of a {kinds}. Use NAMESPACE/KIND/NAME",
                exit_code=1,
            )
        return found[0]

    def _get(self, resource: Resource, namespace: str, name: str) -> JsonObject | None:
        try:
            item = self.tools.kube.get(resource, name, namespace=namespace)
        except NotFoundError:
            return None
        return {**item, "apiVersion": resource.api_version, "kind": resource.kind}

    def _recorded(self) -> Iterator[JsonObject]:
        """Yield the workloads that were adopted for the driver."""
        for kind in adoptplan.KINDS:
            resource = _WORKLOADS[kind]
            try:
                items = list(self.tools.kube.list(resource))
            except RefusedError:
                continue  # without this permission, Leases or the user must name the workload
            for item in items:
                found = {**item, "apiVersion": resource.api_version, "kind": kind}
                try:
                    record = adoptplan.record_of(found)
                except ValueError:
                    continue
                if record is not None and record["driver"] == self.choice.driver:
                    yield found

    def _by_leases(self) -> Iterator[JsonObject]:
        held = holders(self.tools, self.choice.driver)
        for place in sorted({*held.go.values(), *held.ours.values()}):
            namespace, _, holder = place.partition("/")
            for pod in self._pods_of(namespace, holder):
                yield self._owner(pod, namespace)

    def _pods_of(self, namespace: str, holder: str) -> list[JsonObject]:
        """Return the pod named `holder`; if there is none, the host-network pods on that node."""
        try:
            return [self.tools.kube.get(paths.PODS, holder, namespace=namespace)]
        except NotFoundError:
            return [
                one
                for one in self.tools.kube.list(paths.PODS, namespace=namespace)
                if one["spec"].get("hostNetwork")
                and holder in {(node := str(one["spec"].get("nodeName"))), node.partition(".")[0]}
                and sidecars_of(one)
            ]

    def _owner(self, item: JsonObject, namespace: str) -> JsonObject:
        """Return the workload that owns the pod."""
        kind = item.get("kind") or "Pod"
        for owner in item["metadata"].get("ownerReferences") or ():
            resource = _WORKLOADS.get(owner["kind"])
            if owner.get("controller") and resource is not None:
                found = self._get(resource, namespace, owner["name"])
                if found is not None and kind not in {"Deployment", "StatefulSet", "DaemonSet"}:
                    return self._owner(found, namespace)
            elif owner.get("controller") and kind in {"Pod", "ReplicaSet"}:
                raise ConfigError(
                    f"{kind} {namespace}/{item['metadata']['name']} belongs to {owner['kind']} "
                    f"{owner['name']}, which csi-fleet does not know. Move it container by "
                    "container: docs/migration.md",
                    exit_code=1,
                )
        if kind == "Pod":
            raise ConfigError(
                f"Pod {namespace}/{item['metadata']['name']} does not belong to a workload, so it "
                "cannot be changed. Replace it with a Deployment",
                exit_code=1,
            )
        return item

    def installation(self) -> Installation:
        """Read the installation's image, Redis and namespaces from its watcher.

        Raises:
            ConfigError: there is no installation, or more than one.
        """
        settings = self.tools.settings
        names = records_namespaces(self.tools)
        if "namespace" in settings.explicit:
            names = [one for one in names if one == settings.kube.namespace]
        if not names:
            raise ConfigError(
                "csi-fleet is not installed in this cluster: no namespace whose name ends in "
                f"{RECORDS_ENDING} has the label {'='.join(PART_LABEL)}. Install it first: "
                "docs/helm.md, mode sidecar",
                exit_code=1,
            )
        if len(names) > 1:
            raise ConfigError(
                "Several csi-fleet systems are installed in this cluster. Choose one by the "
                f"namespace that holds its records: --namespace={' or --namespace='.join(names)}",
                exit_code=1,
            )
        found = self._installed(names[0])
        if settings.tool.image:
            found = replace(found, image=settings.tool.image)
        if found.redis_url.startswith("sentinel://") and self.tools.settings.tool.mode == WORKER:
            raise ConfigError(
                "Redis is behind sentinels, and `adopt` cannot write the login for the sentinels "
                "yet. Move the driver container by container: docs/migration.md",
                exit_code=1,
            )
        return found

    def _installed(self, records: str) -> Installation:
        namespace = records.removesuffix(RECORDS_ENDING)
        watcher = self._get(paths.DEPLOYMENTS, namespace, "watcher")
        containers = watcher["spec"]["template"]["spec"]["containers"] if watcher else []
        if watcher and not (watcher.get("status") or {}).get("availableReplicas"):
            raise ConfigError(
                "No csi-fleet watcher is ready, so a worker would receive no work. Find out why: "
                f"kubectl -n {namespace} describe pods",
                exit_code=1,
            )
        for one in containers:
            variables = {entry["name"]: entry.get("value") for entry in one.get("env") or ()}
            if url := variables.get(REDIS_VARIABLE):
                return Installation(
                    namespace,
                    one["image"],
                    _reachable(url, namespace),
                    records,
                    one.get("imagePullPolicy") or "",
                )
        raise ConfigError(
            f"The Deployment {namespace}/watcher does not set {REDIS_VARIABLE}, so the address of "
            "Redis is not known. Check that it is csi-fleet's watcher, or install csi-fleet as "
            "described in docs/helm.md",
            exit_code=1,
        )

    # Check what the worker needs.

    def choose_secret(self, namespace: str) -> list[Finding]:
        """Find the Secret with the driver's Redis login; return why it cannot be used."""
        name, problems = loginsecret.choose(
            self.tools.kube, namespace, self.choice.driver, self.choice.secret
        )
        self.choice = replace(self.choice, secret=name)
        return problems

    def needs(self, workload: JsonObject, installation: Installation) -> Iterator[Finding]:
        """Check the Secret, ConfigMap and permissions that the worker needs."""
        namespace = workload["metadata"]["namespace"]
        account = workload["spec"]["template"]["spec"].get("serviceAccountName") or "default"
        entry = yaml.safe_dump(
            {
                "drivers": [
                    {
                        "name": self.choice.driver,
                        "mode": "worker",
                        "namespace": namespace,
                        "serviceAccount": account,
                    }
                ]
            },
            sort_keys=False,
        )
        remedy = (
            "Add this driver to the existing list in the chart's values, then upgrade the release "
            f"(docs/migration.md):\n{entry}"
        )
        yield from self._there(paths.SECRETS, namespace, self.choice.secret, remedy)
        if installation.has_ca:
            yield from self._there(paths.CONFIG_MAPS, namespace, "redis-ca", remedy)
        pod = {
            "metadata": {"name": workload["metadata"]["name"], "namespace": namespace},
            "spec": workload["spec"]["template"]["spec"],
        }
        yield from self._rights(workload, pod, installation.namespace)
        user = f"system:serviceaccount:{namespace}:{account}"
        records = {"namespace": installation.records_namespace, "resource": "configmaps"}
        for verb in ("get", "create", "patch", "delete"):  # a worker knows the names it reads
            if self._may(user, records | {"verb": verb}) is False:
                yield Finding(
                    "rights",
                    FAIL,
                    f"{user} is not allowed to {verb} ConfigMaps in "
                    f"{installation.records_namespace}, where the attempts are recorded. {remedy}",
                )
                break
        serves = {
            "group": "csi-fleet.io",
            "resource": "drivers",
            "verb": "serve",
            "name": self.choice.driver,
        }
        if self._may(user, serves) is False:
            yield Finding(
                "rights",
                WARN,
                f"{user} is not allowed to serve {self.choice.driver}: if the admission policy is "
                f"installed, it rejects the writes of this account. {remedy}",
            )

    def check_network(self, workload: JsonObject, installation: Installation, plan: Plan) -> None:
        """Check that pods resolve the name of Redis, and that its NetworkPolicies admit them."""
        pod, place = workload["spec"]["template"]["spec"], place_of(workload)
        url, kube = installation.redis_url, self.tools.kube
        if problem := hostnetwork.look_up(kube, url, pod, place):
            plan.findings.append(problem)
        if pod.get("hostNetwork"):
            shut = hostnetwork.look(kube, url, place)
            if shut is not None:
                plan.findings.append(shut.finding)
                plan.needed += [shut.policy] if shut.policy else []

    def needs_of_central(self, workload: JsonObject, around: Surroundings) -> Iterator[Finding]:
        """Check for conflicting objects, and for permissions that central workers do not have."""
        yield from around.needs()
        pod = adoptcentral.rights_of(around.central)
        yield from self._rights(workload, pod, around.central.namespace)
        yield adoptcentral.secrets_hint(around.central, self.choice.driver)

    def _rights(self, workload: JsonObject, pod: JsonObject, namespace: str) -> Iterator[Finding]:
        """Check the permissions of the account that will do the work, and the watcher's.

        Args:
            workload: the driver's workload.
            pod: a pod with the account that will do the sidecars' work.
            namespace: the watcher's namespace.
        """
        watcher = f"system:serviceaccount:{namespace}:watcher"
        found = adoptplan.movable(workload)
        for sidecar in found:
            yield from of_rights(self.tools, replace(sidecar, pod=pod), watcher)
        yield from of_watcher(self.tools, [one.spec for one in found], watcher)

    def _there(
        self, resource: Resource, namespace: str, name: str, remedy: str
    ) -> Iterator[Finding]:
        try:
            self.tools.kube.get(resource, name, namespace=namespace)
        except NotFoundError:
            text = (
                f"There is no {resource.kind} {namespace}/{name}, which the worker mounts. {remedy}"
            )
            yield Finding("login", FAIL, text)
        except RefusedError as error:
            yield Finding(
                "login", WARN, f"{resource.kind} {namespace}/{name}: not checked: {error}"
            )

    def _may(self, user: str, attributes: dict[str, str]) -> bool | None:
        try:
            return may(self.tools, user, attributes)
        except RefusedError:
            return None

    # Changing the cluster.

    def label(self, namespace: str) -> None:
        """Label the namespace, so that Redis's NetworkPolicy admits the driver's pods."""
        found = self.tools.kube.get(paths.NAMESPACES, namespace)
        if DRIVERS_LABEL not in (found["metadata"].get("labels") or {}).items():
            change = {"metadata": {"labels": dict([DRIVERS_LABEL])}}
            self.tools.kube.merge(paths.NAMESPACES, found, change)
            terminal.write(f"namespace {namespace} now has the label {'='.join(DRIVERS_LABEL)}")

    def change(
        self, workload: JsonObject, plan: Plan, again: Callable[[JsonObject], Plan]
    ) -> JsonObject:
        """Write the workload; after a conflict, compute a new plan with `again` and retry."""
        resource, metadata = _WORKLOADS[workload["kind"]], workload["metadata"]
        for _ in range(_TRIES):
            if plan.patch is None:
                return workload
            try:
                changed = self.tools.kube.merge(resource, workload, plan.patch, is_exact=True)
            except ConflictError:
                workload = self.current(workload)
                plan = again(workload)
                if plan.is_refused:
                    self.tell(plan)
                    raise ConfigError(
                        f"{place_of(workload)} was changed by somebody else in the meantime. Check "
                        "the plan above, then run the command again",
                        exit_code=1,
                    ) from None
                continue
            terminal.write(f"{place_of(workload)} has been changed; its pods are being replaced")
            return {**changed, "kind": workload["kind"]}
        raise ConfigError(
            f"{workload['kind']} {metadata['namespace']}/{metadata['name']} is continually written "
            "by another client. Find out which one (kubectl get -o yaml --show-managed-fields)",
            exit_code=1,
        )

    def current(self, workload: JsonObject) -> JsonObject:
        """Return the workload's current state from the API server."""
        metadata = workload["metadata"]
        found = self._get(_WORKLOADS[workload["kind"]], metadata["namespace"], metadata["name"])
        if found is None:
            raise ConfigError(f"{place_of(workload)} was deleted in the meantime", exit_code=1)
        return found

    def finish(
        self, workload: JsonObject, plan: Plan, around: Surroundings | None, *, wants_ours: bool
    ) -> int:
        """Wait for the new pods and for the new holder of the Lease, then clean up."""
        end, driver = self.clock() + self.tools.settings.tool.wait_seconds, self.choice.driver
        while not adoptplan.is_rolled_out(workload := self.current(workload)):
            if self.clock() > end:
                return self._stuck(workload, wants_ours=wants_ours)
            self.sleep(POLL_SECONDS)
        if plan.elects and workload["spec"].get("replicas", 1):
            while not self._is_handed_over(plan, wants_ours=wants_ours):
                if self.clock() > end:
                    return self._without_lease(workload, plan, wants_ours=wants_ours)
                self.sleep(POLL_SECONDS)
        if around and not wants_ours:
            self.say_written(around.remove(), "is removed")
        for _ in range(_TRIES):
            patch = adoptplan.settle(workload)
            if patch is None:
                break
            resource = _WORKLOADS[workload["kind"]]
            try:
                changed = self.tools.kube.merge(resource, workload, patch, is_exact=True)
                workload = {**changed, "kind": workload["kind"]}
            except ConflictError:
                workload = self.current(workload)
        if around and wants_ours and workload["spec"].get("replicas", 1):
            while not (is_served := adoptcentral.is_served(self.tools, around.central, driver)):
                if is_served is None or self.clock() > end:
                    return self._unserved(around, is_known=is_served is not None)
                self.sleep(POLL_SECONDS)
        if wants_ours:
            who = "the central workers serve it" if around else "one worker serves it"
            terminal.write(
                f"{driver} is adopted: {who}. Check it with `kubectl csi-fleet status`; `csi-fleet "
                f"release {driver}` restores its Go sidecars"
            )
        else:
            terminal.write(f"{driver} is released: its Go sidecars serve it again")
        return 0

    def _is_handed_over(self, plan: Plan, *, wants_ours: bool) -> bool:
        """Return True if the wanted side holds at least one Lease and the other side none."""
        held = self._holders()
        mine, others = (held.ours, held.go) if wants_ours else (held.go, held.ours)
        return bool(mine.keys() & plan.elects) and not others.keys() & plan.elects

    def _holders(self) -> Holders:
        return holders(self.tools, self.choice.driver)

    def _stuck(self, workload: JsonObject, *, wants_ours: bool) -> int:
        name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
        undo = f"csi-fleet {'release' if wants_ours else 'adopt'} {self.choice.driver}"
        terminal.write(
            f"The new pods of {place_of(workload)} did not become ready within --wait. Find out "
            f"why: kubectl -n {namespace} describe pods. Repeat the command to continue waiting, "
            f"or undo it: {undo}"
        )
        if workload["kind"] == "StatefulSet":
            terminal.write(
                "A StatefulSet does not replace a pod that never became ready. After undoing the "
                f"command, delete the pod: kubectl -n {namespace} delete pod {name}-0"
            )
        return 1

    def _unserved(self, around: Surroundings, *, is_known: bool) -> int:
        """Report that the pods are ready, but no worker is known to have reached the driver."""
        driver, namespace = self.choice.driver, around.central.namespace
        if not is_known:
            terminal.write(
                f"The pods of {driver} have the gateway. Whether a worker has reached it is not "
                f"known, because kubectl exec into {namespace} did not answer. Check it with: "
                f"kubectl csi-fleet -n {namespace} status"
            )
            return 1
        terminal.write(
            f"The pods of {driver} have the gateway, but no worker reached it within --wait. Find "
            f"out why: kubectl -n {namespace} logs deployment/worker, and kubectl -n "
            f"{around.namespace} logs of its container csi-fleet-gateway. Repeat the command to "
            f"continue waiting, or undo it: csi-fleet release {driver}"
        )
        return 1

    def say_written(self, places: list[str], what: str) -> None:
        """Print one line for each object that was written."""
        for one in places:
            terminal.write(f"{one} {what}")

    def _without_lease(self, workload: JsonObject, plan: Plan, *, wants_ours: bool) -> int:
        held = self._holders()
        who = sorted({*held.go.values(), *held.ours.values()}) or ["nobody"]
        wanted = "the worker" if wants_ours else "the Go sidecars"
        terminal.write(
            f"The pods of {place_of(workload)} have been replaced, but {wanted} did not get the "
            f"Leases of {', '.join(sorted(plan.elects))} within --wait; {', '.join(who)} holds "
            f"them. Check the container's log: kubectl -n {workload['metadata']['namespace']} "
            "logs. Repeat the command to continue waiting, or undo it"
        )
        return 1

    # Output.

    def tell(self, plan: Plan) -> None:
        """Print the findings, one per line."""
        for one in plan.findings:
            mark = "" if one.state == OK else f"{one.state}: "
            terminal.write(f"{mark}{one.text}")

    def shown(self, workload: JsonObject, plan: Plan, around: Surroundings | None) -> int:
        """Print the findings and the objects as YAML; return 1 if the change is refused.

        The objects are the planned ones; if the change is refused, those that the user must create.
        """
        for one in plan.findings:
            for line in f"{one.state}: {one.text}".rstrip().splitlines():
                terminal.write(f"# {line}")
        objects = list(plan.needed)
        if around and not plan.is_refused:
            objects += around.shown(workload, plan.entry)
        if plan.patch is not None and not plan.is_refused:
            if self.tools.settings.command is Command.ADOPT:
                labels = dict([DRIVERS_LABEL])
                metadata = {"name": workload["metadata"]["namespace"], "labels": labels}
                objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            objects.append(adoptplan.patched(workload, plan.patch))
        if objects:
            terminal.write(
                yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True).rstrip()
            )
        if plan.overlay and any(one.check == "owner" for one in plan.findings):
            terminal.write(
                "# The same change as a kustomization, for the tool that renders the workload:"
            )
            for line in plan.overlay.rstrip().splitlines():
                terminal.write(f"# {line}")
        return 1 if plan.is_refused else 0


def _reachable(url: str, namespace: str) -> str:
    """Return the watcher's Redis URL in a form that works from another namespace."""
    scheme, separator, rest = url.partition("://")
    if scheme not in {"redis", "rediss"}:
        return url
    place, slash, path = rest.partition("/")
    login, at, host = place.rpartition("@")
    name, colon, port = host.partition(":")
    if "." not in name and name != "localhost" and not name.startswith("["):
        name = f"{name}.{namespace}.svc"
    return f"{scheme}{separator}{login}{at}{name}{colon}{port}{slash}{path}"
