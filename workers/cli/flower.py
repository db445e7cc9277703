"""`csi-fleet flower`: Flower on our broker, read-only, with bounded memory and a login."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import parse_qsl, urlsplit

from workers.app import make_app
from workers.config.checks import OIDC_PROVIDERS
from workers.config.redisurl import is_sentinel, parse_sentinels

if TYPE_CHECKING:
    from workers.config.settings import Settings


def arguments(settings: Settings) -> list[str]:
    """Flower's own options (pitfalls of Flower: memory, pickles, logins, stale workers)."""
    flower = settings.flower
    found = [
        f"--address={flower.address}",
        f"--port={flower.port}",
        "--max_tasks=10000",
        "--persistent=False",
        "--purge_offline_workers=300",
        "--read_only=True",
        "--tasks_columns=name,args,state,received,started,runtime,worker,exception",
    ]
    if flower.basic_auth:
        found.append(f"--basic_auth={','.join(flower.basic_auth)}")
    if all(flower.tls):
        certificate, key = (str(Path(one).resolve()) for one in flower.tls)
        found += [f"--certfile={certificate}", f"--keyfile={key}"]
    if (oidc := flower.oidc) is not None:
        found += [
            f"--auth_provider=flower.views.auth.{OIDC_PROVIDERS[oidc.provider]}",
            f"--auth={oidc.allowed}",
            f"--oauth2_key={oidc.client_id}",
            f"--oauth2_secret={oidc.secret}",
            f"--oauth2_redirect_uri={oidc.redirect_uri}",
        ]
    return found


def tls_options(url: str) -> dict[str, object] | None:
    """What Flower's own Redis client needs for rediss://; it reads no TLS file from the query.

    Returns None for a connection without TLS. Celery's connections take the URL as it is.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return None
    files = {key: value for key, value in parse_qsl(parts.query) if key.startswith("ssl_")}
    files.pop("ssl_cert_reqs", None)
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **files}


def follow_sentinels(url: str) -> None:
    """Let Flower's own client ask all sentinels; it knows but the first, which may be dead."""
    if is_sentinel(url):
        from flower.utils.broker import RedisSentinel  # noqa: PLC0415 - rarely needed

        from workers.queue.asyncsentinels import async_master_client  # noqa: PLC0415

        place = parse_sentinels(url)
        RedisSentinel._get_redis_client = lambda *_: async_master_client(place)  # noqa: SLF001


def run(settings: Settings) -> NoReturn:
    """The command; ends the process."""
    app = make_app(settings)
    app.set_default()
    follow_sentinels(settings.redis.url_with_credentials())
    if options := tls_options(settings.redis.url):
        app.conf.broker_use_ssl = options
    app.start(["--quiet", "flower", *arguments(settings)])
