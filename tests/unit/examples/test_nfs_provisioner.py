"""The NFS plug-in on a plain directory (NP-002 to NP-006)."""

from __future__ import annotations

import pytest

from examples.nfs_provisioner.exports import ExportError, exports_from
from examples.nfs_provisioner.provisioner import NfsProvisioner
from workers.conformance.plugin import check_provisioner
from workers.custom import INVALID_ARGUMENT, Ignored, ProvisionError, ProvisionOptions, State

NAME = "provisioner.test.com/nfs"
ARTICLE = {"server": "nfs1", "path": "/export"}


@pytest.fixture
def export(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    return place


@pytest.fixture
def nfs(export):
    return NfsProvisioner(NAME, exports_from(f"nfs1:/export={export}"), require_sub_dir=False)


def request(parameters, name="data", uid="u1", **fields):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {
        "metadata": {"name": name, "namespace": "team", "uid": uid},
        "spec": spec | fields.pop("spec", {}),
    }
    storage_class = {"metadata": {"name": "nfs"}, "provisioner": NAME, "parameters": parameters}
    return ProvisionOptions(storage_class | fields, f"pvc-{uid}", claim)


def deletable(volume, by=NAME):
    volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = by
    return volume


def test_npt002_the_articles_class(nfs):
    volume = nfs.provision(request(ARTICLE, mountOptions=["vers=4"])).volume
    assert volume["metadata"]["name"] == "pvc-u1"
    assert volume["spec"] == {
        "persistentVolumeReclaimPolicy": "Delete",
        "accessModes": ["ReadWriteOnce"],
        "mountOptions": ["vers=4"],
        "capacity": {"storage": "1Gi"},
        "volumeMode": "Filesystem",
        "nfs": {"server": "nfs1", "path": "/export", "readOnly": False},
    }


def test_npt003_read_only_is_exactly_true(nfs):
    found = [
        nfs.provision(request({**ARTICLE, "readOnly": text})).volume["spec"]["nfs"]["readOnly"]
        for text in ("true", "True")
    ]
    assert found == [True, False]


def test_npt004_a_selector_is_refused(nfs):
    with pytest.raises(ProvisionError, match="claim Selector is not supported") as caught:
        nfs.provision(request(ARTICLE, spec={"selector": {}}))
    assert (caught.value.state, caught.value.code) == (State.FINISHED, None)


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"path": "/export"}, id="NPT-005 no server"),
        pytest.param({"server": "nfs1"}, id="no path"),
        pytest.param({"server": "nfs1", "path": "export"}, id="relative path"),
        pytest.param({**ARTICLE, "colour": "red"}, id="unknown key"),
        pytest.param({**ARTICLE, "subDir": "../x"}, id="NPT-009 leaves the export"),
        pytest.param({**ARTICLE, "subDir": "a\\..\\b"}, id="backslashes"),
        pytest.param({**ARTICLE, "subDir": "${pvc.labels.x}"}, id="unknown variable"),
        pytest.param({**ARTICLE, "onDelete": "delete"}, id="policy without subDir"),
        pytest.param({**ARTICLE, "subDir": "x", "onDelete": "burn"}, id="unknown policy"),
    ],
)
def test_a_wrong_class_is_infeasible(nfs, export, parameters):
    with pytest.raises(ProvisionError) as caught:
        nfs.provision(request(parameters))
    assert caught.value.code == INVALID_ARGUMENT
    assert list(export.iterdir()) == []


def test_npt007_without_sub_dir_nothing_is_removed(nfs, export):
    (export / "file").write_text("x")
    nfs.delete(deletable(nfs.provision(request(ARTICLE)).volume))
    assert (export / "file").exists()


def test_npt008_a_directory_for_each_claim(nfs, export):
    """The directory is open to all users whatever the umask, and a second call leaves it alone."""
    parameters = {**ARTICLE, "subDir": "${pvc.metadata.namespace}/${pvc.metadata.name}"}
    for name in ("one", "two"):
        volume = nfs.provision(request(parameters, name, name)).volume
        assert volume["spec"]["nfs"]["path"] == f"/export/team/{name}"
    assert sorted(one.name for one in (export / "team").iterdir()) == ["one", "two"]
    assert (export / "team" / "one").stat().st_mode & 0o777 == 0o777
    (export / "team" / "one").chmod(0o700)
    nfs.provision(request(parameters, "one", "one"))
    assert (export / "team" / "one").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        pytest.param({"onDelete": "archive"}, ["archived-pvc-u1"], id="NPT-010 archive"),
        pytest.param({"archiveOnDelete": "true"}, ["archived-pvc-u1"], id="archiveOnDelete"),
        pytest.param({"archiveOnDelete": "false"}, [], id="archiveOnDelete false"),
        pytest.param({"onDelete": "delete"}, [], id="delete"),
        pytest.param({}, ["pvc-u1"], id="retain"),
    ],
)
def test_deletion_by_policy_and_twice(nfs, export, policy, left):
    parameters = {**ARTICLE, "pathPattern": "${pv.metadata.name}", **policy}
    volume = deletable(nfs.provision(request(parameters)).volume)
    for _ in range(2):
        nfs.delete(volume)
    assert [one.name for one in export.glob("[!.]*")] == left


