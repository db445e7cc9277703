"""The meaning of a sentinel:// URL, whose passwords are never shown."""

from __future__ import annotations

import pytest

from workers.app import broker_url
from workers.config.load import parse
from workers.config.redisurl import parse_sentinels
from workers.errors import ConfigError


def test_hosts_master_database_and_tls():
    found = parse_sentinels("sentinel://a:1,b,[::1]:3/main?db=2&ssl_ca_certs=/ca.crt")
    assert found.hosts == (("a", 1), ("b", 26379), ("::1", 3))
    assert (found.master, found.database) == ("main", 2)
    assert found.tls == {"ssl_ca_certs": "/ca.crt"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sentinel://a,b", "Use sentinel://"),
        ("sentinel:///main", "Use sentinel://"),
        ("sentinel://a:x/main", "is not host:port"),
        ("sentinel://a/main?db=x", "is not a database number"),
        ("sentinel://a/main?tls=yes", "unknown option"),
        ("http://a/main", "must start with"),
    ],
)
def test_a_mistake_is_one_line(url, problem):
    with pytest.raises(ConfigError, match=problem):
        parse("watcher", [], {"CSI_FLEET_REDIS_URL": url})


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://:hush/x@127.0.0.1:1/0", "write / as %2F"),
        ("rediss://u:hush?x@h:1/0", "write / as %2F"),
        ("sentinel://u:hush/x@h:1/main", "write / as %2F"),
        ("sentinel://:hush/x@h:1/main", "write / as %2F"),
        ("redis://[::1/0", "the host or the port is malformed"),
        ("redis://h:99999/0", "the host or the port is malformed"),
        ("sentinel://h:99999/main", "is not host:port"),
        ("redis://h/x", "redis://HOST:PORT/NUMBER"),
        ("redis://h/1/", "redis://HOST:PORT/NUMBER"),
        ("redis://h?db=1", "redis://HOST:PORT/NUMBER"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix://u:hush/x@/run/redis.sock", "write / as %2F"),
        ("redis://h/0?a=b", "unknown option after .* redis:// URL: none"),
        ("redis://h/0?ssl_ca_certs=/ca", "redis:// URL: none"),
        ("rediss://h/0?ssl_ca=/ca", "a rediss:// URL: ssl_ca_certs, "),
        ("unix:///run/r.sock?socket_timeout=x", "a unix:// URL: db"),
        ("sentinel://h/main?ssl_ca=/ca", "URL: db, ssl_ca_certs, "),
        ("redis://u:1?hush=x@h/0", "write / as %2F"),
        ("redis://u:1?hush#x@h/0", "write / as %2F"),
        ("redis://:6379?hush=y#z@h/0", "write / as %2F"),
        ("sentinel://h/main?sentinel_password=ab&hush=1", "write / as %2F"),
        ("sentinel://h/main?foo", "unknown option"),
        ("sentinel://h/main?ssl_ca_certs=", "ssl_ca_certs= has no value"),
        ("rediss://h/0?ssl_ca_certs=", "ssl_ca_certs= has no value"),
        ("unix:///run/r.sock?db=x", "is not a database number"),
        ("sentinel://u:1/main?hush=x@h/0", "write / as %2F"),
    ],
)
@pytest.mark.parametrize("command", ["worker", "status"])
def test_what_no_connection_could_read_is_told_at_once(command, url, problem):
    """The error omits the URL and anything that looks like a host: it may be half a password."""
    with pytest.raises(ConfigError, match=problem) as caught:
        parse(command, [], {"CSI_FLEET_REDIS_URL": url})
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h/", "redis://[::1]:1/15", "rediss://h/2?ssl_ca_certs=/ca"]
)
def test_every_usual_place_is_taken(url):
    assert parse("worker", [], {"CSI_FLEET_REDIS_URL": url}).redis.url == url


def test_a_variable_out_of_a_file_ends_with_a_line_break():
    assert (
        parse("beat", [], {"CSI_FLEET_REDIS_URL": "redis://a:1/0\n"}).redis.url == "redis://a:1/0"
    )


@pytest.mark.parametrize(("query", "celerys"), [("", ""), ("?db=1", "?virtual_host=1")])
def test_celery_finds_the_database_behind_a_unix_socket(query, celerys):
    """Installations may share a Redis as two databases; messages must be next to their queue."""
    url = f"unix:///run/r.sock{query}"
    found = broker_url(parse("worker", [], {"CSI_FLEET_REDIS_URL": url}))
    assert found == f"redis+socket:///run/r.sock{celerys}"


