"""The chart in k8s/chart renders the same objects as the overlays, for all values."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support import helm
from tests.support.kustomize import accumulate, containers, pod_spec, render
from tests.support.shipped import rights
from workers.config.flagsets import flag_set
from workers.controllers import catalogue
from workers.drivers import driversfile

K8S = Path(__file__).resolve().parents[2] / "k8s"
HOME = "csi-driver-example"
CONTROLLERS = [spec.name for spec in catalogue.SPECS if not spec.part_of]
# The chart makes these objects; for an overlay the user makes them (docs/install.md).
BY_HAND = {"Secret"}


@pytest.fixture(scope="module")
def chart(library):
    return library.Chart.load(K8S / "chart")


@pytest.mark.parametrize(
    ("version", "is_on", "is_refused"),
    [
        ("v1.29.3-eks-1a2b", True, True),
        ("v1.30.0", True, False),
        ("v1.31.2-gke.1", True, False),
        ("v1.27.0", False, False),
    ],
)
def test_the_admission_policy_is_refused_where_the_cluster_cannot_have_it(
    library, tmp_path, version, is_on, is_refused
):
    """The template refuses the admission policy for old versions of
    Kubernetes, because the API server would only name an unknown kind.
    """
    folder = tmp_path / "chart"
    shutil.copytree(K8S / "chart", folder)
    template = folder / "templates/_objects.tpl"
    text = template.read_text()
    asked = ".Capabilities.KubeVersion.Version"  # Helm as a library accepts no version
    assert asked in text
    template.write_text(text.replace(asked, f'"{version}"'))
    chart = library.Chart.load(folder)
    values = {"admissionPolicy": {"enabled": is_on}}
    if is_refused:
        with pytest.raises(library.HelmError, match=r"set admissionPolicy\.enabled=false"):
            helm.objects(chart, values)
    else:
        assert helm.objects(chart, values)


def beside(name, **more):
    """Return an entry of the drivers' list in sidecar mode."""
    return {"name": name, "namespace": HOME, "serviceAccount": "driver", **more}


def over_tcp(name, **more):
    """Return an entry of the drivers' list for a driver that listens on TCP."""
    return {"name": name, "endpoint": f"{name}.svc:10443", "insecure": "true", **more}


def rendered(chart, namespace="csi-fleet", **values):
    """Return the objects by kind and name, without objects in namespaces of drivers."""
    own = {None, namespace, f"{namespace}-records"}
    objects = helm.objects(chart, values, namespace)
    objects = [one for one in objects if one["metadata"].get("namespace") in own]
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects), "an object came twice"
    return found


def comparable(objects):
    """Remove the differences that are intended."""
    found = {}
    for (kind, name), given in objects.items():
        if kind in BY_HAND or name in {"redis-ca", "csi-fleet"}:
            continue
        item = copy.deepcopy(given)
        labels = item["metadata"].pop("labels", {})
        # The chart sets these labels on every object, kustomize on the objects of the base.
        for one in ("managed-by", "part-of"):
            labels.pop(f"app.kubernetes.io/{one}", None)
        item["metadata"] |= {"labels": labels} if labels else {}
        if name == "drivers":
            item["data"] = yaml.safe_load(item["data"]["drivers.yaml"])
        found[kind, name] = item
    return found


def assert_same(chart, overlay, **values):
    """Assert that all fields are equal; `overlay` has the objects of a kustomization."""
    theirs = comparable({(one["kind"], one["metadata"]["name"]): one for one in overlay})
    ours = comparable(rendered(chart, **values))
    assert ours.keys() == theirs.keys()
    for key, item in theirs.items():
        assert ours[key] == item, key


def central():
    """Return the objects of the overlay and the values that render the same objects."""
    drivers = yaml.safe_load((K8S / "overlays/prod-central/drivers.yaml").read_text())["drivers"]
    switches = {"monitoring": {"enabled": True}, "autoscaling": {"enabled": True}}
    return render(K8S / "overlays/prod-central"), {"drivers": drivers, **switches}


def test_central_mode_is_the_overlay(chart):
    overlay, values = central()
    assert_same(chart, overlay, **values)


def test_sidecar_mode_is_the_overlay_without_the_drivers_own(chart):
    """Sidecar mode renders the overlay without driver.yaml,
    which is an example of objects in the driver's own chart.
    """
    overlay = [
        one
        for one in render(K8S / "overlays/prod-sidecar")
        if one["metadata"].get("namespace", "csi-fleet") in {"csi-fleet", "csi-fleet-records"}
        and not one["metadata"]["name"].endswith("driver-example")
    ]
    switches = {"mode": "sidecar", "monitoring": {"enabled": True}}
    assert_same(chart, overlay, **switches)
    ours = rendered(chart, **switches)
    assert ("Deployment", "worker") not in ours


