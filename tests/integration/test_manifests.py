"""The objects of k8s/ pass a real API server's schema and Pod Security, and are consistent."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.kustomize import CLUSTER_KINDS, accumulate, containers, pod_spec, render
from tests.support.pods import has_token
from tests.support.waiting import wait_until
from workers.config.load import parse
from workers.drivers import driversfile
from workers.errors import ConfigError
from workers.observability.lanes import LaneCollector

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
OVERLAYS = sorted(one.name for one in (K8S / "overlays").iterdir())
BUILDS = [K8S / "base", *(K8S / "overlays" / one for one in OVERLAYS)]
ALL = pytest.mark.parametrize("objects", BUILDS, ids=lambda path: path.name, indirect=True)


@pytest.fixture
def objects(request):
    return render(request.param)


def named(objects, kind, name):
    return next(one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name)


def workloads(objects):
    return [one for one in objects if pod_spec(one)]


@pytest.fixture(scope="module")
def api(request):
    given = os.environ.get("CSI_FLEET_TEST_KUBECONFIG")
    kubeconfig = Path(given or request.getfixturevalue("control_plane").kubeconfig)
    with KubeApi(kubeconfig) as api:
        api.apply_file(Path(__file__).with_name("manifest_crds") / "monitoring.yaml")
        for plural in ("servicemonitors", "prometheusrules"):
            path = f"/apis/monitoring.coreos.com/v1/{plural}"
            wait_until(lambda path=path: api.find(path), 30, f"{plural} are served")
        yield api


@pytest.fixture(scope="module")
def restricted(api):
    """Make a namespace that refuses every pod below the restricted level."""
    name = f"manifests-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: path.name)
def test_kubectl_renders_the_same(path):
    """kubectl renders the same objects as the tests' own renderer, in every field."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl")
    text = subprocess.run(
        [kubectl, "kustomize", path], check=True, capture_output=True, text=True
    ).stdout
    theirs = {identity(one): one for one in yaml.safe_load_all(text)}
    ours = {identity(one): one for one in render(path)}
    assert ours.keys() == theirs.keys()
    for key, item in theirs.items():
        assert ours[key] == item, key


def identity(item):
    metadata = item["metadata"]
    return item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"]


@ALL
def test_api_server_accepts_every_object(api, restricted, objects):
    """The API server accepts all objects.

    With strict validation, unknown and duplicate fields are errors.
    """
    for item in objects:
        assert apply(api, item, restricted)["kind"] == item["kind"]


def apply(api, item, namespace):
    item = copy.deepcopy(item)
    if item["kind"] not in CLUSTER_KINDS:
        item["metadata"]["namespace"] = namespace
    name = item["metadata"]["name"]
    return api.request(
        "PATCH",
        f"{api._collection(item)}/{name}",
        item,
        content_type="application/apply-patch+yaml",
        params={
            "fieldManager": "csi-fleet-tests",
            "force": "true",
            "dryRun": "All",
            "fieldValidation": "Strict",
        },
    )


def test_strict_validation_finds_a_misspelt_field(api, restricted):
    """A misspelt field is refused, which proves that the check can fail."""
    item = copy.deepcopy(named(render(K8S / "base"), "Deployment", "watcher"))
    item["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(KubeApiError, match="readynessProbe"):
        apply(api, item, restricted)


@ALL
def test_pods_meet_the_restricted_level(api, restricted, objects):
    """All pods pass the restricted level without the
    driver's own container, which may need more.
    """
    for item in workloads(objects):
        assert pods_refused(api, restricted, item, without="driver") == ""


def test_restricted_level_refuses_the_example_driver_of_the_sidecar_overlay(api, restricted):
    """The driver's container is refused, which proves that the test above can fail."""
    driver = named(render(K8S / "overlays/prod-sidecar"), "Deployment", "driver")
    assert "privileged" in pods_refused(api, restricted, driver, without="")


def pods_refused(api, namespace, item, *, without):
    spec = copy.deepcopy(pod_spec(item))
    spec["containers"] = [one for one in spec["containers"] if one["name"] != without]
    # This namespace has neither the service accounts nor the system's priority classes.
    for absent in ("automountServiceAccountToken", "priorityClassName"):
        spec.pop(absent, None)
    spec["serviceAccountName"] = "default"
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
    pod["metadata"] = {"name": "x", "namespace": namespace}
    try:
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod, params={"dryRun": "All"})
    except KubeApiError as error:
        return str(error)
    return ""


