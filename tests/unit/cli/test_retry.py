"""`retry` for a claim whose driver has moved only some of its controllers to csi-fleet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli import retry
from workers.config.toolflags import ToolSettings
from workers.errors import ConfigError
from workers.explain import generic
from workers.kube import paths
from workers.queue.inspect import KeyState
from workers.queue.keys import Key

CLAIM = {
    "metadata": {"namespace": "shop", "name": "data", "uid": "u1"},
    "spec": {"storageClassName": "fast", "volumeName": "pv"},
    "status": {"phase": "Bound"},
}


@pytest.mark.parametrize("fails", [0, 3])
def test_the_keys_of_those_that_are_ours(monkeypatch, capsys, fails):
    """A failing resize is retried now even while the Go provisioner still runs."""
    api, queued = MemoryApi(), []
    api.add(paths.CLAIMS, CLAIM)
    api.add(paths.STORAGE_CLASSES, {"metadata": {"name": "fast"}, "provisioner": "d"})
    records = {"d": {"name": "d", "queue_name": "d", "controllers": ["resizer"]}}
    queue = SimpleNamespace(forget=lambda _: None, add=queued.extend)
    tools = SimpleNamespace(
        settings=SimpleNamespace(arguments=("pvc", "shop/data"), tool=ToolSettings()),
        kube=api.kube,
        registry=SimpleNamespace(alive=lambda: records),
        redis=None,
        queue=queue,
    )

    def state(_: Any, key: Key) -> KeyState:
        return KeyState(key, 1.0, fails=fails if key.kind == "changes" else 0)

    monkeypatch.setattr(generic, "read_key", state)
    monkeypatch.setattr(retry, "read_keys", lambda _, keys: [state(_, key) for key in keys])
    if not fails:
        with pytest.raises(ConfigError, match="no worker provisions volumes for driver"):
            retry.run(tools)
        return
    assert retry.run(tools) == 0
    assert {key.kind for key in queued} == {"changes"}
    assert "pvc shop/data has been queued" in capsys.readouterr().out
