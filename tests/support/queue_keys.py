"""The keys of the queue's model test, with their locks and Celery lists."""

from __future__ import annotations

from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.kinds import place_of
from workers.queue.locks import Lock, Mode
from workers.queue.names import celery_queue

DRIVER = "d.example.com"
CLAIMS = [claim_key(DRIVER, f"ns{i % 2}", f"c{i}", f"u{i}") for i in range(4)]
VOLUMES = [volume_key(DRIVER, f"pvc-u{i}", f"ns{i % 2}") for i in range(4)]
# Several keys may work on one volume at the same time: two on each of two volumes.
ATTACHMENTS = [Key("attachments", DRIVER, f"va{i}", f"u{i % 2}") for i in range(4)]
KEYS = CLAIMS + VOLUMES + ATTACHMENTS
NAMES_OF_LOCKS = [f"pvc-u{i}" for i in range(4)]
LOCKS = {
    **{key.text: [Lock(f"pvc-u{i % 4}")] for i, key in enumerate(CLAIMS + VOLUMES)},
    **{
        key.text: [Lock(f"pvc-u{i % 2}", Mode.SHARED), Lock(f"{DRIVER}#va{i}")]
        for i, key in enumerate(ATTACHMENTS)
    },
}
LANES = [CLAIMS[0].lane, VOLUMES[0].lane, ATTACHMENTS[0].lane]


def list_of(key: str) -> str:
    """Return the Celery list of a key or lane; controllers have separate lists."""
    return celery_queue(place_of(DRIVER, key.split("|", maxsplit=1)[0]))


LISTS = sorted({list_of(key.text) for key in KEYS})
KINDS_OF = {
    name: [lane.partition("|")[0] for lane in LANES if list_of(lane) == name] for name in LISTS
}