@pytest.mark.parametrize(
    "component", ["redis-sentinel", "external-redis", "fleet-page", "snapshot-metadata"]
)
def test_choice_is_the_component(chart, component):
    """A choice in the values renders the component, as
    the last component of the overlay (docs/install.md).
    """
    overlay, values = central()
    theirs = accumulate(K8S / "components" / component, overlay)
    for one in theirs:  # in an overlay, the last components come before its images
        for container in containers(one):
            if container["image"] == "csi-fleet":
                container["image"] = "csi-fleet:0.1.0"
    choices = {
        "fleet-page": {"flower": {"fleetPage": True}},
        "snapshot-metadata": {"snapshotMetadata": {"enabled": True}},
        "redis-sentinel": {"redis": {"mode": "sentinel"}},
        "external-redis": {
            "redis": {"mode": "external", "url": "rediss://redis.example.org:6379/0"}
        },
    }
    assert_same(chart, theirs, **choices[component], **values)


def test_the_server_for_changed_blocks(chart, library):
    """Each named driver gets its object, and the server the arguments and the drivers' port."""
    chosen = {"enabled": True, "drivers": ["a.csi.example.org"], "caCert": "PEM", "args": ["-v=4"]}
    ours = rendered(chart, "storage", snapshotMetadata=chosen, driversPort=9000)
    assert ours["SnapshotMetadataService", "a.csi.example.org"]["spec"] == {
        "address": "snapshot-metadata.storage.svc:6443",
        "audience": "a.csi.example.org",
        "caCert": base64.b64encode(b"PEM").decode(),
    }
    (container,) = containers(ours["Deployment", "snapshot-metadata"])
    assert container["args"][0] == "snapshot-metadata"
    assert container["args"][-1] == "-v=4"
    (rule,) = ours["NetworkPolicy", "snapshot-metadata-drivers"]["spec"]["egress"]
    assert rule["ports"][0]["port"] == 9000
    with pytest.raises(library.HelmError, match=r"needs snapshotMetadata\.caCert"):
        rendered(chart, snapshotMetadata={**chosen, "caCert": ""})
    with pytest.raises(library.HelmError, match="needs central mode"):
        rendered(chart, mode="sidecar", snapshotMetadata=chosen)


def test_a_cluster_that_knows_no_admission_policies_gets_none(chart):
    """Without the admission policy, as before
    Kubernetes 1.30, no policy restricts a role either.
    """
    ours = rendered(chart, admissionPolicy={"enabled": False})
    assert "ValidatingAdmissionPolicy" not in {kind for kind, _ in ours}
    assert "confine" not in json.dumps(list(ours.values()))


def test_every_controller_brings_its_rights_and_is_chosen(chart):
    """CSI_FLEET_CONTROLLERS is set for watcher, worker and beat, and all roles exist."""
    ours = rendered(chart, controllers=CONTROLLERS)
    for name in ("watcher", "worker", "beat"):
        (container,) = containers(ours["Deployment", name])
        env = {one["name"]: one.get("value") for one in container["env"]}
        assert env["CSI_FLEET_CONTROLLERS"] == ",".join(CONTROLLERS)
    for name in CONTROLLERS[1:]:
        for item in render(K8S / "components" / f"controller-{name}"):
            assert (item["kind"], item["metadata"]["name"]) in ours


def test_another_namespace_is_everywhere(chart):
    """Another namespace is used everywhere, also in binding
    subjects, sentinel addresses and the certificate.
    """
    ours = rendered(chart, "storage", redis={"mode": "sentinel"}, controllers=CONTROLLERS)
    text = json.dumps(list(ours.values()))
    assert '"namespace": "csi-fleet"' not in text
    assert ".csi-fleet.svc" not in text
    assert "redis-0.redis-nodes.storage.svc:26379" in text


def test_certificates_of_cert_manager(chart):
    """With cert-manager the chart generates no key,
    and clients trust the CA in cert-manager's Secret.
    """
    ours = rendered(chart, tls={"source": "cert-manager", "issuerRef": {"name": "ca"}})
    assert ours["Certificate", "redis"]["spec"]["issuerRef"]["name"] == "ca"
    assert ("Secret", "redis-tls") not in ours
    assert ("ConfigMap", "redis-ca") not in ours
    for name in ("watcher", "worker", "beat", "flower"):
        volumes = {one["name"]: one for one in pod_spec(ours["Deployment", name])["volumes"]}
        assert volumes["redis-ca"] == {
            "name": "redis-ca",
            "secret": {
                "secretName": "redis-tls",
                "defaultMode": 0o440,
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            },
        }


