"""`csi-fleet explain pod NAMESPACE/NAME`: explains the first claim of the pod that has a problem.

csi-fleet does no work for pods, but a user who asks about storage often knows only the pod.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from workers.cli import terminal
from workers.cli.explaining import ABSENT, explained, without_permission
from workers.errors import ConfigError
from workers.explain import commands, refusals
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.text import as_json, as_lines
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError
from workers.kube.reading import mounted_claims

if TYPE_CHECKING:
    from workers.cli.tools import Tools

POD: Final = "pod"
_WORDS: Final = frozenset({POD, "pods", "po"})
_DESCRIBE: Final = ("kubectl describe {object}",)


def named(tools: Tools) -> tuple[str, str] | None:
    """Return the pod's namespace and name from the arguments; None if they are not about a pod.

    Raises:
        ConfigError: the namespace or the name is missing.
    """
    words = list(tools.settings.arguments)
    if len(words) == 1 and "/" in words[0]:
        words = words[0].split("/", 1)
    if not words or words[0].lower() not in _WORDS:
        return None
    namespace, slash, name = (words[1] if len(words) == 2 else "").partition("/")
    if not slash:
        namespace, name = tools.settings.tool.namespace, namespace
    if not namespace or not name or "/" in name:
        raise ConfigError(
            "the pod's namespace or name is missing. Run `csi-fleet explain pod NAMESPACE/NAME`"
        )
    return namespace, name


def run(tools: Tools, namespace: str, name: str) -> int:
    """Run the command; return 1 if there is no such pod, else 0."""
    cause = cause_of(tools, namespace, name)
    cause = commands.filled(cause, POD, namespace, name, Explained(cause))
    shown = f"{namespace}/{name}"
    if tools.is_data:
        tools.write("Explanation", as_json(POD, shown, cause, None, []))
    else:
        lines = as_lines(f"{POD} {shown}: {cause.code}", cause, [], 0.0)
        terminal.write_explained(lines, is_problem=cause.is_problem)
    return 1 if cause.code in ABSENT else 0


def cause_of(tools: Tools, namespace: str, name: str) -> Cause:
    """Return the cause of the first claim with a problem, else that the claims are fine.

    Raises:
        ApiError: the API server does not answer.
    """
    try:
        pod = tools.kube.get(paths.PODS, name, namespace=namespace)
    except NotFoundError:
        return Cause(
            "not-found",
            f"There is no pod {namespace}/{name}.",
            "Check the namespace and the name.",
            templates=("kubectl get pods -A",),
        )
    except ForbiddenError as error:
        return refusals.cause(str(error))
    claims = sorted(mounted_claims(pod))
    if not claims:
        return Cause(
            "nothing-to-do",
            "The pod uses no claim, so it waits for nothing that csi-fleet does.",
            is_problem=False,
            templates=_DESCRIBE,
        )
    found = [_claim_cause(tools, namespace, claim) for claim in claims]
    waits = [one for one in found if one.is_problem] or [
        one for one in found if one.code != "bound"
    ]
    if waits:
        return waits[0]
    return Cause(
        "nothing-to-do",
        f"The pod's claims are bound, and nothing is known that keeps the pod from using them: "
        f"{', '.join(claims)}. If the pod does not start, its events name another reason.",
        is_problem=False,
        templates=_DESCRIBE,
    )


def _claim_cause(tools: Tools, namespace: str, claim: str) -> Cause:
    """Return the cause of one claim, as `explain pvc` reports it, with its commands."""
    try:
        cause = explained(tools, "pvc", namespace, claim).cause
    except ForbiddenError as error:
        cause = without_permission(tools, "pvc", namespace, claim, error).cause
    return replace(cause, text=f"The pod uses claim {claim}. {cause.text}")
