"""The cluster objects that a driver in central mode needs in addition to its workload.

    namespace of the driver   Service, Secret and NetworkPolicy of the gateway
    namespace of the workers  Secrets driver-ca and driver-tls; the driver's key in the ConfigMap
                              adopted-drivers, from which the workers read their drivers
    cluster                   ClusterRole and binding: the workers are allowed to serve this driver

Only missing or different objects are written, so the command can be interrupted and repeated. None
of these objects allows a call to the driver before its pods have a gateway. If an object of the
same name exists that `adopt` did not create, a Secret (for example from cert-manager) is used, and
any other object is a conflict: the command refuses to continue.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from workers.cli import certificates, gateway, kubectl
from workers.cli.centralentry import Central, text_of_entry
from workers.cli.doctor import FAIL, WARN, Finding
from workers.cli.kubectl import NAME_LABEL, PART_LABEL
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError, NotFoundError, RefusedError
from workers.kube.paths import Resource
from workers.topology.affinity import expression_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workers.cli.onecontainer import Installation
    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources

_RBAC: Final = "rbac.authorization.k8s.io"
SERVICES: Final = Resource("", "v1", "services", "Service", namespaced=True)
POLICIES: Final = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", namespaced=True
)
ROLES: Final = Resource(_RBAC, "v1", "clusterroles", "ClusterRole")
BINDINGS: Final = Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding")

PORT: Final = 10443
ADOPTED: Final = "adopted-drivers"
AUTHORITY: Final = "driver-ca"
CLIENT: Final = "driver-tls"
MADE: Final = ("app.kubernetes.io/managed-by", "csi-fleet-adopt")
_TOUCHED: Final = "csi-fleet.io/drivers-changed"
_LAST_PORT: Final = 65535
ASK_SECONDS: Final = 30.0
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")


def central_of(kube: KubeResources, installation: Installation) -> Central | None:
    """Return the central workers, or None if the installation has none."""
    try:
        found = kube.get(paths.DEPLOYMENTS, "worker", namespace=installation.namespace)
    except NotFoundError:
        return None
    container = found["spec"]["template"]["spec"]["containers"][0]
    variables = {one["name"]: one.get("value") for one in container.get("env") or ()}
    arguments = [str(one) for one in container.get("args") or ()]
    told = [one.partition("=")[2] for one in arguments if one.startswith("--controllers=")]
    return Central(
        installation.namespace,
        installation.image,
        installation.pull_policy,
        arguments=arguments[1:],
        controllers=(told or [variables.get("CSI_FLEET_CONTROLLERS") or "provisioner"])[-1],
        port=_port(kube, installation.namespace),
    )


def _port(kube: KubeResources, namespace: str) -> int:
    """Return the port to which the workers' NetworkPolicy allows connections."""
    try:
        found = kube.get(POLICIES, "worker-drivers", namespace=namespace)
    except NotFoundError:
        return PORT
    for rule in found["spec"].get("egress") or ():
        for one in rule.get("ports") or ():
            if isinstance(one.get("port"), int):
                return int(one["port"])
    return PORT


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects that one driver needs in central mode, apart from its workload.

    Attributes:
        kube: the API server, accessed with the user's permissions.
        driver: the name of the driver.
        namespace: the namespace of its workload.
        central: the central workers.
    """

    kube: KubeResources
    driver: str
    namespace: str
    central: Central

    @property
    def name(self) -> str:
        """The name of the Service, the Secret and the NetworkPolicy."""
        return gateway.name_of(self.driver)

    @property
    def role(self) -> str:
        """The name of the ClusterRole and of its binding."""
        return f"csi-fleet-adopted-{self.name.removeprefix('csi-fleet-')}"

    def objects(
        self, workload: JsonObject, *, is_one_replica: bool
    ) -> list[tuple[Resource, JsonObject]]:
        """Return all objects except the Secrets and the driver's entry."""
        port = self.central.port
        own = {gateway.LABEL: self.name}
        workers = {
            "namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": self.central.namespace}
            },
            "podSelector": {"matchLabels": {NAME_LABEL: "worker"}},
        }
        ingress: list[JsonObject] = [
            {"from": [workers], "ports": [{"protocol": "TCP", "port": port}]}
        ]
        if not self._is_isolated(workload):
            # Once a policy selects a pod, every port that no policy allows is blocked, so this
            # policy also allows all other ports.
            ingress.append({"ports": _all_but(port)})
        return [
            (SERVICES, self._service(own, is_one_replica=is_one_replica)),
            (
                POLICIES,
                self._object(
                    POLICIES,
                    self.name,
                    {
                        "spec": {
                            "podSelector": {"matchLabels": own},
                            "policyTypes": ["Ingress"],
                            "ingress": ingress,
                        }
                    },
                ),
            ),
            (
                ROLES,
                self._object(
                    ROLES,
                    self.role,
                    {
                        "rules": [
                            {
                                "apiGroups": ["csi-fleet.io"],
                                "resources": ["drivers"],
                                "resourceNames": [self.driver],
                                "verbs": ["serve"],
                            }
                        ]
                    },
                ),
            ),
            (
                BINDINGS,
                self._object(
                    BINDINGS,
                    self.role,
                    {
                        "roleRef": {"apiGroup": _RBAC, "kind": ROLES.kind, "name": self.role},
                        "subjects": [
                            {
                                "kind": "ServiceAccount",
                                "name": "worker",
                                "namespace": self.central.namespace,
                            }
                        ],
                    },
                ),
            ),
        ]

    def _service(self, selector: JsonObject, *, is_one_replica: bool) -> JsonObject:
        port = self.central.port
        spec: JsonObject = {
            "selector": selector,
            "ports": [{"name": "csi", "port": port, "targetPort": port}],
        }
        known = find(self.kube, SERVICES, self.name, self.namespace)
        if is_one_replica and (known is None or known["spec"].get("clusterIP") == "None"):
            # The name of a Service without a cluster IP resolves to the addresses of its pods. An
            # existing Service keeps its cluster IP.
            spec["clusterIP"] = "None"
        return self._object(SERVICES, self.name, {"spec": spec})

    def shown(self, workload: JsonObject, entry: JsonObject) -> list[JsonObject]:
        """Return all objects for display; only `make` generates certificates and keys."""
        secrets = [
            {**self._secret(place, name, {}), "data": dict.fromkeys(keys, "(made by adopt)")}
            for place, name, keys in (
                (self.central.namespace, AUTHORITY, ("tls.crt", "tls.key")),
                (self.central.namespace, CLIENT, ("ca.crt", "tls.crt", "tls.key")),
                (self.namespace, self.name, ("ca.crt", "tls.crt", "tls.key")),
            )
            if find(self.kube, paths.SECRETS, name, place) is None
        ]
        objects = self.objects(workload, is_one_replica=_is_one_replica(entry))
        return [*secrets, *(one for _, one in objects), self._entries(entry)]

    def needs(self) -> Iterator[Finding]:
        """Report what prevents adoption: conflicting objects, or an already listed driver."""
        for resource, name, place in (
            (SERVICES, self.name, self.namespace),
            (POLICIES, self.name, self.namespace),
            (ROLES, self.role, ""),
            (BINDINGS, self.role, ""),
        ):
            found = find(self.kube, resource, name, place)
            if found is not None and not is_made(found):
                yield Finding(
                    "objects",
                    FAIL,
                    f"{resource.kind} {name} already exists, but `adopt` did not create it. Remove "
                    f"it, or label it {'='.join(MADE)} if `adopt` may change it",
                )
        has_authority = find(self.kube, paths.SECRETS, AUTHORITY, self.central.namespace)
        has_client = find(self.kube, paths.SECRETS, CLIENT, self.central.namespace)
        has_own = find(self.kube, paths.SECRETS, self.name, self.namespace)
        if has_client and not has_authority and not has_own:
            yield Finding(
                "certificates",
                FAIL,
                f"The Secret {self.central.namespace}/{CLIENT} was not created by `adopt`, and the "
                "private key of its certificate authority is not in the cluster. Create the Secret "
                f"{self.namespace}/{self.name} with ca.crt, tls.crt and tls.key, signed by the "
                f"same authority, for the name {self.name}.{self.namespace}.svc "
                "(docs/migration.md)",
            )
        if has_authority and has_client:
            trusted, authority = _value(has_client, "ca.crt"), _value(has_authority, "tls.crt")
            if not certificates.is_of_key(trusted, authority):
                yield Finding(
                    "certificates",
                    FAIL,
                    f"The Secret {self.central.namespace}/{CLIENT} was signed by a different "
                    f"authority than {self.central.namespace}/{AUTHORITY}, so the gateways of "
                    "drivers adopted earlier would reject the workers. Restore the authority's old "
                    f"key; or release those drivers, delete {CLIENT}, and adopt the drivers again",
                )
        for secret in (has_authority, has_client, has_own):
            if secret is not None and not is_made(secret):
                yield from self._ending(secret)
        listed = find(self.kube, paths.CONFIG_MAPS, "drivers", self.central.namespace)
        for text in ((listed or {}).get("data") or {}).values():
            if self.driver in _names(text):
                yield Finding(
                    "drivers",
                    FAIL,
                    f"{self.driver} is already in the drivers file (ConfigMap "
                    f"{self.central.namespace}/drivers). Remove the driver from it (in the chart's "
                    "values)",
                )

    def _ending(self, secret: JsonObject) -> Iterator[Finding]:
        """Report a certificate that expires soon and that `adopt` is not allowed to renew."""
        metadata = secret["metadata"]
        for key in ("ca.crt", "tls.crt"):
            is_valid, end = certificates.lasting(_value(secret, key), is_bundle=key == "ca.crt")
            if end:
                yield Finding(
                    "certificates",
                    WARN if is_valid else FAIL,
                    f"The certificate {key} of the Secret "
                    f"{metadata['namespace']}/{metadata['name']} {end}. Have the creator of the "
                    "Secret renew the certificate (with the same key if it is the authority's), "
                    "then repeat `adopt` for each driver",
                )

    def make(self, workload: JsonObject, entry: JsonObject) -> list[str]:
        """Create or correct all objects, the entry last; return the objects that were written."""
        written = self._certificates()
        for resource, item in self.objects(workload, is_one_replica=_is_one_replica(entry)):
            if self._apply(resource, item):
                written.append(_place(resource, item))
        if self._enter(entry):
            written.append(f"ConfigMap {self.central.namespace}/{ADOPTED}, key {self._key}")
        if written:
            self._touch()
        return written

    def remove(self) -> list[str]:
        """Remove the objects that `make` created for this driver, and return them."""
        removed = []
        found = find(self.kube, paths.CONFIG_MAPS, ADOPTED, self.central.namespace)
        if self._key in ((found or {}).get("data") or {}):
            self.kube.merge(paths.CONFIG_MAPS, found or {}, {"data": {self._key: None}})
            removed.append(f"ConfigMap {self.central.namespace}/{ADOPTED}, key {self._key}")
            self._touch()
        for resource, name, place in (
            (SERVICES, self.name, self.namespace),
            (POLICIES, self.name, self.namespace),
            (paths.SECRETS, self.name, self.namespace),
            (BINDINGS, self.role, ""),
            (ROLES, self.role, ""),
        ):
            item = find(self.kube, resource, name, place)
            if item is None or not is_made(item):
                continue
            try:
                self.kube.delete(resource, name, namespace=place, uid=item["metadata"]["uid"])
            except NotFoundError:
                continue
            removed.append(_place(resource, item))
        return removed

    # Certificates.

    def _certificates(self) -> list[str]:
        """Create the authority and the workers' and gateway's certificates; renew expiring ones."""
        here, written = self.central.namespace, list[str]()
        has_client = find(self.kube, paths.SECRETS, CLIENT, here)
        if has_client and not find(self.kube, paths.SECRETS, AUTHORITY, here):
            return written  # provided by the user; `needs` has checked it
        authority = find(self.kube, paths.SECRETS, AUTHORITY, here)
        if authority is None:
            certificate, key = certificates.make_authority("csi-fleet drivers")
            made = self._secret(here, AUTHORITY, {"tls.crt": certificate, "tls.key": key})
            authority = self._create(paths.SECRETS, made)
            written.append(_place(paths.SECRETS, made))
        elif is_made(authority) and not certificates.is_fresh(_value(authority, "tls.crt")):
            renewed = certificates.renew_authority(
                _value(authority, "tls.crt"), _value(authority, "tls.key")
            )
            change = {"data": {"tls.crt": base64.b64encode(renewed).decode()}}
            authority = self.kube.merge(paths.SECRETS, authority, change, is_exact=True)
            written.append(_place(paths.SECRETS, self._secret(here, AUTHORITY, {})))
        server = f"{self.name}.{self.namespace}.svc"
        for place, name, host, use in (
            (here, CLIENT, "worker.csi-fleet", certificates.CLIENT),
            (self.namespace, self.name, server, certificates.SERVER),
        ):
            known = find(self.kube, paths.SECRETS, name, place)
            if known is not None and not is_made(known):
                continue
            ca, key = (_value(authority, one) for one in ("tls.crt", "tls.key"))
            if (
                known is not None
                and certificates.is_good(_value(known, "tls.crt"), ca, host)
                and _value(known, "ca.crt") == ca
            ):
                continue
            certificate, own = certificates.sign(ca, key, [host], use)
            files = {"ca.crt": ca, "tls.crt": certificate, "tls.key": own}
            made = self._secret(place, name, files)
            if known is None:
                self._create(paths.SECRETS, made)
            else:
                self.kube.merge(paths.SECRETS, known, {"data": made["data"]}, is_exact=True)
            written.append(_place(paths.SECRETS, made))
        return written

    def _secret(self, namespace: str, name: str, files: Mapping[str, bytes]) -> JsonObject:
        data = {key: base64.b64encode(value).decode() for key, value in files.items()}
        item = self._object(paths.SECRETS, name, {"data": data}, namespace=namespace)
        return item | {"type": "Opaque"}

    # The entry.

    @property
    def _key(self) -> str:
        """The driver's own key in the ConfigMap; no command overwrites another driver's entry."""
        return f"{self.name}.yaml"

    def _entries(self, entry: JsonObject) -> JsonObject:
        data = {self._key: text_of_entry(entry)}
        here = self.central.namespace
        return self._object(paths.CONFIG_MAPS, ADOPTED, {"data": data}, namespace=here)

    def _enter(self, entry: JsonObject) -> bool:
        wanted = self._entries(entry)
        found = find(self.kube, paths.CONFIG_MAPS, ADOPTED, self.central.namespace)
        if found is None:
            self._create(paths.CONFIG_MAPS, wanted)
        elif ((found.get("data") or {}).get(self._key)) == wanted["data"][self._key]:
            return False
        # Another command may have just created the ConfigMap with only the entry of its own driver.
        place = self.kube.get(paths.CONFIG_MAPS, ADOPTED, namespace=self.central.namespace)
        self.kube.merge(paths.CONFIG_MAPS, place, {"data": wanted["data"]})
        return True

    def _touch(self) -> None:
        """Make the kubelets refresh the workers' volumes now instead of within a minute.

        A kubelet refreshes a pod's volumes when the pod changes. Without permission to change pods,
        the refresh takes up to a minute.
        """
        note = {_TOUCHED: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        try:
            for pod in self.kube.list(paths.PODS, namespace=self.central.namespace):
                if (pod["metadata"].get("labels") or {}).get(NAME_LABEL) == "worker":
                    self.kube.merge(paths.PODS, pod, {"metadata": {"annotations": note}})
        except (NotFoundError, RefusedError):
            return

    # Helpers for objects of any kind.

    def _object(
        self, resource: Resource, name: str, fields: JsonObject, *, namespace: str = ""
    ) -> JsonObject:
        metadata: JsonObject = {"name": name}
        if resource.namespaced:
            metadata["namespace"] = namespace or self.namespace
        metadata["labels"] = dict([PART_LABEL, MADE])
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return {**kind, "metadata": metadata, **fields}

    def _create(self, resource: Resource, item: JsonObject) -> JsonObject:
        """Create the object; if another process has just created it, return the existing object."""
        try:
            return self.kube.create(resource, item)
        except AlreadyExistsError:
            metadata = item["metadata"]
            namespace = metadata.get("namespace", "")
            return self.kube.get(resource, metadata["name"], namespace=namespace)

    def _apply(self, resource: Resource, item: JsonObject) -> bool:
        metadata = item["metadata"]
        found = find(self.kube, resource, metadata["name"], metadata.get("namespace", ""))
        if found is None:
            self._create(resource, item)
            return True
        fields: JsonObject = {
            name: item[name] for name in ("spec", "rules", "subjects") if name in item
        }
        if _covers(found, fields):
            return False
        self.kube.merge(resource, found, _change(found, fields))
        return True

    def _is_isolated(self, workload: JsonObject) -> bool:
        """Return True if another policy already restricts incoming connections to the pods."""
        labels = workload["spec"]["template"]["metadata"].get("labels") or {}
        for one in self.kube.list(POLICIES, namespace=self.namespace):
            spec = one.get("spec") or {}
            closes = "Ingress" in (spec.get("policyTypes") or ["Ingress"])
            is_other = one["metadata"]["name"] != self.name
            if is_other and closes and selects(spec.get("podSelector") or {}, labels):
                return True
        return False


def find(
    kube: KubeResources, resource: Resource, name: str, namespace: str = ""
) -> JsonObject | None:
    """Return the object, or None if it does not exist."""
    try:
        return kube.get(resource, name, namespace=namespace)
    except NotFoundError:
        return None


def is_served(tools: Tools, central: Central, driver: str) -> bool | None:
    """Return True if a worker is connected to the driver; None if no pod can report it."""
    report = asked_in_pod(tools, central.namespace, "status", "-o", "json")
    if report is None or not isinstance(report.get("drivers"), dict):
        return None
    found = report["drivers"].get(driver)
    return found is not None and not found["state"].startswith(("not served", "disconnected"))


def asked_in_pod(tools: Tools, namespace: str, *command: str) -> JsonObject | None:
    """Run a csi-fleet command in a pod of the namespace; return its JSON, or None if it fails.

    Only pods can reach Redis and have its password and certificate.
    """
    config = tools.settings.kube.kubeconfig
    flags = [f"--kubeconfig={config}"] if config else []
    try:
        place = kubectl.choose(kubectl.pods(flags, namespace), list(command))
        argv = [
            *(kubectl.kubectl(), *flags, "exec", f"--namespace={place.namespace}", place.pod),
            *(f"--container={place.container}", "--", "csi-fleet", *command),
        ]
        done = subprocess.run(  # noqa: S603
            argv, capture_output=True, text=True, check=False, timeout=ASK_SECONDS
        )
        report = json.loads(done.stdout)
    except (kubectl.PluginError, subprocess.TimeoutExpired, OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def rights_of(central: Central) -> JsonObject:
    """Return a pod object with the workers' account, for `migrate`'s check of permissions."""
    metadata = {"name": "worker", "namespace": central.namespace}
    return {"metadata": metadata, "spec": {"serviceAccountName": "worker", "containers": []}}


def secrets_hint(central: Central, driver: str) -> Finding:
    """Return a hint that the user has to decide which Secrets the workers may read."""
    return Finding(
        "rights",
        WARN,
        "If storage classes of the driver name Secrets, allow the workers to read them: csi-fleet "
        f"secret-roles --driver={driver} --account={central.namespace}/worker | kubectl apply -f -",
    )


def _is_one_replica(entry: JsonObject) -> bool:
    return bool(entry.get("replicas") == "one")


def is_made(item: JsonObject) -> bool:
    return MADE in (item["metadata"].get("labels") or {}).items()


def _value(secret: JsonObject, key: str) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(key) or "")


def _place(resource: Resource, item: JsonObject) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{resource.kind} {f'{namespace}/' if namespace else ''}{metadata['name']}"


def _names(text: str) -> set[str]:
    """Return the names of the drivers in a drivers file; an empty set if it is unreadable."""
    try:
        found: Any = yaml.safe_load(text)
        return {str(one["name"]) for one in found["drivers"] or ()}
    except (yaml.YAMLError, TypeError, KeyError):
        return set()


def _all_but(port: int) -> list[JsonObject]:
    """Return all ports of all protocols except this TCP port."""
    found: list[JsonObject] = []
    for protocol in _PROTOCOLS:
        spans = [(1, port - 1), (port + 1, _LAST_PORT)] if protocol == "TCP" else [(1, _LAST_PORT)]
        found += [
            {"protocol": protocol, "port": first, "endPort": last}
            for first, last in spans
            if first <= last
        ]
    return found


def _change(found: Any, wanted: Any) -> Any:
    """Return a merge patch that makes `found` contain `wanted`.

    A map of labels is replaced as a whole.
    """
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return wanted
    gone = found.keys() - wanted.keys() if _is_labels(wanted) else ()
    changed = {name: _change(found.get(name), value) for name, value in wanted.items()}
    return changed | dict.fromkeys(gone)


def _is_labels(value: JsonObject) -> bool:
    """Return True for a map of labels, to which the API server adds no defaults."""
    return all(isinstance(one, str) for one in value.values())


def _covers(found: Any, wanted: Any) -> bool:
    """Return True if `found` contains `wanted`; labels must be equal.

    The API server may have added defaults to `found`.
    """
    if isinstance(wanted, dict):
        if _is_labels(wanted):
            return bool(found == wanted)
        return isinstance(found, dict) and all(
            _covers(found.get(name), value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(_covers(*pair) for pair in zip(found, wanted, strict=True))
        )
    return bool(found == wanted)


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    """Return True if the label selector matches the labels according to the API server's rules."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(expression_matches(one, labels) for one in selector.get("matchExpressions") or ())
