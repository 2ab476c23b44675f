"""The report of the experiments: JSON for programs, a Markdown table for people."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Final

import msgspec

from tests.faults.harness.checker import DAMAGE, Verdict

RECOVERY_MAX: Final = "recovery_max_s"
"""Key in `Outcome.bounds` for the longest recovery."""

_COLUMNS: Final = (
    *("experiment", "trials", "faults", "messages", "lost", "doubled", "copies", "out of order", "stuck"),
    *("recovery median s", "recovery max s", "lost per fault (95 %)", "verdict"),
)
_LEFT: Final = frozenset({"experiment", "verdict"})
_IN_TABLE: Final = frozenset({"lost", "doubled", "copies", "disordered", "stuck"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """One experiment. `verdict`: of all its trials (`checker.total`). `faults`: harmful ones; 0: each trial is one.

    `recoveries_s`: seconds from a fault to normal work, one for each fault where it was seen. `bounds`: maximum of a
    field of `Verdict` or of `RECOVERY_MAX`; the maximum of other violations is 0. `problems`: other failures, in words.
    """

    experiment: str
    title: str
    trials: int
    messages: int
    verdict: Verdict
    recoveries_s: Sequence[float] = ()
    notes: Sequence[str] = ()
    bounds: Mapping[str, float] = field(default_factory=dict)
    faults: int = 0
    problems: Sequence[str] = ()

    @property
    def exceeded(self) -> tuple[str, ...]:
        """The exceeded bounds, and the problems. Raises ValueError for a bound on an unknown field."""
        return (*self._exceeded(), *self.problems)

    @property
    def passed(self) -> bool:
        return not self.exceeded

    @property
    def most_lost(self) -> float | None:
        """The share of faults that lose a message, at most, with 95 % confidence: none in n shows 3/n, the rule of
        three. None if a message was lost, or there was no fault."""
        tried = self.faults or self.trials
        return None if self.verdict.lost or not tried else min(1.0, 3 / tried)

    def _exceeded(self) -> Iterator[str]:
        counts = {name: value for name, value in asdict(self.verdict).items() if isinstance(value, int)}
        if unknown := set(self.bounds) - set(counts) - {RECOVERY_MAX}:
            raise ValueError(f"{self.experiment}: bounds on {', '.join(sorted(unknown))}, which nothing counts")
        for name, count in counts.items():
            bound = self.bounds.get(name, 0.0 if name in DAMAGE else float("inf"))
            if count > bound:
                yield f"{name} {count}, expected at most {bound:g}"
        longest = max(self.recoveries_s, default=0.0)
        if longest > self.bounds.get(RECOVERY_MAX, float("inf")):
            yield f"recovery {longest:.1f} s, expected at most {self.bounds[RECOVERY_MAX]:g} s"


def as_json(outcomes: Iterable[Outcome], about: Mapping[str, object] | None = None) -> bytes:
    """Indented JSON: `about` (the conditions of the run), `passed`, and the outcomes."""
    every = list(outcomes)
    document = {
        "about": dict(about or {}),
        "passed": all(outcome.passed for outcome in every),
        "outcomes": [_fields(outcome) for outcome in every],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _fields(outcome: Outcome) -> dict[str, object]:
    return {
        **asdict(outcome),
        "recovery_median_s": median(outcome.recoveries_s) if outcome.recoveries_s else None,
        "recovery_max_s": max(outcome.recoveries_s, default=None),
        "most_lost": outcome.most_lost,
        "passed": outcome.passed,
        "exceeded": outcome.exceeded,
    }


def markdown(outcomes: Iterable[Outcome]) -> str:
    """The table, followed by the notes on each experiment."""
    every = list(outcomes)
    lines = [_row(_COLUMNS), _row("---" if column in _LEFT else "---:" for column in _COLUMNS)]
    lines += [_row(_cells(outcome)) for outcome in every]
    remarks = [f"- {outcome.experiment}: {remark}" for outcome in every for remark in _remarks(outcome)]
    return "\n".join([*lines, *([""] if remarks else []), *remarks]) + "\n"


def _cells(outcome: Outcome) -> Iterator[str]:
    verdict = outcome.verdict
    yield f"{outcome.experiment} {outcome.title}"
    yield f"{outcome.trials:,}"
    yield f"{outcome.faults:,}" if outcome.faults else "-"
    for count in (outcome.messages, verdict.lost, verdict.doubled, verdict.copies, verdict.disordered, verdict.stuck):
        yield f"{count:,}"
    yield f"{median(outcome.recoveries_s):.1f}" if outcome.recoveries_s else "-"
    yield f"{max(outcome.recoveries_s):.1f}" if outcome.recoveries_s else "-"
    yield "-" if outcome.most_lost is None else f"< {outcome.most_lost:.2%}"
    yield "pass" if outcome.passed else "FAIL"


def _remarks(outcome: Outcome) -> Iterator[str]:
    yield from outcome.exceeded
    expected = [f"{name} <= {bound:g}" for name, bound in outcome.bounds.items()]
    if expected:
        yield f"expected {', '.join(expected)}"
    others = [name for name in (*DAMAGE, "doubled_results") if name not in _IN_TABLE]
    seen = [f"{name} {count}" for name in others if (count := getattr(outcome.verdict, name))]
    if seen:
        yield ", ".join(seen)
    if outcome.verdict.first is not None:
        yield f"first counterexample: {outcome.verdict.first.kind}: {outcome.verdict.first.says}"
    yield from outcome.notes


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
