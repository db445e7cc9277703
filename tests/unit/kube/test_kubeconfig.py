"""Credentials from a kubeconfig or a pod, and how they change over time."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys

import pytest

from workers.errors import ConfigError
from workers.kube import kubeconfig
from workers.kube.connection import connect
from workers.kube.kubeconfig import from_files, in_pod


def written(folder, user=None, cluster=None, name="config", **top):
    path = folder / name
    content = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        **top,
    }
    path.write_text(json.dumps(content))
    return str(path)


def plugin(folder, body):
    path = folder / "plugin"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"command": "./plugin", "apiVersion": "client.authentication.k8s.io/v1"}


CREDENTIAL = """
count = open({log!r}, "a"); count.write("x"); count.close()
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                   "status": {status}}}))
"""


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "t"}, "Bearer t"),
        ({"username": "a", "password": "b"}, "Basic " + base64.b64encode(b"a:b").decode()),
        ({}, ""),
    ],
)
def test_what_a_user_says(tmp_path, user, header):
    assert from_files(written(tmp_path, user)).authorization() == header


def test_a_token_file_is_read_again_and_survives_its_replacement(tmp_path, monkeypatch):
    """Paths are relative to their kubeconfig, and a token file takes precedence over a token."""
    now = [0.0]
    monkeypatch.setattr(kubeconfig.time, "monotonic", lambda: now[0])
    (tmp_path / "token").write_text("one\n")
    access = from_files(written(tmp_path, {"tokenFile": "token", "token": "old"}))
    assert access.authorization() == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert access.authorization() == "Bearer one"
    now[0] += 61
    assert access.authorization() == "Bearer two"
    (tmp_path / "token").unlink()
    now[0] += 61
    assert access.authorization() == "Bearer two"


def test_a_plugin_is_run_again_when_its_token_ends(tmp_path):
    log = tmp_path / "log"
    status = '{"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}'
    exec_ = plugin(tmp_path, CREDENTIAL.format(log=str(log), status=status))
    access = from_files(written(tmp_path, {"exec": exec_}))
    assert access.authorization() == "Bearer t"
    assert log.read_text() == "xx"


def test_a_plugin_may_give_a_certificate_and_sees_its_cluster(tmp_path):
    status = """{"clientCertificateData": os.environ["KUBERNETES_EXEC_INFO"],
                 "clientKeyData": os.environ["WHO"]}"""
    exec_ = {
        **plugin(tmp_path, CREDENTIAL.format(log=os.devnull, status=status)),
        "env": [{"name": "WHO", "value": "me"}],
        "provideClusterInfo": True,
    }
    access = from_files(written(tmp_path, {"exec": exec_}))
    told = json.loads(access.tls.certificate)
    assert told["spec"]["cluster"] == {"server": "https://api:6443"}
    assert (access.tls.key, access.authorization()) == (b"me", "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('no login')", "exited with code 1: no login"),
        ("print('hi')", "printed no ExecCredential"),
        ("print(json.dumps({'apiVersion': 'v9', 'status': {}}))", "returned API version v9"),
    ],
)
def test_a_plugin_that_fails_is_one_line(tmp_path, body, reason):
    path = written(tmp_path, {"exec": plugin(tmp_path, body)})
    with pytest.raises(ConfigError, match=reason) as caught:
        connect(path, "")
    assert "\n" not in str(caught.value)


def test_of_several_files_the_first_one_that_names_a_thing_wins(tmp_path):
    first = written(tmp_path, {"token": "first"}, name="a", clusters=None)
    second = written(tmp_path, {"token": "second"}, name="b", **{"current-context": "other"})
    access = from_files(os.pathsep.join([first, str(tmp_path / "missing"), second]))
    assert (access.server, access.authorization()) == ("https://api:6443", "Bearer first")


def test_data_goes_before_a_path_and_a_missing_file_is_told(tmp_path):
    data = base64.b64encode(b"pem").decode()
    cluster = {"certificate-authority": "gone", "certificate-authority-data": data}
    assert from_files(written(tmp_path, cluster=cluster)).tls.authorities == b"pem"
    del cluster["certificate-authority-data"]
    with pytest.raises(ConfigError, match=r"certificate-authority: .*gone does not exist"):
        connect(written(tmp_path, cluster=cluster), "")


def test_a_pod_has_an_address_and_a_token(tmp_path, monkeypatch):
    monkeypatch.setattr(kubeconfig, "_POD_FOLDER", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "ca.crt").write_text("pem")
    with pytest.raises(ConfigError, match="cannot read"):
        connect("", "")
    (tmp_path / "token").write_text("t")
    access = in_pod()
    assert (access.server, access.authorization()) == ("https://[fd00::1]:443", "Bearer t")
    assert access.tls.authorities == str(tmp_path / "ca.crt")


def test_the_official_client_is_loaded_for_old_providers_only(tmp_path):
    code = "import sys; from workers.kube.connection import connect; connect(sys.argv[1], '')"
    code += "; assert 'kubernetes' not in sys.modules and 'urllib3' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, written(tmp_path, {"token": "t"})], check=True)
