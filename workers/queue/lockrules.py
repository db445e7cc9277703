r"""How can Redis know the locks of a key that no worker has seen yet?

Who ends a lease goes on with the oldest ticketed key in the same round trip, so a script must
lock what that key needs. A controller names a key's locks by a pure function; it is asked once with
marks in place of object and uid, and where both come out whole its answer is a rule for all keys of
the kind:

    claims x:pvc-\2
    volumes x:\1

A kind whose answer is none (a claim's uid may be cut for its volume's name) has `-`, and a message
of its own leads to each of its keys, as it does to keys with unusual letters (`lib_taking.lua`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.queue.locks import Lock

NO_RULE: Final = "-"
# The uid is as long as one and has its dashes: what cuts or changes a uid cuts or changes this.
_OBJECT: Final = "~object~"
_UID: Final = "~uid~~~~-~~~~-~~~~-~~~~-~~~~~~~~~~~~"
_MARKS: Final = ((_OBJECT, "\1"), (_UID, "\2"))
_CHANGED: Final = "~"


def lock_rule(kind: str, driver: str, locks: Callable[[Key], Sequence[Lock]]) -> str:
    """One line: the kind, and the spelling of its locks.

    Args:
        kind: of the keys.
        driver: their queue name.
        locks: pure; of one key.
    """
    found = [lock.text for lock in locks(Key(kind, driver, _OBJECT, _UID))]
    for mark, letter in _MARKS:
        found = [text.replace(mark, letter) for text in found]
    if any(_CHANGED in text for text in found):
        found = [NO_RULE]
    return " ".join((kind, *found))