def test_npt012_a_class_without_policy_means_delete(nfs):
    options = request(ARTICLE)
    assert options.storage_class.get("reclaimPolicy") is None
    spec = nfs.provision(options).volume["spec"]
    assert spec["persistentVolumeReclaimPolicy"] == "Delete"


def test_a_volume_of_another_is_ignored(nfs):
    with pytest.raises(Ignored):
        nfs.delete(deletable(nfs.provision(request(ARTICLE)).volume, by="other"))


def test_a_volume_that_points_outside_is_not_removed(nfs, export, tmp_path):
    """An edited PV, or a link in the export, must not lead outside the export."""
    outside = tmp_path / "outside"
    (outside / "pvc-u1").mkdir(parents=True)
    (export / "link").symlink_to(outside)
    parameters = {**ARTICLE, "subDir": "pvc-u1", "onDelete": "delete"}
    volume = deletable(nfs.provision(request(parameters)).volume)
    for path in ("/export/link/pvc-u1", "/export/../outside/pvc-u1", "/export"):
        volume["spec"]["nfs"]["path"] = path
        with pytest.raises(ValueError, match="export"):
            nfs.delete(volume)
    assert (outside / "pvc-u1").exists()


def test_np005_shared_directories_can_be_refused(export):
    strict = NfsProvisioner(NAME, exports_from(f"nfs1:/export={export}"), require_sub_dir=True)
    with pytest.raises(ProvisionError, match="must not share"):
        strict.provision(request(ARTICLE))


def test_an_export_that_is_away_leaves_the_end_open(export):
    nfs = NfsProvisioner(NAME, exports_from("nfs1:/export=/no/such/place"))
    with pytest.raises(ProvisionError, match="should be mounted") as caught:
        nfs.provision(request({**ARTICLE, "subDir": "x"}))
    assert caught.value.state is State.BACKGROUND


def test_exports_are_found_by_server_and_path(export, monkeypatch):
    monkeypatch.setenv("PATH", "")  # mount(8) is not found
    exports = exports_from(f"nfs1:/export={export}, nfs2:/={export}")
    with exports.opened("nfs1", "/export/deep") as place:
        assert place == export / "deep"
    with pytest.raises(ValueError, match="NFS_EXPORTS"):
        exports_from("nfs1")
    with pytest.raises(ExportError, match="mount"), exports.opened("nfs1", "/exporter"):
        pass


def test_np006_the_plugin_passes_the_kit(export):
    report = check_provisioner(
        lambda: NfsProvisioner(NAME, exports_from(f"nfs1:/export={export}")),
        parameters={**ARTICLE, "subDir": "${pv.metadata.name}", "onDelete": "delete"},
    )
    assert report.broken == [], report.text()
    assert list(export.glob("[!.]*")) == []


TEMPLATE = {**ARTICLE, "subDir": "${pvc.metadata.namespace}-${pvc.metadata.name}"}


def of(namespace, name, uid, parameters=None):
    options = request(parameters or TEMPLATE, name=name, uid=uid)
    options.claim["metadata"]["namespace"] = namespace
    return options


def test_sec8_two_claims_never_share_a_live_directory(nfs, export):
    """`team/a-prod` and `team-a/prod` give the same name in this template."""
    nfs.provision(of("team", "a-prod", "u1"))
    (export / "team-a-prod" / "live").write_text("data")
    with pytest.raises(ProvisionError, match="belongs to volume pvc-u1") as caught:
        nfs.provision(of("team-a", "prod", "u2"))
    assert caught.value.code == INVALID_ARGUMENT
    assert (export / "team-a-prod" / "live").read_text() == "data"
    assert nfs.provision(of("team", "a-prod", "u1")).volume, "its owner may ask again"


def test_sec8_what_no_volume_owns_is_not_handed_out(nfs, export):
    (export / "team-home").mkdir()
    (export / "team-home" / "file").write_text("data")
    with pytest.raises(ProvisionError, match="belongs to no volume"):
        nfs.provision(of("team", "home", "u1"))
    assert (export / "team-home" / "file").read_text() == "data"


def test_sec8_a_volume_deletes_only_its_own_directory(nfs, export):
    policy = {**TEMPLATE, "onDelete": "delete"}
    mine = deletable(nfs.provision(of("team", "a-prod", "u1", policy)).volume)
    mine["metadata"]["name"] = "pvc-u2"
    nfs.delete(mine)
    assert (export / "team-a-prod").is_dir()


