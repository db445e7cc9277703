"""The five names of the official client that we use, loaded without the rest of it.

`import kubernetes` loads what reads and writes API objects too: pydantic, requests, OAuth and
websockets, a quarter of what a process of ours loads at its start, for nothing. Here the packages
on the way are found but not run, and what only a kubeconfig with the old `auth-provider: oidc`
needs is imported when one wants its token renewed.

Nobody else notices: what was loaded here leaves `sys.modules` again, and who imports `kubernetes`
later, as a plug-in may, gets all of it.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PACKAGES: Final = ("kubernetes", "kubernetes.client", "kubernetes.config", "kubernetes.utils")
_OAUTH: Final = ("oauthlib", "oauthlib.oauth2", "requests_oauthlib")
_ROOTS: Final = frozenset({"kubernetes", "oauthlib", "requests_oauthlib"})


class _Later(ModuleType):
    """A package whose modules are imported when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return importlib.import_module(f"{self.__name__}.{name}")


def _later(module: str, name: str) -> Callable[..., Any]:
    """A class that is imported when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


@contextmanager
def _alone() -> Iterator[None]:
    """Inside, modules of these packages can be imported and load nothing around them."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_touched(name)}
    try:
        for name in _PACKAGES:
            spec = find_spec(name)
            if spec is None:
                raise ModuleNotFoundError(name)
            sys.modules[name] = module_from_spec(spec)
        sys.modules.update((name, _Later(name)) for name in _OAUTH)
        yield
    finally:
        for name in [name for name in sys.modules if _is_touched(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_touched(name: str) -> bool:
    return name.partition(".")[0] in _ROOTS


with _alone():
    _configuration: Any = importlib.import_module("kubernetes.client.configuration")
    _client: Any = sys.modules["kubernetes.client"]
    _client.Configuration = _configuration.Configuration
    _client.ApiClient = _later("kubernetes.client", "ApiClient")
    _oauth: Any = sys.modules["requests_oauthlib"]
    _oauth.OAuth2Session = _later("requests_oauthlib", "OAuth2Session")
    _rest: Any = importlib.import_module("kubernetes.client.rest")
    _incluster: Any = importlib.import_module("kubernetes.config.incluster_config")
    _file: Any = importlib.import_module("kubernetes.config.kube_config")

Configuration: Any = _configuration.Configuration
RESTClientObject: Any = _rest.RESTClientObject
ConfigException: type[Exception] = _file.ConfigException
load_incluster_config: Callable[..., None] = _incluster.load_incluster_config
load_kube_config: Callable[..., None] = _file.load_kube_config
