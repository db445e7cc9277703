"""`csi-fleet explain pvc NAMESPACE/NAME`, `va NAME`, ...: explains why an object is waiting.

It also shows the object's history. `explain driver|class|namespace NAME` is in `wholes.py`, and
`explain pod NAMESPACE/NAME` in `pods.py`.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from workers.cli import pods, terminal, wholes
from workers.cli.explaining import ABSENT, explained, without_permission
from workers.cli.tools import named_object
from workers.explain.refusals import REFUSED
from workers.explain.text import as_json, as_lines
from workers.kube.errors import ForbiddenError

if TYPE_CHECKING:
    from workers.cli.tools import Tools


def run(tools: Tools) -> int:
    """Run the command; return 1 if the object does not exist or Redis does not answer, else 0."""
    if (whole := wholes.named(tools.settings.arguments)) is not None:
        return wholes.run(tools, *whole)
    if words := pods.named(tools):
        return pods.run(tools, *words)
    word, namespace, name = named_object(
        tools.settings.arguments,
        "explain",
        given=tools.settings.tool.namespace,
        further=(pods.POD, *wholes.WHOLES),
    )
    shown = f"{namespace}/{name}" if namespace else name
    try:
        answer = explained(tools, word, namespace, name)
    except ForbiddenError as error:
        answer = without_permission(tools, word, namespace, name, error)
    state, cause, problem = answer.found.state, answer.cause, answer.problem
    entries = answer.history()
    if tools.is_data:
        tools.write("Explanation", as_json(word, shown, cause, state, entries))
    else:
        now = state.now if state is not None else time.time()
        lines = as_lines(f"{word} {shown}: {cause.code}", cause, entries, now)
        terminal.write_explained(lines, is_problem=cause.is_problem)
    if problem:
        sys.stderr.write(f"csi-fleet explain: {problem}\n")
    return 1 if problem or cause.code in ABSENT | {REFUSED} else 0
