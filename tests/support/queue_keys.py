"""The keys of the queue's model test, with their locks and the lists of their tickets."""

from __future__ import annotations

from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.kinds import place_of
from workers.queue.locks import Lock, Mode
from workers.queue.names import celery_queue

DRIVER = "d.example.com"
CLAIMS = [claim_key(DRIVER, f"ns{i % 2}", f"c{i}", f"u{i}") for i in range(4)]
VOLUMES = [volume_key(DRIVER, f"pvc-u{i}", f"ns{i % 2}") for i in range(4)]
# Several may work on one volume side by side: two of each of two volumes.
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
RULES = {
    CLAIMS[0].lane: "claims x:pvc-\2",
    VOLUMES[0].lane: "volumes x:\1",
    ATTACHMENTS[0].lane: f"attachments s:pvc-\2 x:{DRIVER}#\1",
}
LANES = [CLAIMS[0].lane, VOLUMES[0].lane, ATTACHMENTS[0].lane]


def tickets_of(key: str) -> str:
    """The Celery list of a key's tickets; controllers have lists of their own."""
    return celery_queue(place_of(DRIVER, key.split("|", maxsplit=1)[0]))


def lanes_beside(key: Key) -> list[str]:
    """The lanes whose tickets come in the same list."""
    return [lane for lane in LANES if tickets_of(lane) == tickets_of(key.text)]


def rules_beside(key: Key) -> str:
    """For `WorkQueue.take_any` and the end of a lease."""
    return "\n".join(RULES[lane] for lane in lanes_beside(key))


LISTS = sorted({tickets_of(key.text) for key in KEYS})