def test_logins_of_servers_and_sentinels_come_from_variables_and_files(tmp_path):
    secret = tmp_path / "sentinels"
    secret.write_text("of sentinels\n")
    environ = {
        "CSI_FLEET_REDIS_URL": "sentinel://a:1,b:2/main?ssl_ca_certs=/ca.crt",
        "CSI_FLEET_REDIS_USERNAME": "worker",
        "CSI_FLEET_REDIS_PASSWORD": "of:redis",
        "CSI_FLEET_REDIS_SENTINEL_USERNAME": "csi-fleet",
        "CSI_FLEET_REDIS_SENTINEL_PASSWORD_FILE": str(secret),
    }
    settings = parse("watcher", [], environ)
    assert settings.redis.url == environ["CSI_FLEET_REDIS_URL"]
    assert "of sentinels" not in repr(settings)
    full = settings.redis.url_with_credentials()
    found = parse_sentinels(full)
    assert found.login == {"username": "worker", "password": "of:redis"}
    assert (found.sentinel_username, found.sentinel_password) == ("csi-fleet", "of sentinels")
    # The parts of `csi-fleet run` get the URL in this form.
    child = parse("watcher", [], {"CSI_FLEET_REDIS_URL": full})
    assert child.redis == settings.redis
    assert not {"of sentinels", "of:redis"} & set(repr(found).split("'"))


@pytest.mark.parametrize(
    ("user", "celerys"),
    [
        ("worker", "broker"),
        ("worker.csi.example.org", "broker.csi.example.org"),
        ("watcher", "publisher"),
        ("beat", "beat"),
        ("flower", "flower"),
        ("somebody", "somebody"),
    ],
)
def test_celery_logs_in_as_a_user_of_its_own(user, celerys):
    """No setting is needed: a manifest that omits it would give Celery access to all of Redis."""
    environ = {"CSI_FLEET_REDIS_URL": f"rediss://{user}:p@redis/0"}
    assert broker_url(parse("worker", [], environ)) == f"rediss://{celerys}:p@redis/0"
    assert parse("worker", [], environ).redis.username == user


def test_another_user_for_celery_can_be_named():
    environ = {"CSI_FLEET_REDIS_URL": "sentinel://u:p@a:1/main?ssl_ca_certs=/ca.crt"}
    found = broker_url(parse("worker", ["--redis-broker-username=tickets"], environ))
    assert found == "sentinel://tickets:p@a:1/0"


def test_celery_gets_every_sentinel_with_the_servers_login():
    environ = {"CSI_FLEET_REDIS_URL": "sentinel://u:p%40@a:1,b:2/main?db=3"}
    assert broker_url(parse("watcher", ["--redis-insecure=true"], environ)) == (
        "sentinel://u:p%40@a:1/3;sentinel://u:p%40@b:2/3"
    )


def test_a_password_on_the_command_line_is_warned_of():
    argv = ["--redis-url=sentinel://localhost/main?sentinel_password=x"]
    assert "process list" in parse("watcher", argv, {}).warnings[0]


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("redis://u:hush@redis:6379/0", True),
        ("redis://:hush@10.0.0.1", True),
        ("redis://:hush@[fd00::1]:6379", True),
        ("rediss://:hush@redis", False),
        ("redis://redis", False),
        ("redis://:hush@127.0.0.1:6379", False),
        ("redis://:hush@localhost", False),
        ("redis://:hush@[::1]", False),
        ("unix:///run/redis.sock?db=1", False),
        ("sentinel://:hush@127.0.0.1,b/main", True),
        ("sentinel://a/main?sentinel_password=hush", True),
        ("sentinel://:hush@a/main?ssl_ca_certs=/ca.crt", False),
        ("sentinel://:hush@localhost:1,127.0.0.1:2/main", False),
    ],
)
@pytest.mark.parametrize("is_insecure", [False, True])
def test_no_password_leaves_this_machine_in_clear(url, is_refused, is_insecure):
    """`--redis-insecure` permits it, for networks that no one else can read."""
    environ = {"CSI_FLEET_REDIS_URL": url}
    argv = [f"--redis-insecure={str(is_insecure).lower()}"]
    if is_refused and not is_insecure:
        with pytest.raises(ConfigError, match=r"unencrypted\. Use rediss://.*--redis-insecure"):
            parse("watcher", argv, environ)
    else:
        assert parse("watcher", argv, environ).redis.is_insecure is is_insecure