def test_each_component_has_its_own_password_only(chart):
    """Each component gets only its own password, so
    an attacker in one pod has one user's password.
    """
    ours = rendered(chart)
    passwords = ours["Secret", "redis-passwords"]["data"]
    assert len(set(passwords.values())) == len(passwords) == 7
    for user in ("watcher", "worker", "beat", "flower"):
        data = ours["Secret", f"redis-password-{user}"]["data"]
        assert data.pop("password") == passwords[user]
        # Only workers sign records.
        assert list(data) == (["records-key"] if user == "worker" else [])
    assert not any(
        key[0] == "Secret" for key in rendered(chart, secrets={"generate": False}, tls=EXISTING)
    )


def test_a_driver_gets_what_the_overlay_gives_it(chart):
    """The namespace of a driver gets the permissions,
    Redis user and CA, so the user copies nothing by hand.
    """
    features = yaml.safe_load((K8S / "chart/values.yaml").read_text())["features"]
    values = {"mode": "sidecar", "features": [*features, "leader-election"]}
    drivers = [beside("csi.example.org"), beside("other.example.org", secret="second")]
    objects = helm.objects(chart, {**values, "drivers": drivers})
    mine, theirs = (
        {one for one in rights(side) if one.account == "driver" and one.verb != "serve"}
        for side in (objects, render(K8S / "overlays/prod-sidecar"))
    )
    assert mine == theirs
    served = {
        one["metadata"]["name"]: one["rules"][0]["resourceNames"]
        for one in objects
        if one["kind"] == "ClusterRole" and "serves" in one["metadata"]["name"]
    }
    assert served == {f"csi-fleet-serves-{one['name']}": [one["name"]] for one in drivers}
    data = {
        one["metadata"]["name"]: set(one.get("data", one.get("binaryData")))
        for one in objects
        if one["metadata"].get("namespace") == HOME and one["kind"] in {"Secret", "ConfigMap"}
    }
    login = {"username", "password", "records-key"}
    assert data == {"redis-password-worker": login, "second": login, "redis-ca": {"ca.crt"}}


def test_the_labels_of_claims_are_named_for_the_workers_and_for_the_policy(chart):
    keys = ["example.org/team", "tier"]
    for labels, flags in (([], []), (keys, ["--claim-labels-to-pv=example.org/team,tier"])):
        objects = rendered(chart, claimLabels=labels)
        policy = objects["ValidatingAdmissionPolicy", "csi-fleet-volumes"]
        named = {one["name"]: one["expression"] for one in policy["spec"]["variables"]}
        assert json.loads(named["claimLabels"]) == labels
        worker = containers(objects["Deployment", "worker"])[0]
        assert [one for one in worker["args"] if "claim-labels" in one] == flags


def test_another_driver_restarts_redis_which_reads_its_users_at_its_start(chart):
    one, two = (
        rendered(chart, mode="sidecar", drivers=drivers)
        for drivers in ([beside("a")], [beside("a"), beside("b", secret="b")])
    )
    assert set(two["Secret", "redis-passwords"]["data"]) >= {"worker.a", "worker.b"}
    templates = [side["Deployment", "redis"]["spec"]["template"] for side in (one, two)]
    assert templates[0] != templates[1]


def placed(objects):
    """Return the objects by kind, namespace and name."""
    return {(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]): o for o in objects}


@pytest.mark.parametrize("mode", ["central", "sidecar"])
def test_each_driver_may_have_a_mode_of_its_own(chart, mode):
    """One installation can have both modes; each driver gets the objects of its own mode."""
    central = [over_tcp(name, mode="central") for name in ("a", "c")]
    drivers = [central[0], beside("b", mode="worker"), central[1]]
    found = placed(helm.objects(chart, {"mode": mode, "drivers": drivers}))
    served = {
        name: (one["subjects"][0]["name"], found["ClusterRole", None, name]["rules"])
        for (kind, _, name), one in found.items()
        if kind == "ClusterRoleBinding" and "serves" in name
    }
    assert {name: (who, rules[0]["resourceNames"]) for name, (who, rules) in served.items()} == {
        "csi-fleet-serves-drivers": ("worker", ["a", "c"]),
        "csi-fleet-serves-b": ("driver", ["b"]),
    }
    text = found["ConfigMap", "csi-fleet", "drivers"]["data"]["drivers.yaml"]
    assert list(driversfile.parse(text, Path("drivers.yaml"))) == ["a", "c"]
    assert ("Deployment", "csi-fleet", "worker") in found
    users = found["Secret", "csi-fleet", "redis-passwords"]["data"].keys()
    assert {one for one in users if one.startswith("worker.")} == {"worker.b"}
    secrets = [place for _, place, name in found if name == "redis-password-worker"]
    assert sorted(secrets) == [HOME, "csi-fleet"]


