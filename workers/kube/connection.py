"""Where the API server is and how to prove who we are: kubeconfig, --master or in-cluster.

Uses the official client for file formats, exec plugins, TLS and the connection pool only; its
models stay unused: they are slow and lose unknown fields.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from urllib3 import ProxyManager
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import ssl_

from workers.errors import ConfigError
from workers.kube import official
from workers.kube.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from urllib3 import PoolManager

# "fatal" start-up errors of the reference end with 255 (F-014).
_EXIT_CODE: Final = 255


class _UnverifiedPool(HTTPSConnectionPool):
    """The pool for `insecure-skip-tls-verify`: does not warn at each connection."""

    def _validate_conn(self, conn: Any) -> None:
        if conn.is_closed:
            conn.connect()


@dataclass(frozen=True, slots=True)
class Connection:
    """One generation of address, credentials and connections; replaced as a whole on a reload.

    Attributes:
        transport: carries requests.
        pool: carries watches.
    """

    base_url: str
    pool: PoolManager
    configuration: Any
    transport: Transport

    def authorization(self) -> str | None:
        """Return the Authorization header; re-reads the in-cluster token file each 60 s."""
        try:
            setting = self.configuration.auth_settings().get("BearerToken")
        except (OSError, official.ConfigException):
            # Token being rotated this instant: the old one is mostly still good.
            old: str | None = self.configuration.api_key.get("BearerToken")
            return old
        return str(setting["value"]) if setting else None


def connect(
    kubeconfig: str,
    master: str,
    *,
    pool_size: int,
) -> Connection:
    """Load the client configuration and prepare the pool; opens no connection yet.

    `master` overrides the address found; without both the pod's service account is used (F-010).

    Raises:
        ConfigError: nothing usable; exit code 255.
    """
    configuration = _load(kubeconfig, master)
    configuration.connection_pool_maxsize = pool_size
    configuration.keep_alive = True
    pool = official.RESTClientObject(configuration).pool_manager
    if not configuration.verify_ssl:
        pool.pool_classes_by_scheme = {"http": HTTPConnectionPool, "https": _UnverifiedPool}
    base_url = configuration.host.rstrip("/")
    if base_url.startswith("https:"):
        pool.connection_pool_kw["ssl_context"] = _tls_context(configuration)
        # Else urllib3 loads them at each connection, into the context of all: OpenSSL frees the
        # certificate that another thread's handshake has in hand.
        pool.connection_pool_kw |= {"cert_file": None, "key_file": None}
    # The official client has already looked at no_proxy.
    is_told_all = isinstance(pool, ProxyManager) and base_url.startswith("http:")
    transport = Transport(
        base_url,
        _opener(pool, base_url),
        most_kept=pool_size,
        proxy_headers=(configuration.proxy_headers or {}) if is_told_all else None,
    )
    return Connection(base_url, pool, configuration, transport)


def _opener(pool: PoolManager, base_url: str) -> Callable[[float], Any]:
    """How a connection is made and opened as the pool's own are, without being one of them."""
    host: Any = pool.connection_from_url(base_url)

    def opened(seconds: float) -> Any:
        connection = host._new_conn()  # noqa: SLF001 - all else of the pool is for its own
        connection.timeout = seconds
        try:
            if isinstance(pool, ProxyManager) and base_url.startswith("https:"):
                host._prepare_proxy(connection)  # noqa: SLF001
            else:
                connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    return opened


def _tls_context(configuration: Any) -> ssl.SSLContext:
    """Of all connections; urllib3 adds the authorities. It judges as Go does.

    Since Python 3.13 a default context refuses authorities without key identifiers or key usage,
    such as those of EKS and MicroK8s: https://github.com/kubernetes-client/python/issues/2394.
    """
    needed = ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE
    context = ssl_.create_urllib3_context(cert_reqs=needed)
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    # urllib3 does so only in a context of its own.
    if not (configuration.ssl_ca_cert or configuration.ca_cert_data):
        context.load_default_certs()
    # urllib3 says this at each connection, into a list that another thread's handshake reads.
    context.set_alpn_protocols(["http/1.1"])
    untyped: Any = context
    untyped.set_alpn_protocols = lambda _: None
    if configuration.cert_file:
        try:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        except OSError as error:
            raise ConfigError(
                f"cannot load the client certificate {configuration.cert_file}: {error}; renew it "
                "or its entry in the kubeconfig",
                exit_code=_EXIT_CODE,
            ) from error
    return context


def _reason(kubeconfig: str, error: Exception) -> str:
    """The loader calls a file that is not there an invalid one without a configuration."""
    if kubeconfig and not any(Path(one).exists() for one in kubeconfig.split(os.pathsep)):
        return "there is no such file"
    return " ".join(str(error).split()).rstrip(".")


def _load(kubeconfig: str, master: str) -> Any:
    configuration = official.Configuration()
    try:
        if kubeconfig:
            official.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
        elif not master:
            official.load_incluster_config(client_configuration=configuration)
    except Exception as error:  # whatever the file, its plug-in or its issuer make the loader raise
        source = f"--kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise ConfigError(
            f"cannot load the Kubernetes client configuration ({source}): "
            f"{_reason(kubeconfig, error)}; "
            "set --kubeconfig, KUBECONFIG or --master, or run in a pod",
            exit_code=_EXIT_CODE,
        ) from error
    if master:
        configuration.host = master if "://" in master else f"http://{master}"
    return configuration
