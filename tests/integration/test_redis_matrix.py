"""Every user of the shipped ACL tries every key and command class of the table in docs/security.md.

A real Redis 7 answers ACL DRYRUN, with the same decision as for the command itself.
"""

from __future__ import annotations

import re

import pytest

from tests.support.redis_acl import CELERY_USERS, OWNERS, access
from tests.support.redis_acl import DRIVER_USER as TEMPLATE
from tests.support.secure_redis import DRIVER, DRIVER_BROKER, DRIVER_USER, SecureRedis
from workers.queue.names import CELERY_QUEUE_PREFIX, FORMER, NAMES

USERS = [
    *(one.replace("@driver@", DRIVER) for one in (*OWNERS, *CELERY_USERS)),
    "probe",
    "setup",
    "replication",
]
OTHER = "other.example.org"
# A careless pattern would match these names for the driver: names with a common prefix or suffix.
FOREIGN_NAMES = [
    OTHER,
    f"{OTHER}@node",
    f"{DRIVER}x",
    f"{DRIVER}.{OTHER}",
    f"{DRIVER}-2",
    f"x{DRIVER}",
    f"x{DRIVER}@node",
    f"{OTHER}@{DRIVER}",
    f"@{DRIVER}",
    DRIVER[:-1],
]
READS = {
    "string": "GET {}",
    "hash": "HGETALL {}",
    "set": "SMEMBERS {}",
    "zset": "ZRANGE {} 0 -1",
    "list": "LRANGE {} 0 -1",
}
WRITES = {
    "string": "SET {} x",
    "hash": "HSET {} x y",
    "set": "SADD {} x",
    "zset": "ZADD {} 1 x",
    "list": "RPUSH {} x",
}
# The commands that each user may run, of those that Redis calls dangerous, administration or
# scripting.
ALLOWED = {
    "watcher": {"info", "fcall"},
    "worker": {"info", "fcall"},
    DRIVER_USER: {"info", "fcall"},
    "viewer": {"info", "fcall"},
    "operator": {"info", "fcall", "flushall", "flushdb"},
    "setup": {"function|load"},
    # Sentinels send these commands to a server, and replicas send them to their master.
    "replication": {
        *("replicaof", "slaveof", "psync", "replconf", "role", "info"),
        *("config|rewrite", "client|kill", "script|kill"),
    },
}


@pytest.fixture(scope="module")
def tester(redis_binary, tmp_path_factory):
    """Start Redis as shipped and return a client that is allowed to run ACL DRYRUN."""
    server = SecureRedis(redis_binary, tmp_path_factory.mktemp("redis")).start()
    with server.client("tester") as client:
        yield client
    server.stop()


def may(tester, user, command):
    """Return True if Redis would run the command for the user."""
    answer = tester.execute_command("ACL", "DRYRUN", user, *command.split())
    return answer in {b"OK", "OK", True}


def expected(user, entry, name):
    """Return the access by the tables that generate users.acl and the page."""
    if user in {"probe", "setup", "replication"}:
        return ""
    if user != DRIVER_USER:
        return access(user, entry)
    is_foreign = entry.by_driver and name.removesuffix("|pvc-1").removeprefix(entry.full) in {
        *FOREIGN_NAMES
    }
    return "" if is_foreign else access(TEMPLATE, entry)


@pytest.mark.parametrize("user", USERS)
def test_every_key_is_open_to_those_of_the_matrix_and_closed_to_all_others(tester, user):
    wrong = []
    for entry in NAMES.values():
        names = [entry.full]
        if entry.is_family:
            members = [DRIVER, f"{DRIVER}@node", *FOREIGN_NAMES]
            after = "|pvc-1" if entry.name == "saved" else ""
            names = [entry.full + member + after for member in members]
        for name in names:
            right = expected(user, entry, name)
            tries = [("r", READS[entry.type]), ("w", WRITES[entry.type]), ("w", "DEL {}")]
            for letter, command in tries:
                if may(tester, user, command.format(name)) is not (letter in right):
                    wrong.append(f"{command.format(name)}: should be {right or 'closed'}")
    assert wrong == []


