"""The API server gets requests only once its certificate can be read."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import pytest
import requests
import yaml

from tests.support import controlplane
from tests.support.kube_api import KubeApi


@pytest.fixture
def plane(tmp_path, monkeypatch):
    process = SimpleNamespace(pid=1, is_running=lambda: True)
    monkeypatch.setattr(controlplane, "start_process", lambda *_, **__: process)
    monkeypatch.setattr(controlplane, "binaries_directory", lambda: tmp_path)
    (tmp_path / "certs").mkdir()
    return controlplane.ControlPlane(tmp_path)


def test_a_certificate_that_is_there_but_not_written_yet_is_waited_for(plane, monkeypatch):
    """Otherwise the kubeconfig would have no authority, and no start would ever succeed."""
    asked = []

    def wait(_part, condition):
        certs = plane.directory / "certs"
        if not asked:
            (certs / "apiserver.crt").touch()
            assert not condition()
            (certs / "apiserver.crt").write_text("PEM")
            (certs / "apiserver.key").touch()
            assert condition()
        asked.append(condition)

    monkeypatch.setattr(plane, "_wait", wait)
    plane._launch("kube-apiserver")
    cluster = yaml.safe_load(plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"PEM"
    assert len(asked) == 2


def test_a_wrong_authority_is_told_and_not_taken_for_a_server_that_starts(monkeypatch):
    def fail(*_, **__):
        raise requests.exceptions.SSLError("certificate verify failed")

    monkeypatch.setattr(KubeApi, "request", fail)
    with pytest.raises(requests.exceptions.SSLError):
        KubeApi.is_ready(KubeApi.__new__(KubeApi))
