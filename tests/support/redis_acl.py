"""Writes Redis's users and functions, and the page that shows who may do what.

`python -m tests.support.redis_acl` writes the files; tests fail if one is out of date. `users.acl`
contains for each component whose keys it may write or only read, and the commands that it needs.
(csi-fleet's own commands are read from the scripts and clients; those of Celery and RedBeat were
found by trying.) `functions.lua` contains csi-fleet's scripts, which no component may load itself.
docs/security.md gets the matrix of both.

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

# Every owner in names.py must be in one of the two sets of watcher and worker, or deliberately in
# neither.
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
# Of the keys of events, the watcher only adds to the history of claims and volumes; a worker
# increments the version of the drivers that it announces.
ALSO: Final = {"watcher": ("trail",), "worker": ("versions",)}
# The watcher adds the keys of unsaved PVs again, but must not change the PVs.
ONLY_READS: Final = {"watcher": ("unsaved",)}
NEVER: Final = {"watcher": ("saved", "installation")}
# The previous release kept these records for all drivers in one key; a watcher moves them
# (formerrecords.py).
FORMER_KEYS: Final = {
    "watcher": " ".join(
        f"{'%R' if name == 'unsaved' else ''}~{NAMES[name].full.removesuffix(':')}"
        for name in sorted(FORMER)
    )
}
DRIVER_USER: Final = "worker.@driver@"
DRIVER_BROKER: Final = "broker.@driver@"
# A Celery connection uses the password of the component that opens it.
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
# The page /fleet may write nothing. A script has its user's permissions, so no script writes for it
# either.
_LOOK: Final = (
    "info time get exists scan hget hmget hgetall hkeys hlen hscan sismember smembers zcard zcount "
    "zscore zrank zrange zrangebyscore zrangebylex zscan lrange"
)
# Celery's connections may store nothing except messages and the schedule.
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
    # This user also deletes lists that nothing reads.
    "publisher": f"~{CELERY_QUEUE_PREFIX}* ~{SYSTEM} ~redbeat:* ~_kombu.* ~unacked* "
    "~????????-????-????-????-????????????.reply.celery.pidbox",
    "broker": BROKER_KEYS,
    # A worker may send messages of other drivers, because any worker may run the sweep, but may not
    # receive them. It receives messages that belong to no driver, for example those of the
    # snapshot-controller, if it runs such a controller.
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
    """Return the whole file."""
    parts = [HEAD]
    for user, purpose in PURPOSE.items():
        commands = " ".join(dict.fromkeys(" ".join(COMMANDS[user]).split()))
        keys = " ".join([*_own_keys(user), *FORMER_KEYS.get(user, "").split(), OTHER_KEYS[user]])
        password = PASSWORDS.get(user, user)
        parts.append(f"#\n# {purpose}\nuser {user} on @{password}@ {allowed(commands, keys)}\n")
    return "".join([*parts, "#\n", TAIL])


def access(user: str, entry: RedisName) -> str:
    """Return `rw`, `r` or "": what a user may do with a key of csi-fleet."""
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
    """Return what follows the prefix in those keys of a family that a worker next to one driver
    may use.

    A node's own queues are named driver@node. Keys without a driver, such as the
    snapshot-controller's, have the name ''; their reconciles read a mark and a memo, but never
    write one.
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
    """Return the matrix of key families and users as Markdown; `own` stands for the driver's
    part of a family."""
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
    """Return docs/security.md with the current matrix."""
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{matrix()}\n\n{END}{after}"


def functions() -> str:
    """Return functions.lua."""
    return library()[1]


def write() -> None:
    """Write all files."""
    FILE.write_text(text())
    FUNCTIONS.write_text(functions())
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    write()