@ALL
def test_every_container_is_confined(objects):
    """Containers have a read-only root, no capabilities, memory limits and probes.

    Only the containers that use the API server have a token.
    """
    for item in workloads(objects):
        spec = pod_spec(item)
        for container in containers(item):
            if container["name"] == "driver":
                continue
            where = f"{item['metadata']['name']}/{container['name']}"
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"], where
            assert context["capabilities"] == {"drop": ["ALL"]}, where
            assert "memory" in container["resources"]["limits"], where
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), where
            assert container.keys() & {"livenessProbe", "startupProbe"}, where
        assert spec["automountServiceAccountToken"] is False, item["metadata"]["name"]
        for container in containers(item):
            speaks = container["name"] in {"watcher", "worker"}
            assert has_token(container) == speaks, container["name"]


@ALL
def test_every_command_line_is_accepted_by_our_parser(objects, tmp_path):
    """csi-fleet accepts every command line of the manifests.

    A flag that a release removes or renames fails here and not in a cluster.
    """
    for item in workloads(objects):
        for container in containers(item):
            if container["image"].partition(":")[0] != "csi-fleet":
                continue
            command, *arguments = container["args"]
            env = {one["name"]: one.get("value", "x") for one in container.get("env", [])}
            for name, value in env.items():
                if name.endswith("_FILE"):
                    env[name] = str(secret_file(tmp_path, value))
            arguments = [
                f"--flower-basic-auth-file={secret_file(tmp_path, 'login')}"
                if one.startswith("--flower-basic-auth-file=") else one
                for one in arguments
            ]  # fmt: skip
            settings = parse(command, arguments, env)
            assert settings.warnings == (), item["metadata"]["name"]
            assert settings.redis.url.startswith("rediss://")


def secret_file(tmp_path, name):
    path = tmp_path / name.replace("/", "-")
    path.write_text("user:" + "password" * 4)
    return path


def test_a_wrong_flag_would_be_noticed():
    with pytest.raises(ConfigError):
        parse("watcher", ["--drivers-file=x", "--redis-url=redis://x"], {})


@ALL
def test_what_pods_mount_exists_or_is_made_by_the_secrets_script(objects):
    made = subprocess.run(
        ["sh", K8S / "make-secrets.sh", os.environ["PYTEST_SECRETS"], "csi-fleet"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    known = {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(made)}
    known |= {(one["kind"], one["metadata"]["name"]) for one in objects}
    # The operator makes the certificates of the drivers' mutual TLS.
    known.add(("Secret", "driver-tls"))
    for item in workloads(objects):
        for volume in pod_spec(item)["volumes"]:
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in known
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in known
            if "projected" in volume:
                for source in volume["projected"]["sources"]:
                    given = source.get("configMap", {"optional": True})
                    # Kubernetes makes this in each namespace.
                    known.add(("ConfigMap", "kube-root-ca.crt"))
                    assert given.get("optional") or ("ConfigMap", given["name"]) in known
            assert not volume.keys() & {"persistentVolumeClaim", "hostPath"}, volume


def test_a_new_certificate_of_redis_is_of_the_same_authority(tmp_path):
    """A new certificate of Redis has the same CA, so clients need no change (docs/upgrade.md).

    Repeating the script changes nothing.
    """
    script = ["sh", K8S / "make-secrets.sh", tmp_path]
    subprocess.run(script, check=True)
    first = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    subprocess.run(script, check=True)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == first
    (tmp_path / "tls.crt").unlink()
    subprocess.run(script, check=True)
    changed = {one.name for one in tmp_path.iterdir() if one.read_bytes() != first[one.name]}
    assert changed == {"tls.crt", "tls.key"}
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "tls.crt"]
    subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True)


@pytest.fixture(autouse=True, scope="module")
def secrets_folder(tmp_path_factory):
    os.environ["PYTEST_SECRETS"] = str(tmp_path_factory.mktemp("secrets"))
    yield
    del os.environ["PYTEST_SECRETS"]


@ALL
def test_selectors_and_ports_meet(objects):
    """Services, disruption budgets and network policies select existing pods."""
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in workloads(objects)]
    for item in objects:
        selector = {
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"].get("matchLabels", {}),
        }.get(item["kind"])
        if selector:
            wanted = selector(item["spec"]).items()
            assert any(wanted <= labels.items() for labels in pods), identity(item)


@ALL
def test_each_base_file_holds_one_kind(objects):
    for path in (K8S / "base").glob("*.yaml"):
        kinds = {one["kind"] for one in yaml.safe_load_all(path.read_text())}
        assert len(kinds) == 1, path.name


def test_redis_keeps_nothing_on_a_provisioned_volume():
    redis = pod_spec(named(render(K8S / "base"), "Deployment", "redis"))
    assert {"name": "data", "emptyDir": {"sizeLimit": "2Gi"}} in redis["volumes"]