@pytest.mark.parametrize("user", USERS)
def test_what_the_release_before_kept_is_a_watchers_to_move(tester, user):
    """Only the watcher and the operator can access the former hashes.

    One hash had the records of all drivers, so a driver's worker must not read it.
    """
    rights = {name: "r" if name == "unsaved" else "rw" for name in FORMER}
    expected = {"watcher": rights, "operator": dict.fromkeys(FORMER, "rw")}.get(user, {})
    for name in FORMER:
        key = NAMES[name].full.removesuffix(":")
        assert may(tester, user, f"HGETALL {key}") is ("r" in expected.get(name, ""))
        for command in (f"HSET {key} x y", f"HDEL {key} x", f"RENAME {key} {key}"):
            assert may(tester, user, command) is ("w" in expected.get(name, "")), command


MESSAGES = f"{CELERY_QUEUE_PREFIX}{DRIVER}"
FOREIGN = f"{CELERY_QUEUE_PREFIX}{OTHER}"
ANSWERS = "0aaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee.reply.celery.pidbox"
BROKERS = {"broker", DRIVER_BROKER}
OTHERS = {
    # command: users who may run it
    f"BRPOP {MESSAGES} 1": {*BROKERS, "operator"},
    f"BRPOP {MESSAGES}@node 1": {*BROKERS, "operator"},
    f"BRPOP {MESSAGES}#csi-attacher 1": {*BROKERS, "operator"},
    f"BRPOP {FOREIGN} 1": {"broker", "operator"},
    f"LRANGE {FOREIGN} 0 -1": {"watcher", "worker", DRIVER_USER, "operator"},
    f"LLEN {FOREIGN}": {
        *("watcher", "worker", DRIVER_USER, "publisher", *BROKERS, "flower", "operator"),
    },
    f"LPUSH {FOREIGN} x": {"publisher", *BROKERS, "operator"},
    f"SET {FOREIGN} x": {"operator"},
    "LPUSH csifleet.system x": {"publisher", *BROKERS, "beat", "operator"},
    "BRPOP csifleet.system 1": {*BROKERS, "operator"},
    "GET redbeat::lock": {"beat", "operator"},
    "HSET redbeat:tick x y": {"beat", "operator"},
    "SET redbeat:another x": {"operator"},
    "SADD _kombu.binding.x y": {"operator"},
    f"LPUSH {ANSWERS} x": {"publisher", *BROKERS, "operator"},
    f"EXPIRE {ANSWERS} 10": {*BROKERS, "operator"},
    f"BRPOP {ANSWERS} 1": {*BROKERS, "flower", "operator"},
    "LPUSH x.pidbox x": {"operator"},
    # a worker would send an entry of this hash as a message of its own
    "HSET unacked x y": {"operator"},
    "GET something": {"operator"},
    "SET something x": {"operator"},
    "PUBLISH /0.celery.pidbox x": {*BROKERS, "flower", "operator"},
    "PUBLISH other x": {"operator"},
    "PSUBSCRIBE /0.celeryev/*": {*BROKERS, "flower", "operator"},
    "PSUBSCRIBE *": {"operator"},
}


@pytest.mark.parametrize("command", OTHERS)
def test_what_is_not_ours_or_not_a_key(tester, command):
    assert {user for user in USERS if may(tester, user, command)} == OTHERS[command]


def test_flower_stores_nothing(tester):
    """Flower has no command that needs memory in Redis, so it cannot fill Redis."""

    def texts(found):
        return {one if isinstance(one, str) else one.decode() for one in found}

    (user,) = [one for one in texts(tester.acl_list()) if one.split()[1] == "flower"]
    allowed = set(re.findall(r"\+([a-z]+)", user))
    about = tester.execute_command("COMMAND")
    growing = {name for name, one in about.items() if "denyoom" in texts(one["flags"])}
    assert "lpush" in growing
    assert allowed & growing == set()


def commands(tester):
    """Return all commands that administrate, endanger or run code, with their minimal arity."""
    names = set()
    for category in ("admin", "dangerous", "scripting"):
        names |= {one if isinstance(one, str) else one.decode() for one in tester.acl_cat(category)}
    arity = {}
    for name in sorted(names):
        info = tester.execute_command("COMMAND", "INFO", name)
        found = info.get(name) if isinstance(info, dict) else info[0]
        arity[name] = abs(found["arity"] if isinstance(found, dict) else found[1])
    return arity


@pytest.mark.parametrize("user", USERS)
def test_sec5_sec6_nobody_administrates_or_brings_code(tester, user):
    allowed = set()
    for name, count in commands(tester).items():
        words = name.split("|")
        if may(tester, user, " ".join([*words, *["1"] * max(0, count - len(words))])):
            allowed.add(name)
    assert allowed == ALLOWED.get(user, set())