def test_a_driver_with_another_mode_changes_nothing_for_the_others(chart):
    one = [over_tcp("a")]
    before, after = (
        placed(helm.objects(chart, {"drivers": drivers}))
        for drivers in (one, [*one, beside("b", mode="worker")])
    )
    assert before.keys() <= after.keys()
    new = after.keys() - before.keys()
    assert all(place == HOME or name.endswith("-b") for _, place, name in new)
    assert before["ConfigMap", "csi-fleet", "drivers"] == after["ConfigMap", "csi-fleet", "drivers"]


EXISTING = {"source": "existing"}


def test_the_image_can_be_held_by_digest(chart):
    digest = f"sha256:{'0' * 64}"
    image = {"repository": "registry.example.org/csi-fleet", "tag": "1.2.3", "digest": digest}
    pod = rendered(chart, image=image)[("Deployment", "watcher")]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"registry.example.org/csi-fleet:1.2.3@{digest}"


def test_values_of_one_component(chart):
    """The values of one component set what differs between clusters."""
    own = {
        "replicas": 5,
        "args": ["-v=4"],
        "env": {"HTTPS_PROXY": "p"},
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "podAnnotations": {"c": "d"},
    }
    image = {"repository": "registry/csi-fleet", "tag": "1", "pullPolicy": "Always"}
    ours = rendered(chart, watcher=own, image=image, imagePullSecrets=[{"name": "s"}])
    item = ours["Deployment", "watcher"]
    (container,) = containers(item)
    assert (item["spec"]["replicas"], container["args"][-1]) == (5, "-v=4")
    assert container["image"] == "registry/csi-fleet:1"
    assert container["env"][-1] == {"name": "HTTPS_PROXY", "value": "p"}
    assert container["resources"] == own["resources"]
    spec = pod_spec(item)
    assert (spec["nodeSelector"], spec["tolerations"]) == (own["nodeSelector"], own["tolerations"])
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    assert item["spec"]["template"]["metadata"]["annotations"] == {"c": "d"}
    (redis,) = containers(ours["Deployment", "redis"])
    assert redis["image"].startswith("redis:")


def test_placement_and_labels_of_one_component(chart):
    """Placement and labels replace the chart's own
    values, but a label that a selector uses stays.
    """
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
    own = {
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": spread,
        "priorityClassName": "high",
        "podLabels": {"team": "storage", "app.kubernetes.io/name": "other"},
        "serviceAccountAnnotations": {"role": "writer"},
    }
    ours = rendered(chart, worker=own, commonLabels={"cost": "42"})
    item = ours["Deployment", "worker"]
    spec, labels = pod_spec(item), item["spec"]["template"]["metadata"]["labels"]
    assert spec["affinity"] == own["affinity"]
    assert spec["topologySpreadConstraints"] == spread
    assert spec["priorityClassName"] == "high"
    assert labels.items() >= {"team": "storage", "cost": "42"}.items()
    assert labels.items() >= item["spec"]["selector"]["matchLabels"].items()
    assert ours["ServiceAccount", "worker"]["metadata"]["annotations"] == {"role": "writer"}
    assert "annotations" not in ours["ServiceAccount", "watcher"]["metadata"]
    assert {one["metadata"]["labels"]["cost"] for one in ours.values()} == {"42"}


def test_the_schema_knows_the_fields_of_the_drivers_file():
    """The schema accepts exactly the fields that the worker accepts."""
    known = json.loads((K8S / "chart/values.schema.json").read_text())
    driver = known["definitions"]["driverOverTcp"]["properties"]
    assert driver.keys() - {"mode"} == driversfile._DRIVER_FIELDS
    operations = set(catalogue.lanes())
    assert driver["limits"]["properties"].keys() == {*operations, "serial"}
    assert known["definitions"]["timeouts"]["properties"].keys() == operations
    flags = flag_set(catalogue.choose("provisioner")).flags.values()
    mine = {flag.name for flag in flags if flag.per_driver}
    assert set(driver["flags"]["propertyNames"]["enum"]) == mine
    assert set(driver["controllers"]["propertyNames"]["enum"]) == set(CONTROLLERS) - {"provisioner"}
    features = {one.name.removeprefix("feature-") for one in (K8S / "components").glob("feature-*")}
    assert set(known["properties"]["features"]["items"]["enum"]) == features


