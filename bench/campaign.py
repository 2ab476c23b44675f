"""Cases from start to end: warm-up, drain, the search for the highest sustained rate, and latencies below it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from bench.cases import Case
from bench.fixed_table import lines
from bench.phases import drain, hold, most_in_flight, steady
from bench.results import CaseResult, Fixed, Steady
from bench.rig import Options, Rig
from bench.search import Search
from bench.summary import drain_lines, in_flight_lines, steady_lines, verdict_line
from bench.system import System
from relay.config.limits import raise_descriptor_limit

PHASES: Final = ("drain", "sustain", "latency")
SLOW_RATE: Final = 100.0
"""The rate at which latencies are measured that owe nothing to batches or queues."""

_FIRST_GUESS: Final = 500.0
_SHARE_OF_DRAIN: Final = 0.85
_SHARE_FOR_LATENCY: Final = 0.5
_CONFIRM_TRIES: Final = 4
_CONFIRM_STEP: Final = 0.95
_WARM_RATE: Final = 200.0
_LONGEST_DRAIN_S: Final = 600
_LONGEST_WARM_UP_S: Final = 30

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each phase takes. `warm_backlog`: messages drained first, and not counted: a broker that has just been
    started compiles its code for half a minute. `backlog`: messages to drain, or at most to hold. `window_s`: of
    a try in the search, `confirm_s`: of the rate that counts, `latency_s`: of each run for latencies. `rates`: only
    these, without a search, `turns` times."""

    phases: tuple[str, ...] = PHASES
    warm_backlog: int = 60_000
    backlog: int = 100_000
    warm_s: float = 5.0
    window_s: float = 15.0
    tries: int = 6
    confirm_s: float = 60.0
    latency_s: float = 30.0
    rates: tuple[float, ...] = ()
    turns: int = 1


QUICK: Final = Plan(warm_backlog=0, backlog=3_000, warm_s=2.0, window_s=3.0, tries=2, confirm_s=5.0, latency_s=4.0)


async def run_case(case: Case, options: Options, plan: Plan, say: Say) -> CaseResult:
    """All phases of a case, on servers of its own."""
    result = CaseResult(case.name, case.about, case.ordering != "none", case.allowed)
    say(f"{case.name}: {case.about}")
    in_flight = min(most_in_flight(raise_descriptor_limit()), plan.backlog) if case.hold else None
    async with Rig(case, options, in_flight) as rig:
        await rig.relay.start()
        say("  everything runs; warming up")
        await steady(rig, _WARM_RATE, plan.warm_s)
        if plan.warm_backlog and options.own_broker:
            await drain(rig, backlog_of(case, plan.warm_backlog, _LONGEST_WARM_UP_S))
        if in_flight is not None:
            result.in_flight = await hold(rig, in_flight)
            _tell(say, in_flight_lines(result.in_flight))
            return result
        if "drain" in plan.phases:
            result.drain = await drain(rig, backlog_of(case, plan.backlog))
            _tell(say, drain_lines(result.drain))
        for rate in plan.rates * plan.turns:
            result.fixed.append(await _fixed(rig, plan, rate, say))
        held = [each.relay for each in result.fixed if each.relay.verdict.sustained]
        result.sustained = max(held, key=lambda each: each.rate, default=None)
        if "sustain" in plan.phases:
            start = result.drain.rate * _SHARE_OF_DRAIN if result.drain else _FIRST_GUESS
            await _sustain(rig, plan, result, min(start, case.allowed or start), say)
        if "latency" in plan.phases:
            for rate in _latency_rates(result):
                result.latencies.append(await steady(rig, rate, plan.latency_s))
                _tell(say, steady_lines(result.latencies[-1]))
    _tell(say, lines(result.fixed) if result.fixed else ())
    return result


async def _fixed(rig: Rig, plan: Plan, rate: float, say: Say) -> Fixed:
    """The plain pipeline, where there is one, and right after it the relay."""
    plain = await _turn(rig, rig.plain, plan, rate, say) if rig.plain is not None else None
    return Fixed(rate, await _turn(rig, rig.relay, plan, rate, say), plain)


async def _turn(rig: Rig, system: System, plan: Plan, rate: float, say: Say) -> Steady:
    await rig.run(system)
    await steady(rig, rate, plan.warm_s)
    async with rig.changing(plan.confirm_s):
        held = await steady(rig, rate, plan.confirm_s)
    say(f"  {system.name}:")
    _tell(say, steady_lines(held))
    return held


def backlog_of(case: Case, wanted: int, longest_s: float = _LONGEST_DRAIN_S) -> int:
    """How many messages to drain: no more than the caps let through in `longest_s`."""
    return min(wanted, int(case.allowed * longest_s)) if case.allowed else wanted


async def _sustain(rig: Rig, plan: Plan, result: CaseResult, start: float, say: Say) -> None:
    """Short tries find the rate, and a long run has to confirm it; where it does not, a little less is tried."""
    search = Search(start, tries=plan.tries)
    while not search.over:
        held = await _try(rig, search.rate, plan.window_s, result, say)
        search.tell(held.verdict.sustained)
    rate = (search.good or search.rate) / _CONFIRM_STEP
    for _ in range(_CONFIRM_TRIES):
        rate *= _CONFIRM_STEP
        held = await _try(rig, rate, plan.confirm_s, result, say)
        if held.verdict.sustained:
            result.sustained = held
            _tell(say, steady_lines(held))
            return
    say(f"  no rate was confirmed; the last try was {rate:,.0f}/s")


async def _try(rig: Rig, rate: float, seconds: float, result: CaseResult, say: Say) -> Steady:
    held = await steady(rig, rate, seconds)
    result.tries.append(replace(held, depths=[]))
    say(f"  try: {verdict_line(held)}")
    return held


def _latency_rates(result: CaseResult) -> list[float]:
    held = [result.sustained.rate * _SHARE_FOR_LATENCY] if result.sustained else []
    return [*held, SLOW_RATE]


def _tell(say: Say, lines: Iterable[str]) -> None:
    for line in lines:
        say(f"  {line}")
