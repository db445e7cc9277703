"""Parses `sentinel://` URLs.

```
sentinel://host1:26379,host2,host3/master-name?db=0&ssl_ca_certs=/path/ca.crt
```
The port defaults to 26379, the database to 0. Any `ssl_` option means TLS, both to the sentinels
and to the Redis servers. A user and password before an `@` are the credentials for the Redis
servers. The credentials for the sentinels are given by the options `sentinel_username`,
`sentinel_password` and `sentinel_password_file`. The last of these is an extension of csi-fleet: it
names a file that contains the current password.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEME: Final = "sentinel://"
SCHEMES: Final = ("redis://", "rediss://", "unix://", SCHEME)
DEFAULT_PORT: Final = 26379
HIGHEST_PORT: Final = 65535
_ESCAPES: Final = "in a user name or password, write / as %2F, ? as %3F and # as %23"
# The options that redis-py, Celery and Flower all support.
TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
    "ssl_cert_reqs",
)
_OPTIONS: Final = {"redis": (), "rediss": TLS_OPTIONS, "unix": ("db",)}
_LOGIN: Final = ("sentinel_username", "sentinel_password", "sentinel_password_file")


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """A parsed URL.

    Args:
        hosts: the sentinels, at least one.
        master: the name that the sentinels use for the master.
        tls: the TLS options by redis-py's names; empty without TLS.
    """

    hosts: tuple[tuple[str, int], ...]
    master: str
    database: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    sentinel_password_file: str = ""
    tls: Mapping[str, Any] = field(default_factory=dict)

    @property
    def login(self) -> dict[str, str]:
        """Return the user and password of the servers, if they are given."""
        return _without_empty(username=self.username, password=self.password)


def is_loopback(host: str) -> bool:
    """Return True if the host is this machine, so that data sent to it crosses no network."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in {"", "localhost"}


def is_sentinel(url: str) -> bool:
    """Return True if the URL names sentinels instead of a Redis server."""
    return url.startswith(SCHEME)


def check_place(url: str) -> None:
    """Refuse a URL that redis-py cannot read, or reads differently from Celery.

    Raises:
        ValueError: the URL is unusable. The message is one line and does not contain the URL,
            which may contain a password.
    """
    if is_sentinel(url):
        parse_sentinels(url)
        return
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # The original error message shows the host, but a password may have been parsed as the
        # host.
        raise ValueError(f"the host or the port is malformed; {_ESCAPES}") from None
    database = parts.path.removeprefix("/")
    if parts.scheme == "unix":
        if parts.netloc:
            raise ValueError(f"use three slashes, as in unix:///run/redis.sock; {_ESCAPES}")
    elif "db" in dict(parse_qsl(parts.query)) or not (database or "0").isdecimal():
        raise ValueError("the database is not a number. Write it as redis://HOST:PORT/NUMBER")
    options = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    _check_options(parts.scheme, options, *_OPTIONS.get(parts.scheme, ()))
    if parts.scheme == "unix" and not dict(options).get("db", "0").isdecimal():
        raise ValueError("the value of db= is not a database number")


def parse_sentinels(url: str) -> SentinelUrl:
    """Parse the URL.

    Raises:
        ValueError: the URL is invalid. The message is one line and does not contain the URL,
            which may contain a password.
    """
    rest, _, query = url.removeprefix(SCHEME).partition("?")
    authority, _, path = rest.partition("/")
    login, _, places = authority.rpartition("@")
    username, _, password = login.partition(":")
    hosts = tuple(_host(place) for place in places.split(",") if place)
    if not hosts or not path or "/" in path:
        raise ValueError(
            "the sentinels or the master name are missing. Use "
            "sentinel://host1:26379,host2:26379,host3:26379/master-name"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    database = options.pop("db", "0")
    sentinel_login = {name: options.pop(name, "") for name in _LOGIN}
    if not database.isdigit():
        raise ValueError(f"db={database} is not a database number")
    _check_options("sentinel", options.items(), "db", *TLS_OPTIONS)
    return SentinelUrl(
        hosts=hosts,
        master=unquote(path),
        database=int(database),
        username=unquote(username),
        password=unquote(password),
        tls={name: _tls_value(name, value) for name, value in options.items()},
        **sentinel_login,
    )


def split_sentinel_login(url: str) -> tuple[str, str, str, str]:
    """Return the URL without the sentinels' credentials, and the credentials.

    The credentials are the sentinels' user, their password, and the path of their password file.
    """
    place, mark, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if not is_sentinel(url) or not any(name in found for name in _LOGIN):
        return url, "", "", ""
    kept = urlencode([pair for pair in pairs if pair[0] not in _LOGIN], safe="/")
    username, password, file = (found.get(name, "") for name in _LOGIN)
    return place + (mark + kept if kept else ""), username, password, file


def with_sentinel_login(url: str, username: str, password: str, file: str = "") -> str:
    """Return the URL with the sentinels' credentials added. The result is secret: never log it."""
    login = dict(zip(_LOGIN, (username, password, file), strict=True))
    added = urlencode(_without_empty(**login), quote_via=quote)
    if not is_sentinel(url) or not added:
        return url
    return f"{url}{'&' if '?' in url else '?'}{added}"


def _check_options(scheme: str, options: Iterable[tuple[str, str]], *known: str) -> None:
    """Refuse unknown options.

    The error does not name the options, because they may be part of a password.
    """
    if any(name not in known for name, _ in options):
        names = ", ".join(known) or "none"
        raise ValueError(
            f"unknown option after ?. Valid options for a {scheme}:// URL: {names}; {_ESCAPES}"
        )
    for name, value in options:
        if not value:
            raise ValueError(f"option {name}= has no value")


def _host(place: str) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        return place.strip("[]"), DEFAULT_PORT
    if not host or not port.isdecimal() or int(port) > HIGHEST_PORT:
        raise ValueError(f"the address of a sentinel is not host:port; {_ESCAPES}")
    return host.strip("[]"), int(port)


def _tls_value(name: str, value: str) -> Any:
    return value.lower() not in {"false", "no", "0"} if name == "ssl_check_hostname" else value


def _without_empty(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