def test_sec8_an_archive_is_nobodys_new_volume(nfs, export):
    policy = {**ARTICLE, "subDir": "${pvc.metadata.name}", "onDelete": "archive"}
    nfs.delete(deletable(nfs.provision(of("a", "db", "u1", policy)).volume))
    with pytest.raises(ProvisionError, match="archived"):
        nfs.provision(of("b", "archived-db", "u2", policy))
    nfs.delete(deletable(nfs.provision(of("a", "db", "u3", policy)).volume))
    assert len(list(export.glob("archived-db*"))) == 2


DELETES = {**ARTICLE, "onDelete": "delete"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("${pvc.metadata.namespace}", "${pvc.metadata.namespace}/${pvc.metadata.name}"),
        ("${pvc.metadata.namespace}/${pvc.metadata.name}", "${pvc.metadata.namespace}"),
        ("./a", "a/b"),
        ("a//b", "a/b/c"),
        ("a/b/./", "a/b/c"),
        ("a/b/c", "./a//b"),
        ("a", "a"),
        ("a/.", "a"),
    ],
)
@pytest.mark.parametrize("policy", ["delete", "archive"])
def test_no_volume_lies_inside_or_around_another(nfs, export, first, second, policy):
    """csi-driver-nfs#855: deleting the outer volume would delete the inner one's data."""
    outer = {**ARTICLE, "onDelete": policy, "subDir": first}
    volume = deletable(nfs.provision(request(outer, "one", "one")).volume)
    data = export / volume["spec"]["nfs"]["path"].removeprefix("/export/") / "data"
    data.write_text("x")
    with pytest.raises(ProvisionError) as caught:
        nfs.provision(request({**DELETES, "subDir": second}, "two", "two"))
    assert caught.value.code == INVALID_ARGUMENT
    assert data.read_text() == "x"
    nfs.delete(volume)
    nfs.provision(request({**DELETES, "subDir": "a/x/y"}, "two", "two"))


def test_names_that_begin_alike_are_two_directories(nfs):
    for name, sub_dir in (("one", "team/a"), ("two", "team/ab"), ("three", "team-a")):
        nfs.provision(request({**DELETES, "subDir": sub_dir}, name, name))


@pytest.mark.parametrize(
    "path",
    [
        "/export/.nfs-provisioner",
        "/export/./.nfs-provisioner",
        "/export/x/../.nfs-provisioner",
        "/export/.nfs-provisioner/anything",
        "/export/team/.nfs-provisioner/anything",
    ],
)
@pytest.mark.parametrize("at", ["/export", "/export/team", "/export/.nfs-provisioner", "/"])
def test_a_forged_volume_does_not_delete_the_registry(export, tmp_path, path, at):
    place = {"/": tmp_path, "/export": export}.get(at, export / at.removeprefix("/export/"))
    forger = NfsProvisioner(NAME, exports_from(f"nfs1:/export={export},nfs1:{at}={place}"))
    volume = deletable(forger.provision(request({**DELETES, "subDir": "team"})).volume)
    before = sorted(export.rglob("*"))
    volume["spec"]["nfs"]["path"] = path
    volume["metadata"]["annotations"]["nfs.example/export"] = at
    with pytest.raises((ValueError, ProvisionError)):
        forger.delete(volume)
    assert sorted(export.rglob("*")) == before


def test_a_directory_that_was_made_for_nobody_is_not_deleted(nfs, export):
    (export / "precious").mkdir()
    volume = deletable(nfs.provision(request({**DELETES, "subDir": "mine"})).volume)
    volume["spec"]["nfs"]["path"] = "/export/precious"
    nfs.delete(volume)
    assert (export / "precious").is_dir()


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("${.PVC.namespace}/${.PVC.name}", "team/data"),
        ("${PVC.namespace}-${PVC.name}", "team-data"),
        ("${.PVC.annotations.nfs.io/storage-path}", "docs"),
        ("${.PVC.labels.app}/x", "db/x"),
    ],
)
def test_path_patterns_of_nfs_subdir_external_provisioner(nfs, pattern, path):
    """The cases are from its README: nfs-subdir-external-provisioner#91, #127, #347."""
    wanted = request({**ARTICLE, "pathPattern": pattern})
    wanted.claim["metadata"] |= {
        "annotations": {"nfs.io/storage-path": "docs"}, "labels": {"app": "db"}
    }  # fmt: skip
    assert nfs.provision(wanted).volume["spec"]["nfs"]["path"] == f"/export/{path}"


@pytest.mark.parametrize("text", ["../other", "..", "/", "", "a/../../b"])
def test_an_annotation_leads_nowhere_else(nfs, text):
    wanted = request({**ARTICLE, "pathPattern": "${.PVC.annotations.where}"})
    wanted.claim["metadata"]["annotations"] = {"where": text}
    with pytest.raises(ProvisionError):
        nfs.provision(wanted)