@pytest.mark.parametrize("overlay", ["prod-central", "prod-sidecar"])
def test_an_external_redis_takes_the_place_of_ours(api, restricted, overlay, tmp_path):
    """Nothing of the shipped Redis remains, all pods use the external one, and kubectl agrees."""
    external = K8S / "components" / "external-redis"
    objects = accumulate(external, render(K8S / "overlays" / overlay))
    left = [
        identity(one) for one in objects if one["metadata"]["name"] in {"redis", "redis-config"}
    ]
    assert left == []
    urls = {
        entry["value"]
        for item in workloads(objects)
        if item["metadata"]["namespace"] == "csi-fleet"
        for container in containers(item)
        for entry in container.get("env", [])
        if entry["name"] == "CSI_FLEET_REDIS_URL"
    }
    assert urls == {"rediss://redis.example.org:6379/0?ssl_ca_certs=/run/csi-fleet-redis/ca/ca.crt"}
    for item in objects:
        assert apply(api, item, restricted)["kind"] == item["kind"]
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return
    kustomization = {
        "resources": [os.path.relpath(K8S / "overlays" / overlay, tmp_path)],
        "components": [os.path.relpath(external, tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    text = subprocess.run(
        [kubectl, "kustomize", tmp_path], check=True, capture_output=True, text=True
    ).stdout
    theirs = {identity(one): one for one in yaml.safe_load_all(text)}
    assert {identity(one): one for one in objects} == theirs


def test_drivers_file_of_the_central_overlay_is_understood(tmp_path):
    content = (K8S / "overlays/prod-central/drivers.yaml").read_text()
    mounted = "/etc/csi-fleet/driver-tls"
    assert mounted in content
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).touch()
    content = content.replace(mounted, str(tmp_path))
    assert list(driversfile.parse(content, tmp_path / "drivers.yaml")) == ["csi.example.org"]


def test_prometheus_rule_is_the_alert_file():
    rule = named(render(K8S / "overlays/prod-central"), "PrometheusRule", "csi-fleet")
    written = yaml.safe_load((ROOT / "docs/alerts/csi-fleet.yaml").read_text())
    assert rule["spec"]["groups"] == written["groups"]


@pytest.mark.parametrize("overlay", ["prod-central", "prod-sidecar", "prod-node"])
def test_watchers_and_workers_are_scraped_and_may_be(overlay):
    """In each overlay a metrics Service selects watchers
    and workers, and the monitor and a policy include them.
    """
    objects = render(K8S / "overlays" / overlay)
    monitor = named(objects, "ServiceMonitor", "csi-fleet")["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    wanted = monitor["selector"]["matchLabels"].items()
    chosen = [one for one in objects if one["kind"] == "Service"
              and wanted <= one["metadata"].get("labels", {}).items()]  # fmt: skip
    policies = [
        one
        for one in objects
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "metrics"
    ]
    found = 0
    for item in workloads(objects):
        if not {one["name"] for one in containers(item)} & {"watcher", "worker"}:
            continue
        found += 1
        labels = item["spec"]["template"]["metadata"]["labels"].items()
        place = item["metadata"]["namespace"]
        assert any(
            one["metadata"]["namespace"] == place and one["spec"]["selector"].items() <= labels
            and one["spec"]["ports"][0]["name"] == monitor["endpoints"][0]["port"]
            for one in chosen
        ), identity(item)  # fmt: skip
        assert any(
            one["metadata"]["namespace"] == place
            and one["spec"]["podSelector"]["matchLabels"].items() <= labels
            for one in policies
        ), identity(item)  # fmt: skip
    assert found == 2


@ALL
def test_copies_are_spread_and_guarded(objects):
    """Several replicas have anti-affinity, and a drain evicts one of them at a time."""
    for item in workloads(objects):
        if item["spec"].get("replicas", 1) < 2:
            continue
        labels = item["spec"]["template"]["metadata"]["labels"]
        (term,) = pod_spec(item)["affinity"]["podAntiAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        selected = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert selected.items() <= labels.items()
        budgets = [
            one
            for one in objects
            if one["kind"] == "PodDisruptionBudget"
            and one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ]
        assert [one["spec"]["maxUnavailable"] for one in budgets] == [1], identity(item)


def test_autoscaler_names_a_metric_that_exists():
    """The autoscaler names an existing metric.

    With a wrong name, the number of workers would never change.
    """
    hpa = named(render(K8S / "overlays/prod-central"), "HorizontalPodAutoscaler", "worker")
    name = hpa["spec"]["metrics"][0]["external"]["metric"]["name"].removesuffix("_max")
    families = LaneCollector(lambda: {"claims|x": Lane()}).collect()
    assert name in {one.name for one in families}


class Lane:
    ready = retry = running = delayed = blocked = 0
    head_age_seconds = untaken_seconds = 0.0
    paused: ClassVar = {"driver": "x"}
    limits = None