@pytest.mark.parametrize(
    "values",
    [
        {"controllers": ["atacher"]},
        {"features": ["snapshot"]},
        {"redis": {"mode": "external"}},
        {"mode": "sidecar", "drivers": [{"name": "a"}]},
        {"mode": "sidecar", "drivers": [beside("a"), beside("b")]},  # one Secret for both drivers
        {"drivers": [beside("a", mode="worker"), beside("b", mode="worker")]},
        # the namespace of the central workers
        {"drivers": [beside("a", mode="worker", namespace="csi-fleet")]},
        {"drivers": [{"name": "a"}]},
        {"drivers": [beside("a")]},  # central mode without an endpoint
        {"mode": "sidecar", "drivers": [over_tcp("a")]},
    ],
)
def test_a_mistake_is_told(library, chart, values):
    """A mistake in the values is an error.

    Otherwise a part of the installation would be missing.
    """
    with pytest.raises(library.HelmError):
        rendered(chart, **values)


def test_helm_finds_nothing_to_complain_of(library):
    report = library.lint(K8S / "chart", strict=True, namespace="csi-fleet")
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "side"}, "mode"),
        ({"monitors": {"enabled": True}}, "monitors"),
        ({"redis": {"mode": "extern"}}, "redis"),
        ({"tls": {"sources": "existing"}}, "sources"),
        ({"worker": {"replica": 3}}, "replica"),
        ({"controllers": ["resiser"]}, "controllers"),
        ({"features": ["snapshot"]}, "features/0"),
        ({"drivers": [{"endpoint": "x:1"}]}, "name"),
        ({"drivers": [over_tcp("a", mode="sidecar")]}, "mode"),
        ({"drivers": [beside("a", mode="central")]}, "endpoint"),
        ({"drivers": [over_tcp("a", mode="central", serviceAccount="x")]}, "serviceAccount"),
        ({"drivers": [over_tcp("a", mode="worker")]}, "namespace"),
        ({"drivers": [beside("a", mode="worker", tls={})]}, "tls"),
        ({"drivers": [{"name": "a", "endpiont": "x:1"}]}, "endpiont"),
        ({"drivers": [{"name": "a", "endpoint": "x:1", "tls": {"cert": "c"}}]}, "cert"),
        ({"drivers": [over_tcp("a", limits={"create": {"concurrencies": 2}})]}, "concurrencies"),
        ({"drivers": [over_tcp("a", limits={"creat": {"concurrency": 2}})]}, "creat"),
        ({"drivers": [over_tcp("a", timeouts={"create": "30"})]}, "timeouts/create"),
        ({"drivers": [over_tcp("a", flags={"default-fs-type": "xfs"})]}, "default-fs-type"),
        ({"drivers": [over_tcp("a", namespace="n")]}, "namespace"),
        ({"mode": "sidecar", "drivers": [over_tcp("a")]}, "namespace"),
        ({"mode": "sidecar", "drivers": [beside("a", endpoint="x:1")]}, "endpoint"),
        ({"worker": {"affinity": {"podAfinity": {}}}}, "podAfinity"),
        ({"watcher": {"fleetPage": True}}, "fleetPage"),
        ({"driversPort": 70000}, "driversPort"),
    ],
)
def test_a_value_that_nothing_would_read_is_refused(library, chart, values, said):
    with pytest.raises(library.HelmError, match=said):
        helm.objects(chart, values)


def test_the_schema_knows_all_values():
    """The schema has all values and no others, except for the namespace of a parent chart."""
    values = yaml.safe_load((K8S / "chart/values.yaml").read_text())
    known = json.loads((K8S / "chart/values.schema.json").read_text())["properties"]
    assert known.keys() - {"global"} == values.keys()
    for name, value in values.items():
        if isinstance(value, dict) and known[name].get("properties"):
            assert value.keys() <= known[name]["properties"].keys()


def test_labels_of_claims_that_are_set_to_null_are_no_labels(chart):
    objects = rendered(chart, claimLabels=None)
    policy = objects["ValidatingAdmissionPolicy", "csi-fleet-volumes"]
    assert policy["spec"]["variables"][0]["expression"] == "[]"
