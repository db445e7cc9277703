"""`--shard=i/n`: which drivers fall where, and what is refused together with `--redis-url`."""

from __future__ import annotations

import pytest

from workers.config.flags import TOOLS, Command
from workers.config.load import parse
from workers.config.shard import Shard, parse_shard, place
from workers.errors import ConfigError

A, B, C = (f"redis://{name}:6379/0" for name in "abc")
TWO = [f"--redis-url={A}", f"--redis-url={B}"]
SERVING = ["watcher", "worker", "beat", "flower", "run"]
ASKING = sorted(TOOLS - {Command.COMPLETION})


@pytest.mark.parametrize(("driver", "of_two", "of_four"), [
    ("hostpath.csi.k8s.io", 0, 0),
    ("ebs.csi.aws.com", 1, 1),
    ("disk.csi.azure.com", 1, 3),
    ("", 0, 0),
])  # fmt: skip
def test_the_place_of_a_name_never_changes(driver, of_two, of_four):
    """Written down: another process, Python or release must find the same shard."""
    assert (place(driver, 2), place(driver, 4)) == (of_two, of_four)
    assert place(driver, 1) == 0


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_every_driver_has_one_shard_and_the_shards_are_alike(count):
    """Each of 700 drivers is owned once; no shard has more than 1.4 times its share."""
    shards = [Shard(index, count) for index in range(count)]
    names = [f"driver-{number}.csi.example.org" for number in range(700)]
    owners = [[shard.index for shard in shards if shard.owns(name)] for name in names]
    assert all(len(found) == 1 for found in owners)
    shares = [owners.count([index]) for index in range(count)]
    assert max(shares) < 1.4 * 700 / count


@pytest.mark.parametrize("text", ["2/2", "a/b", "1", "/2", "1/", "-1/2", "0/0", "1/2/3", "00000/1"])
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_bad_shard_is_one_line_that_says_how(text, is_variable):
    argv, environ = ([], {"CSI_FLEET_SHARD": text}) if is_variable else ([f"--shard={text}"], {})
    with pytest.raises(ConfigError, match=r"give i/n: .*such as 0/2 and 1/2") as caught:
        parse("watcher", [*TWO, *argv], environ)
    assert ("CSI_FLEET_SHARD" if is_variable else "--shard") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_variable_out_of_a_file_ends_with_a_line_break():
    environ = {"CSI_FLEET_REDIS_URL": f"{A}\n{B}\n", "CSI_FLEET_SHARD": "1/2\n"}
    assert parse("beat", [], environ).shard == Shard(1, 2)


@pytest.mark.parametrize("argv", [[], ["--shard="], ["--shard=0/1"]])
@pytest.mark.parametrize("command", SERVING)
def test_one_of_one_is_no_shard(command, argv):
    settings = parse(command, [f"--redis-url={A}", *argv], {})
    assert settings.shard == Shard()
    assert (settings.shard.is_part, settings.shard.mark) == (False, "")
    assert settings.redis_shards == (settings.redis,)
    assert settings.shard.owns("any.driver")


@pytest.mark.parametrize("command", SERVING)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_serving_process_takes_the_redis_of_its_shard(command, index, is_variable):
    """By flags, or by variables, where blanks part the URLs."""
    argv, environ = [*TWO, f"--shard={index}/2"], {}
    if is_variable:
        argv, environ = [], {"CSI_FLEET_REDIS_URL": f"{A} {B}", "CSI_FLEET_SHARD": f"{index}/2"}
    settings = parse(command, argv, environ)
    assert settings.redis.url == (A, B)[index]
    assert [redis.url for redis in settings.redis_shards] == [A, B]
    assert settings.shard.mark == f"{index}/2"


@pytest.mark.parametrize(("argv", "message"), [
    (TWO, "--redis-url is given 2 times: say with --shard=i/2"),
    ([*TWO, "--shard=0/1"], "--redis-url is given 2 times: say with --shard=i/2"),
    ([*TWO, "--shard=0/3"], "--shard=0/3 needs 3 --redis-url, .* 2 given"),
    ([f"--redis-url={A}", "--shard=1/2"], "--shard=1/2 needs 2 --redis-url, .* 1 given"),
    (["--shard=0/2"], "--shard=0/2 needs 2 --redis-url, .* 0 given"),
    ([f"--redis-url={A} {A}", "--shard=0/2"], "two shards have the same URL"),
    ([*TWO[:1], "--redis-url=http://x", "--shard=0/2"], "--redis-url must start with"),
    ([*TWO[:1], "--redis-url=sentinel://h", "--shard=0/2"], "--redis-url: give sentinel://"),
    ([*TWO[:1], "--redis-url=redis://u:hush@h", "--shard=0/2"], "would go to h in clear"),
])  # fmt: skip
@pytest.mark.parametrize("command", SERVING)
def test_urls_that_do_not_fit_the_shards_are_refused(command, argv, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse(command, argv, {})
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


def test_sentinels_of_one_shard_keep_their_commas():
    sentinels = "sentinel://h1:1,h2:2/main"
    settings = parse("worker", [f"--redis-url={sentinels}", f"--redis-url={B}", "--shard=0/2"], {})
    assert [redis.url for redis in settings.redis_shards] == [sentinels, B]


@pytest.mark.parametrize("command", ASKING)
def test_a_tool_takes_any_number_of_urls_and_no_shard(command):
    settings = parse(command, [*TWO, f"--redis-url={C}"], {"CSI_FLEET_SHARD": "1/3"})
    assert [redis.url for redis in settings.redis_shards] == [A, B, C]
    assert settings.shard == Shard()
    with pytest.raises(ConfigError, match=r"--shard is a flag of .*, not of"):
        parse(command, [*TWO, "--shard=0/2"], {})


@pytest.mark.parametrize("command", ["watcher", "worker", "run"])
def test_what_belongs_to_no_driver_is_shard_0s(command):
    both = [*TWO, "--controllers=attacher,snapshot-controller"]
    found = [parse(command, [*both, f"--shard={index}/2"], {}).chosen for index in (0, 1)]
    assert [set(one) for one in found] == [{"attacher", "snapshot-controller"}, {"attacher"}]
    alone = [*TWO, "--controllers=snapshot-controller"]
    assert parse(command, [*alone, "--shard=0/2"], {}).chosen == ("snapshot-controller",)
    with pytest.raises(ConfigError, match=r"--shard=1/2: .* the work of 0/2; leave them out"):
        parse(command, [*alone, "--shard=1/2"], {})


def test_a_part_of_run_reads_what_run_was_told():
    """`run` hands its URLs, logins included, to its parts in one variable."""
    given = parse("run", ["--shard=1/2"], {"CSI_FLEET_REDIS_URL": f"{A} rediss://u:p%40x@h:1/2"})
    joined = " ".join(redis.url_with_credentials() for redis in given.redis_shards)
    part = parse("worker", ["--shard=1/2"], {"CSI_FLEET_REDIS_URL": joined})
    assert part.redis_shards == given.redis_shards
    assert part.redis.password == "p@x"


@pytest.mark.parametrize("text", ["", "0/1", "1/4"])
def test_a_shard_reads_what_it_writes(text):
    shard = parse_shard(text)
    assert parse_shard(str(shard)) == shard
