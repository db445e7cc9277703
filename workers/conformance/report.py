"""The report of a run: what was checked and what failed, explained for the driver's author."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


class Verdict(StrEnum):
    """The result of one check."""

    PASSED = "ok"
    BROKEN = "BROKEN"
    SKIPPED = "skipped"


class Broken(Exception):  # noqa: N818 - a finding, not an error
    """The subject fails the check; the text describes how."""


class Skipped(Exception):  # noqa: N818 - a finding
    """The check does not apply; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One check.

    Attributes:
        name: a short, stable name such as `create-repeat`.
        why: what goes wrong for users if the check fails.
        run: runs the check; raises Broken or Skipped. Any other exception is a finding too.
    """

    name: str
    why: str
    run: Callable[[T], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one check, with an explanation."""

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
        """Return the findings of the checks that failed."""
        return [one for one in self.findings if one.verdict is Verdict.BROKEN]

    def text(self) -> str:
        """Return the report as text: one line per check, what is wrong, and then the counts."""
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
    """Run each check on a new object from `make`; a failing check does not stop the others."""
    report = Report(subject)
    for check in checks:
        try:
            check.run(make())
        except Skipped as skipped:
            finding = Finding(check.name, Verdict.SKIPPED, str(skipped))
        except Broken as broken:
            finding = Finding(check.name, Verdict.BROKEN, f"{broken}. {check.why}")
        except Exception as error:  # noqa: BLE001 - any exception of the subject is a finding
            words = f"{type(error).__name__}: {error}. {check.why}"
            finding = Finding(check.name, Verdict.BROKEN, words)
        else:
            finding = Finding(check.name, Verdict.PASSED)
        report.findings.append(finding)
    return report
