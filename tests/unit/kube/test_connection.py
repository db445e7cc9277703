"""An unusable client configuration gives a one-line error instead of a traceback."""

from __future__ import annotations

import pytest

from workers.errors import ConfigError
from workers.kube.client import KubeClient


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("users: [{name: u, user: {token: a", id="no YAML"),
        pytest.param("- just\n- a list\n", id="a list"),
        pytest.param("clusters: 3\ncurrent-context: x\n", id="another shape"),
        pytest.param("apiVersion: v1\nkind: Config\ncurrent-context: gone\n", id="no context"),
        pytest.param("\x00\x01", id="no text"),
    ],
)
def test_an_unusable_kubeconfig_is_one_line(text, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        KubeClient.from_settings(str(path), "", user_agent="test")
    assert str(caught.value).startswith("cannot load the Kubernetes client configuration")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
