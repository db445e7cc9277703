"""For a claim that does not exist, every command gives the same hint as explain."""

from __future__ import annotations

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli import dry_run, explain, retry
from workers.cli.tools import Tools
from workers.config.load import parse
from workers.errors import ConfigError
from workers.kube import paths


@pytest.fixture
def run(redis_server, redis_client):
    """Return a function that runs a command in a cluster with one claim, `shop/data`."""
    api = MemoryApi()
    api.add(paths.CLAIMS, {"metadata": {"name": "data", "namespace": "shop", "uid": "u"}})

    def call(module, *words):
        command = module.__name__.rpartition(".")[2].replace("_", "-")
        tools = Tools(parse(command, [*words, f"--redis-url={redis_server.url}"], {}))
        tools.kube = api.kube
        return module.run(tools)

    return call


@pytest.mark.parametrize("module", [retry, dry_run])
@pytest.mark.parametrize(
    ("claim", "hint"),
    [
        ("shop/dat", 'Did you mean "data"?'),
        ("else/data", "A claim of this name is in shop."),
    ],
)
def test_a_mistyped_claim(run, module, claim, hint, capsys):
    with pytest.raises(ConfigError) as caught:
        run(module, "pvc", claim)
    assert caught.value.exit_code == 1
    assert str(caught.value).endswith(f" {hint}")
    assert run(explain, "pvc", claim) == 1
    assert hint in capsys.readouterr().out


@pytest.mark.parametrize("module", [retry, dry_run])
def test_nothing_is_like_it(run, module):
    with pytest.raises(ConfigError, match=r"not found$"):
        run(module, "pvc", "shop/zzz")
