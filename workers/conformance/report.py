"""What was checked and what breaks, in words a driver's author can act on."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


class Verdict(StrEnum):
    """Result of one check."""

    PASSED = "ok"
    BROKEN = "BROKEN"
    SKIPPED = "skipped"


class Broken(Exception):  # noqa: N818 - a finding, not an error of ours
    """The subject of the check does not keep a promise; the text says which."""


class Skipped(Exception):  # noqa: N818 - a finding
    """The check does not apply; the text says why."""


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One promise.

    Attributes:
        name: short, stable: `create-repeat`.
        why: what goes wrong for users when it is not kept.
        run: raises Broken or Skipped; anything else it raises is a finding too.
    """

    name: str
    why: str
    run: Callable[[T], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check."""

    check: str
    verdict: Verdict
    words: str = ""


@dataclass(slots=True)
class Report:
    """All findings of one run."""

    subject: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def broken(self) -> list[Finding]:
        """What breaks."""
        return [one for one in self.findings if one.verdict is Verdict.BROKEN]

    def text(self) -> str:
        """For people: one line a check, then what to do."""
        lines = [f"Conformance of {self.subject}", ""]
        for one in self.findings:
            lines.append(f"{one.verdict.value:8} {one.check}")
            if one.words and one.verdict is not Verdict.PASSED:
                lines += textwrap.wrap(
                    one.words, 92, initial_indent=" " * 9, subsequent_indent=" " * 9
                )
        counts = dict.fromkeys(Verdict, 0)
        for one in self.findings:
            counts[one.verdict] += 1
        lines += ["", ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)]
        return "\n".join(lines) + "\n"


def run_checks(checks: Iterable[Check[T]], subject: str, make: Callable[[], T]) -> Report:
    """Run every check on something `make` prepares for it; no check can stop the others."""
    report = Report(subject)
    for check in checks:
        try:
            check.run(make())
        except Skipped as skipped:
            finding = Finding(check.name, Verdict.SKIPPED, str(skipped))
        except Broken as broken:
            finding = Finding(check.name, Verdict.BROKEN, f"{broken}. {check.why}")
        except Exception as error:  # noqa: BLE001 - whatever the subject does is a finding
            words = f"{type(error).__name__}: {error}. {check.why}"
            finding = Finding(check.name, Verdict.BROKEN, words)
        else:
            finding = Finding(check.name, Verdict.PASSED)
        report.findings.append(finding)
    return report
