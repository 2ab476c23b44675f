"""A trial: load, faults, quiet, verdict. And an experiment: the results of its trials."""

import asyncio
import shutil
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from tests.faults.harness.checker import Verdict, check, total
from tests.faults.harness.history import History, Sent
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.recovery import recoveries
from tests.faults.harness.report import Outcome
from tests.faults.harness.stack import Stack
from tests.faults.harness.timeline import timeline


@dataclass(frozen=True, slots=True)
class Context:
    """The context of an experiment. `scale`: factor of its number of trials. `say`: prints a line of progress.
    `patience`: factor of the time that a trial waits for quiet, 1 for an idle machine."""

    scale: float
    seed: int
    out: Path
    say: Callable[[str], None]
    patience: float = 1.0

    def times(self, trials: int) -> int:
        """The number of trials at this scale, at least one."""
        return max(1, round(trials * self.scale))


@dataclass(slots=True)
class Findings:
    """The results of the trials of one experiment. `problems`: failures that no verdict counts, in words. `bad`: the
    counterexamples, as text. `bounds`: as in `Outcome`. `notes`: for the report."""

    name: str
    title: str
    trials: int = 0
    faults: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    bounds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def outcome(self) -> "Judged":
        verdict = total(self.verdicts)
        return Judged(
            experiment=self.name,
            title=self.title,
            trials=self.trials,
            messages=verdict.messages,
            verdict=verdict,
            recoveries_s=tuple(self.recoveries),
            notes=tuple(self.notes),
            bounds=dict(self.bounds),
            faults=self.faults,
            problems=tuple(self.problems),
        )


@dataclass(frozen=True)
class Judged(Outcome):
    """The outcome, which also fails for problems that no verdict counts."""

    problems: Sequence[str] = ()

    @property
    def exceeded(self) -> tuple[str, ...]:
        return (*self._exceeded(), *self.problems)


Faults = Callable[[Load], Awaitable[None]]


class Trials:
    """Runs trials on one stack, and adds their results to `findings`. `slow_s`: see `recoveries`."""

    def __init__(self, stack: Stack, context: Context, findings: Findings, *, slow_s: float = inf) -> None:
        self.stack = stack
        self.context = context
        self.findings = findings
        self._slow_s = slow_s

    async def run(
        self,
        plan: Plan,
        faults: Faults,
        *,
        what: str = "",
        quiet_s: float = 120.0,
        only: str = "",
        also: Callable[[History], Sequence[str]] = lambda history: (),
    ) -> Verdict:
        """Run the load and `faults`; then wait for quiet, and compute the verdict. `also`: returns further failures, in
        words."""
        load = self.stack.load(plan)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            try:
                await faults(load)
            finally:
                load.stop()
        return await self.judge(load.sent, what=what, quiet_s=quiet_s, only=only, also=also)

    async def judge(
        self,
        sent: Sequence[Sent],
        *,
        what: str = "",
        quiet_s: float = 120.0,
        only: str = "",
        also: Callable[[History], Sequence[str]] = lambda history: (),
    ) -> Verdict:
        """Wait for quiet, and check the outcome of the messages `sent`."""
        quiet_s *= self.context.patience
        calm = await self.stack.quiesce(quiet_s)
        history = self.stack.history(sent)
        verdict = check(history, self.stack.promises)
        findings = self.findings
        findings.trials += 1
        findings.faults += sum(not fault.heals for fault in history.faults)
        findings.verdicts.append(verdict)
        took = recoveries(history, only=only, slow_s=self._slow_s)
        findings.recoveries += took
        wrong = [*also(history)]
        if self.stack.doors is not None:
            wrong += await self.stack.doors.trespasses(sent)
        if not calm:
            wrong.append(f"not quiet after {quiet_s:g} s: {self.stack.left()}")
        self._tell(what, verdict, took, wrong)
        if wrong or not verdict.ok:
            self._keep(what, history, verdict, wrong)
        return verdict

    def _tell(self, what: str, verdict: Verdict, took: Sequence[float], wrong: Sequence[str]) -> None:
        state = "ok" if verdict.ok and not wrong else "NOT OK"
        back = f", back after {max(took):.1f} s" if took else ""
        counts = f"{verdict.messages} messages, {verdict.copies} copies{back}"
        self.context.say(f"{self.findings.name} {self.findings.trials} {what}: {state}, {counts}")

    def _keep(self, what: str, history: History, verdict: Verdict, wrong: Sequence[str]) -> None:
        """Print a violation with its timeline."""
        findings = self.findings
        text = [f"{findings.name}, trial {findings.trials} {what}: {verdict}", *wrong]
        if verdict.first is not None:
            text.append(timeline(history, verdict.first))
        findings.problems += [f"trial {findings.trials} {what}: {each}" for each in wrong]
        findings.bad.append("\n".join(text))
        self.context.say(findings.bad[-1])


@dataclass(frozen=True, slots=True)
class Experiment:
    """`name`: as in the table of the test programme. `title`: a short description. `bounds`: see `Outcome`."""

    name: str
    title: str
    run: Callable[[Context, Findings], Awaitable[None]]
    bounds: Mapping[str, float] = field(default_factory=dict)


async def run_experiment(experiment: Experiment, context: Context) -> Judged:
    """Run it and return the outcome. Ledgers and logs are kept only after a failure."""
    findings = Findings(experiment.name, experiment.title, bounds=dict(experiment.bounds))
    directory = context.out / experiment.name
    shutil.rmtree(directory, ignore_errors=True)
    context.say(f"{experiment.name}: {experiment.title}")
    try:
        await experiment.run(replace(context, out=directory), findings)
    except Exception as error:  # noqa: BLE001 - one experiment that breaks must not end the others
        findings.problems.append(f"broke off: {error!r}")
        findings.bad.append("".join(traceback.format_exception(error)))
        context.say(findings.bad[-1])
    outcome = findings.outcome()
    if outcome.passed:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "bad.txt").write_text("\n\n".join(findings.bad))
    context.say(f"{experiment.name}: {'pass' if outcome.passed else 'FAIL: ' + '; '.join(outcome.exceeded)}")
    return outcome
