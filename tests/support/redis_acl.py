"""Writes k8s/base/redis/users.acl from the keys that workers/queue/names.py declares.

    python -m tests.support.redis_acl           # writes the file; a test says when it is stale

Per component: which owners' keys it writes, which it only reads, and the commands it needs (ours
read off the scripts and clients, Celery's and RedBeat's by trying).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from workers.queue.names import CELERY_QUEUE_PREFIX, NAMES

FILE: Final = Path(__file__).resolve().parents[2] / "k8s" / "base" / "redis" / "users.acl"
HEAD: Final = """\
# Who may do what in Redis; @name@ becomes the hash of that user's password (start-redis.sh).
# Written by `python -m tests.support.redis_acl` from workers/queue/names.py; do not edit.
# Ours: csifleet:*. Celery's: lists drv.<driver> and csifleet.system, unacked*, _kombu.*,
# celeryev*, *.pidbox. Beat's: redbeat:*.
# Nobody but `operator` has administration commands, KEYS or FLUSHALL; scripts run with the rights
# of the user who calls them.
#
# No login, no rights.
user default reset
#
# Probes: PING and nothing else, hence no password.
user probe on nopass resetkeys resetchannels -@all +ping
"""
TAIL: Final = """\
# A person with redis-cli, `csi-fleet status` and `explain`: looks, and may empty a lost queue.
user operator on @operator@ ~* &* +@all -shutdown -debug -config -module -replicaof -migrate
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
READS: Final = {"watcher": {"capacity"}, "worker": {"catalog"}}
# Of the events' keys the watcher only adds to the trail of claims and volumes; a worker counts up
# the version of the drivers it announces.
ALSO: Final = {"watcher": ("trail",), "worker": ("versions",)}

_CONNECT: Final = "ping hello client|setname select"
_SCRIPT: Final = "evalsha eval script|load script|exists"
_TRANSACTION: Final = "multi exec discard watch unwatch"
_OURS: Final = (
    "info time get set incr exists type rename expire pexpire del scan hget hset hsetnx hdel "
    "hincrby hexists hgetall hkeys hlen hmget hscan sadd srem scard sismember smembers zadd zrem "
    "zcard zcount zscore zmscore zrank zrange zrangebyscore zrangebylex zpopmin zremrangebyscore "
    "zscan llen lpush rpush ltrim lrange"
)
_CONSUME: Final = "zrevrangebyscore lpush rpush rpop brpop llen"
_SCHEDULE: Final = (
    "multi exec watch unwatch get set del exists pexpire pttl sadd srem smembers hget hset hsetnx "
    "zadd zrem zrank zrange zrangebyscore zrevrangebyscore zscore lpush llen"
)
_MONITOR: Final = (
    "time get set del exists pexpire sadd srem smembers zadd zrem zscore zrange zrangebyscore "
    "hget hset hdel"
)
_TALK: Final = "publish subscribe psubscribe unsubscribe punsubscribe"
_BROKER_KEYS: Final = "~unacked* ~_kombu.* ~celeryev* ~*.pidbox"
# A subscription by pattern needs the very pattern here, so the database number is fixed.
_CHANNELS: Final = "&/0.celery.pidbox &/0.celeryev/*"

COMMANDS: Final = {
    "watcher": (_CONNECT, _SCRIPT, _TRANSACTION, _OURS),
    "worker": (_CONNECT, _SCRIPT, _TRANSACTION, _OURS, _CONSUME, _TALK),
    "beat": (_CONNECT, _SCRIPT, _SCHEDULE),
    "flower": (_CONNECT, _SCRIPT, _TRANSACTION, _MONITOR, _CONSUME, _TALK),
}
OTHER_KEYS: Final = {
    "watcher": f"~{CELERY_QUEUE_PREFIX}*",
    "worker": f"~{CELERY_QUEUE_PREFIX}* ~csifleet.system {_BROKER_KEYS} {_CHANNELS}",
    "beat": "~redbeat:* ~csifleet.system ~_kombu.*",
    "flower": f"%R~{CELERY_QUEUE_PREFIX}* %R~csifleet.system {_BROKER_KEYS} {_CHANNELS}",
}
PURPOSE: Final = {
    "watcher": "Adds keys, feeds the catalog, publishes tickets, brings attempts back.",
    "worker": "Takes keys, keeps attempts, announces drivers. Reads the catalog. Takes tickets.",
    "beat": "Keeps the schedule and sends ticks. Sees no key of ours.",
    "flower": "Listens to Celery's events, asks workers, counts tickets. Sees no key of ours.",
}


def text() -> str:
    """The whole file."""
    parts = [HEAD]
    for user, purpose in PURPOSE.items():
        commands = " ".join(f"+{one}" for one in dict.fromkeys(" ".join(COMMANDS[user]).split()))
        keys = " ".join([*_own_keys(user), OTHER_KEYS[user]])
        parts.append(
            f"#\n# {purpose}\nuser {user} on @{user}@ resetkeys resetchannels -@all "
            f"{commands} {keys}\n"
        )
    return "".join([*parts, "#\n", TAIL])


def _own_keys(user: str) -> list[str]:
    patterns = []
    for entry in NAMES.values():
        pattern = entry.full + ("*" if entry.is_family else "")
        if entry.owner in WRITES.get(user, ()) or entry.name in ALSO.get(user, ()):
            patterns.append(f"~{pattern}")
        elif entry.owner in READS.get(user, ()):
            patterns.append(f"%R~{pattern}")
    return patterns


if __name__ == "__main__":
    FILE.write_text(text())
