"""Writes what Redis is told about users and functions, and the page that says who may do what.

    python -m tests.support.redis_acl           # writes the files; tests say when one is stale

`users.acl`: per component which owners' keys it writes, which it only reads, and the commands it
needs (ours read off the scripts and clients, Celery's and RedBeat's by trying). `functions.lua`:
our scripts, which no component may bring itself. docs/security.md: the matrix of both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from workers.cli.embedded_redis import BROKER_COMMANDS, BROKER_KEYS, REMOTE, allowed
from workers.queue.names import CELERY_QUEUE_PREFIX, FORMER, NAMES, RedisName
from workers.queue.scripts import library

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "k8s" / "base" / "redis" / "users.acl"
FUNCTIONS: Final = FILE.with_name("functions.lua")
PAGE: Final = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- redis matrix: generated -->", "<!-- end of the redis matrix -->"
HEAD: Final = """\
# Who may do what in Redis; @name@ becomes the hash of that user's password (start-redis.sh).
# Written by `python -m tests.support.redis_acl` from workers/queue/names.py; do not edit.
# Ours: csifleet:*. Celery's: lists drv.<driver> and csifleet.system, lists of answers to Flower and
# the channels of questions and events; Celery's connections reach these alone. Beat's: redbeat:*.
# Nobody has administration commands, and nobody sends code: functions.lua is all that runs, with
# the rights of the user who calls it.
#
# Off: nobody logs in as this one. With its rights Redis replays its own file at a start; without
# them it drops each transaction and each function's writes, all records of attempts among them.
user default reset ~* +@write
#
# Probes: PING and nothing else, hence no password.
user probe on nopass resetkeys resetchannels -@all +ping
#
# Loads functions.lua when the container starts; its password lives as long as the container.
user setup on @setup@ resetkeys resetchannels -@all +ping +function|load
"""
TAIL: Final = """\
# A person with redis-cli, `csi-fleet status` and `explain`: looks, and may empty a lost queue.
user operator on @operator@ ~* &* -@all +@read +@write +@connection +@transaction +@pubsub \
-@dangerous -@admin -@scripting +fcall +info +flushall +flushdb +time +acl|whoami
"""

# Every owner of names.py must be in one of the two sets of watcher and worker, or in neither on
# purpose.
WRITES: Final = {
    "watcher": {"queue", "counters", "intents", "catalog", "registry", "periods", "quarantine"},
    "worker": {
        "queue", "counters", "intents", "registry", "capacity", "periods", "events", "quarantine",
        "shadow",
    },
}  # fmt: skip
READS: Final = {
    "watcher": {"capacity"},
    "worker": {"catalog"},
    "viewer": {"queue", "counters", "intents", "registry", "events", "quarantine", "catalog"},
}
# Of the events' keys the watcher only adds to the trail of claims and volumes; a worker counts up
# the version of the drivers it announces.
ALSO: Final = {"watcher": ("trail",), "worker": ("versions",)}
# The watcher gives unsaved PVs their keys back and changes nothing about them (SEC-2).
ONLY_READS: Final = {"watcher": ("unsaved",)}
NEVER: Final = {"watcher": ("saved", "installation")}
# What the release before kept for all drivers in one key: a watcher moves it (formerrecords.py).
FORMER_KEYS: Final = {
    "watcher": " ".join(
        f"{'%R' if name == 'unsaved' else ''}~{NAMES[name].full.removesuffix(':')}"
        for name in sorted(FORMER)
    )
}
DRIVER_USER: Final = "worker.@driver@"
DRIVER_BROKER: Final = "broker.@driver@"
# With whose password a Celery connection logs in: that of the component whose connection it is.
PASSWORDS: Final = {
    "publisher": "watcher",
    "broker": "worker",
    "viewer": "flower",
    DRIVER_USER: "password",
    DRIVER_BROKER: "password",
}

_CONNECT: Final = "ping hello client|setname select"
_SCRIPT: Final = "fcall"
_TRANSACTION: Final = "multi exec discard watch unwatch"
_OURS: Final = (
    "info time get set incr exists type rename expire pexpire del scan hget hset hsetnx hdel "
    "hincrby hexists hgetall hkeys hlen hmget hscan sadd srem scard sismember smembers zadd zrem "
    "zcard zcount zscore zmscore zrank zrange zrangebyscore zrangebylex zpopmin zremrangebyscore "
    "zscan llen lpush rpush ltrim lrange"
)
# The page /fleet: nothing that writes. A script has the rights of its user, so none writes for it.
_LOOK: Final = (
    "info time get exists scan hget hmget hgetall hkeys hlen hscan sismember smembers zcard zcount "
    "zscore zrank zrange zrangebyscore zrangebylex zscan lrange"
)
# Celery's connections: nothing that stores, but for messages and the schedule.
_SEND: Final = "multi exec lpush llen"
_CONSUME: Final = "multi exec brpop llen"
_SCHEDULE: Final = (
    "watch unwatch get set del exists pexpire pttl sadd srem smembers hget hset hsetnx "
    "zadd zrem zrank zrange zrangebyscore zrevrangebyscore zscore"
)
_TALK: Final = "publish subscribe psubscribe unsubscribe punsubscribe"
SYSTEM: Final = "csifleet.system"
_SCHEDULE_KEYS: Final = "~redbeat:tick ~redbeat::schedule ~redbeat::statics ~redbeat::lock"

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "watcher": (_CONNECT, _SCRIPT, _TRANSACTION, _OURS),
    "worker": (_CONNECT, _SCRIPT, _TRANSACTION, _OURS),
    "publisher": (_CONNECT, _SEND, "scan del ttl type memory|usage"),
    "broker": (BROKER_COMMANDS,),
    "beat": (_CONNECT, _SEND, _SCHEDULE),
    "flower": (_CONNECT, _CONSUME, _TALK),
    "viewer": (_CONNECT, _SCRIPT, _LOOK),
}
COMMANDS[DRIVER_USER] = COMMANDS["worker"]
COMMANDS[DRIVER_BROKER] = COMMANDS["broker"]
_OWN_LISTS: Final = (
    f"~{CELERY_QUEUE_PREFIX}@driver@ ~{CELERY_QUEUE_PREFIX}@driver@@* "
    f"~{CELERY_QUEUE_PREFIX}@driver@#* ~{CELERY_QUEUE_PREFIX}system-*"
)
OTHER_KEYS: Final = {
    "watcher": f"%R~{CELERY_QUEUE_PREFIX}*",
    "worker": f"%R~{CELERY_QUEUE_PREFIX}*",
    DRIVER_USER: f"%R~{CELERY_QUEUE_PREFIX}*",
    # It also deletes what nobody reads.
    "publisher": f"~{CELERY_QUEUE_PREFIX}* ~{SYSTEM} ~redbeat:* ~_kombu.* ~unacked* "
    "~????????-????-????-????-????????????.reply.celery.pidbox",
    "broker": BROKER_KEYS,
    # Messages of other drivers it can add, for whoever sweeps sends them, but not take. Those of no
    # driver it takes where it runs such a controller too, the snapshot-controller say.
    DRIVER_BROKER: f"%W~{CELERY_QUEUE_PREFIX}* {_OWN_LISTS} ~{SYSTEM} {REMOTE}",
    "beat": f"{_SCHEDULE_KEYS} ~{SYSTEM}",
    "flower": f"%R~{CELERY_QUEUE_PREFIX}* %R~{SYSTEM} {REMOTE}",
    "viewer": "",
}
PURPOSE: Final = {
    "watcher": "Adds keys, feeds the catalog, brings attempts back.",
    "worker": "Takes keys, keeps attempts, announces drivers. Reads the catalog.",
    DRIVER_USER: "The worker beside one driver, in that driver's namespace: one line per password "
    "file worker.DRIVER.",
    "publisher": "Celery's connection of a watcher: sends messages, deletes those that nobody "
    "reads. Sees no key of ours.",
    "broker": "Celery's connection of a worker: sends and takes messages, answers Flower. Sees "
    "no key of ours.",
    DRIVER_BROKER: "The same beside one driver.",
    "beat": "Keeps the schedule and sends ticks. Sees no key of ours.",
    "flower": "Listens to Celery's events, asks workers, counts messages. Sees no key of ours.",
    "viewer": "The page /fleet of Flower: reads what status, pending and explain show.",
}


def text() -> str:
    """The whole file."""
    parts = [HEAD]
    for user, purpose in PURPOSE.items():
        commands = " ".join(dict.fromkeys(" ".join(COMMANDS[user]).split()))
        keys = " ".join([*_own_keys(user), *FORMER_KEYS.get(user, "").split(), OTHER_KEYS[user]])
        password = PASSWORDS.get(user, user)
        parts.append(f"#\n# {purpose}\nuser {user} on @{password}@ {allowed(commands, keys)}\n")
    return "".join([*parts, "#\n", TAIL])


def access(user: str, entry: RedisName) -> str:
    """`rw`, `r` or nothing: what a user may do with a key of ours."""
    kind = "worker" if user == DRIVER_USER else user
    if kind == "operator":
        return "rw"
    if entry.name in NEVER.get(kind, ()):
        return ""
    if entry.name in ONLY_READS.get(kind, ()):
        return "r"
    if entry.owner in WRITES.get(kind, ()) or entry.name in ALSO.get(kind, ()):
        return "rw"
    return "r" if entry.owner in READS.get(kind, ()) else ""


def own_parts(entry: RedisName) -> list[str]:
    """What follows the prefix in the keys of a family that the worker beside one driver reaches.

    A node's own queues are named driver@node. Keys of no driver, as the snapshot-controller has
    them, have the name '': their passes ask for a mark and a memo, and never write one.
    """
    names = ["@driver@", "@driver@@*"]
    if entry.name == "saved":
        names[0] += "|*"
    return [*names, ""] if entry.name in {"marks", "memos"} else names


def _own_keys(user: str) -> list[str]:
    patterns = []
    for entry in NAMES.values():
        right = {"rw": "~", "r": "%R~", "": ""}[access(user, entry)]
        names = [entry.full + ("*" if entry.is_family else "")]
        if user == DRIVER_USER and entry.by_driver:
            names = [entry.full + own for own in own_parts(entry)]
        patterns += [right + name for name in names if right]
    return patterns


OWNERS: Final = ("watcher", "worker", DRIVER_USER, "viewer", "operator")
CELERY_USERS: Final = ("publisher", "broker", DRIVER_BROKER, "beat", "flower")


def matrix() -> str:
    """Families of keys by users, as Markdown; `own` stands for the driver's part of a family."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for entry in NAMES.values():
        rights = []
        for user in OWNERS:
            right = access(user, entry) or "-"
            is_own = user == DRIVER_USER and entry.by_driver
            rights.append(f"{right} own" if is_own else right)
        rows.setdefault(tuple(rights), []).append(f"`{entry.name}`")
        if any(access(user, entry) for user in CELERY_USERS):
            raise ValueError(entry.name)
    lines = [
        "| Keys `csifleet:...` | watcher | worker | worker.DRIVER | viewer | operator |",
        "|---|---|---|---|---|---|",
        *(f"| {' '.join(names)} | {' | '.join(rights)} |" for rights, names in rows.items()),
        "| Lists `drv.DRIVER` | r | r | r | - | rw |",
        "| Our functions (FCALL) | yes | yes | yes | those that only read | yes |",
        "| Code of one's own, administration | - | - | - | - | - |",
        "",
        "| Celery's connections | publisher | broker | broker.DRIVER | beat | flower |",
        "|---|---|---|---|---|---|",
        "| Keys `csifleet:...`, our functions | - | - | - | - | - |",
        "| Lists `drv.DRIVER` | add, delete | add, take | add; take own, driverless | - | length |",
        "| List of ticks `csifleet.system` | add, delete | add, take | add, take | add | length |",
        "| Lists of answers to Flower | add, delete | add | add | - | take |",
        "| Questions and events, which Redis does not store | - | yes | yes | - | yes |",
        "| The four keys of `redbeat:` | delete | - | - | rw | - |",
        "| Code of one's own, administration | - | - | - | - | - |",
    ]
    return "\n".join(lines)


def page(old: str) -> str:
    """docs/security.md with the present matrix."""
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{matrix()}\n\n{END}{after}"


def functions() -> str:
    """functions.lua."""
    return library()[1]


def write() -> None:
    """All files."""
    FILE.write_text(text())
    FUNCTIONS.write_text(functions())
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    write()
