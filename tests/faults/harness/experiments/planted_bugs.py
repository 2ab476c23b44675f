"""E21: bugs planted in the relay's processes, each of which has to be caught by a short experiment.

The processes run with the bug (planted.PLANTED) in force; the faults are those of the other experiments, chosen to make
the bug visible. A bug is caught if the checker, or the wait for quiet, finds a failure within a few trials. Passes:
every bug is caught, and the same faults without the bug do no damage. Some bugs are tested only in memory:
`non_monotone_stage` shows only in a row; with `no_fence` a former owner is still stopped by the rows' attempt tokens,
except in a moment that an outside process cannot hit; the two of `no_life_in_` need a process that is frozen at one
call until a replay has failed; a deadline that is forgotten, or an older message of a key that is sent, too, shows
where the moment is known; and a log that lost its end is what E22 is about.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.faults.harness.history import History
from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX, OF_SOME_PROCESSES, ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

TRIALS: Final = 8
"""Maximum of trials for each bug, at any scale: the bug has to be found within these."""
QUIET_S: Final = 45.0
_SESSION_S: Final = 2.0

Strike = Callable[[Stack, Killer, int], Awaitable[None]]
"""A fault on a stack under load. The number is that of the trial, 0-based."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """How to find a bug. `again`, `timed`: see load.Plan. `most_dead`: dead letters allowed for a kill. `lacking`:
    number of members that lack a variable."""

    strike: Strike
    receivers: Mapping[str, ReceiverPlan]
    settings: Mapping[str, str] = field(default_factory=dict)
    again: float = 0.0
    timed: float = 0.0
    wired: bool = False
    members: int = 1
    lacking: int = 0
    has_doors: bool = False
    sources: int = 8
    rate: float = 40.0
    most_dead: int | None = None


async def planted_bugs(context: Context, findings: Findings) -> None:
    async with Servers() as servers:
        for bug, hunt in HUNTS.items():
            findings.trials += 1
            if without := await hunt_down(servers, "", hunt, replace(context, out=context.out / f"without-{bug}"), 1):
                findings.problems.append(f"what {bug} is hunted with is no proof: without it there is {without}")
            how = await hunt_down(servers, bug, hunt, replace(context, out=context.out / bug))
            if how:
                findings.notes.append(f"{bug}: caught, {how}")
            else:
                findings.problems.append(f"{bug}: not caught in {TRIALS} trials")


async def hunt_down(servers: Servers, bug: str, hunt: Hunt, context: Context, most: int = TRIALS) -> str:
    """The failure that revealed the bug, within the maximum of trials; empty if none did. `bug` "": no bug is
    planted."""
    quiet = replace(context, say=lambda line: None)
    async with Stack(
        servers,
        context.out,
        hunt.receivers,
        seed=context.seed,
        settings=hunt.settings,
        session_timeout_s=_SESSION_S,
        wired=hunt.wired,
        has_doors=hunt.has_doors,
    ) as stack:
        for number in range(1, hunt.members + 1):
            await _start(stack, f"relay-{number}", bug, lacks=number <= hunt.lacking)
        if stack.doors is not None:
            await stack.doors.make_keys()
        killer = Killer(stack, context.seed)
        for trial in range(most):
            findings = Findings("E21", bug)

            async def strike(load: Load, trial: int = trial) -> None:
                await asyncio.sleep(1.0)
                await hunt.strike(stack, killer, trial)

            plan = Plan(list(hunt.receivers), hunt.sources, hunt.rate, again=hunt.again, timed=hunt.timed)
            trials = Trials(stack, quiet, findings)
            verdict = await trials.run(
                plan, strike, quiet_s=QUIET_S, also=lambda history: _too_many_dead(hunt, history)
            )
            if findings.bad:
                how = verdict.first.says if verdict.first else findings.problems[0]
                context.say(f"E21 {bug or 'no bug'}: caught in trial {trial + 1}: {how[:150]}")
                return f"{verdict.first.kind if verdict.first else 'stuck'} in trial {trial + 1}"
        context.say(f"E21 {bug or 'no bug'}: nothing found")
        return ""


async def _start(stack: Stack, name: str, bug: str, *, lacks: bool) -> None:
    member = stack.member(name, lacks=lacks)
    member.always = {"RELAY_BUG": bug} if bug else {}
    await member.start()
    await member.started()


def _too_many_dead(hunt: Hunt, history: History) -> Sequence[str]:
    if hunt.most_dead is None or len(history.died) <= hunt.most_dead:
        return []
    return [f"{len(history.died)} messages died for one kill"]


# strikes


def dies_at(point: str, *, first: int = 4, step: int = 5, action: str = "kill") -> Strike:
    """Replace the first process by one that dies at `point`, or whose call fails there, at a later passing in each
    trial."""

    async def strike(stack: Stack, killer: Killer, trial: int) -> None:
        await _arm(stack, f"{point}:{first + step * trial}:{action}")
        await asyncio.sleep(4.0)

    return strike


def parked_dies_at(point: str, *, first: int, step: int) -> Strike:
    """Likewise while the receivers refuse everything, so that all messages are parked."""

    async def strike(stack: Stack, killer: Killer, trial: int) -> None:
        for name in stack.receivers:
            await stack.control(name, mode="fail")
        await _arm(stack, f"{point}:{first + step * trial}:kill")
        await asyncio.sleep(3.0)
        for name in stack.receivers:
            await stack.control(name, mode="answer")
        await asyncio.sleep(5.0)

    return strike


async def _arm(stack: Stack, failpoint: str) -> None:
    member = stack.members["relay-1"]
    stack.fault(f"armed: {failpoint}")
    await member.kill()
    member.extra = {"RELAY_FAILPOINT": failpoint}
    await member.start()
    await member.started()


async def nothing(stack: Stack, killer: Killer, trial: int) -> None:
    await asyncio.sleep(3.0)


async def killed(stack: Stack, killer: Killer, trial: int) -> None:
    for _ in range(2):
        await asyncio.sleep(killer.soon(1.0, 2.0))
        member = killer.some()
        await killer.kill(member)
        await killer.restart(member)
        await member.started()


async def slow_wire(stack: Stack, killer: Killer, trial: int) -> None:
    """Requests arrive 4 s late, twice the relay's timeout; later ones arrive at once."""
    assert stack.wire is not None, "this one is wired"
    stack.fault("requests take 4 s")
    stack.wire.to_target.latency_s = 4.0
    await asyncio.sleep(0.5)
    stack.wire.restore()
    stack.fault("requests arrive at once", heals=True)
    await asyncio.sleep(5.0)


async def state_lost(stack: Stack, killer: Killer, trial: int) -> None:
    """All messages are parked when Redis loses its data; the process dies while it restores them."""
    for name in stack.receivers:
        await stack.control(name, mode="fail")
    await asyncio.sleep(3.0)
    member = stack.members["relay-1"]
    await killer.kill(member)
    stack.fault("FLUSHALL")
    await stack.flush_redis()
    member.extra = {"RELAY_FAILPOINT": "state.restore.before:1:kill"}
    await member.start()
    for name in stack.receivers:
        await stack.control(name, mode="answer")
    await asyncio.sleep(5.0)


async def one_joins(stack: Stack, killer: Killer, trial: int) -> None:
    """The second process stops, and starts again while the first has requests in flight that take 7 s."""
    second = stack.members["relay-2"]
    await second.terminate()
    await asyncio.sleep(2.0)
    stack.fault("relay-2 joins", heals=True)
    await second.start()
    await second.started()
    await asyncio.sleep(8.0)


async def stands_still(stack: Stack, killer: Killer, trial: int) -> None:
    """Freeze a process for less than its session timeout while it has slots of the rate limit; then continue with a
    backlog."""
    for _ in range(2):
        await asyncio.sleep(2.0)
        await killer.freeze(stack.members["relay-1"], 1.0)
    await asyncio.sleep(2.0)


_PARKS: Final = {"RELAY_HOLD_MAX": "1"}
_RETRY: Final = {"base": 2.5, "factor": 1, "cap": 2.5, "max_attempts": 1000}
_NEVER_OPEN: Final = {"failures": 100_000, "window": 60, "open_for": 1}
_ASKED: Final = {"asked": ReceiverPlan(seconds=0.02), "blind": ReceiverPlan(seconds=0.02, status=False)}
_REFUSES: Final = {
    "asked": ReceiverPlan(
        seconds=0.02, entry={"retry": _RETRY, "breaker": _NEVER_OPEN, "codes": {"not_processed": [500]}}
    )
}
_REJECTS: Final = {
    "rejecting": ReceiverPlan("fail", deaths=frozenset({"rejected"}), entry={"codes": {"rejected": [500]}})
}
_AT_MOST_ONCE: Final = ReceiverPlan(
    "slow", seconds=0.5, status=False, deaths=frozenset({"ambiguous"}), entry={"on_ambiguous": "dead_letter"}
)

HUNTS: Final[Mapping[str, Hunt]] = {
    "mark_before_produce": Hunt(dies_at("log.append.before"), _ASKED),
    "aborted_delivered": Hunt(nothing, _ASKED),
    "delete_at_done": Hunt(nothing, _ASKED, again=1.0),
    "commit_before_produce": Hunt(killed, {"slow": ReceiverPlan("slow", seconds=0.5)}),
    "skip_on_delivered": Hunt(dies_at("log.append.before"), _ASKED),
    "no_settle": Hunt(slow_wire, _ASKED, wired=True),
    "dlq_not_acked": Hunt(dies_at("log.append.before@failed_messages", first=1, step=2, action="error"), _REJECTS),
    "index_before_park": Hunt(parked_dies_at("log.append.before", first=8, step=4), _REFUSES, settings=_PARKS),
    "tombstone_before_hop": Hunt(
        parked_dies_at("log.append.after@tombstone", first=1, step=2), _REFUSES, settings=_PARKS
    ),
    "ready_before_recovery": Hunt(state_lost, _REFUSES, settings=_PARKS),
    "begin_at_intake": Hunt(killed, {"at-most-once": _AT_MOST_ONCE}, most_dead=16),
    "fenced_outcome_dropped": Hunt(
        one_joins,
        {"slow": ReceiverPlan("slow", seconds=7.0, status=False, entry={"timeout": 9, "partitions": 8})},
        members=2,
        sources=16,
        rate=2.0,
    ),
    "places_not_kept": Hunt(
        nothing, {"few": ReceiverPlan("slow", seconds=0.2, entry={"partitions": 4, "max_in_flight": 1})}, rate=5.0
    ),
    "missed_slots_made_up_for": Hunt(
        stands_still,
        {"paced": ReceiverPlan(seconds=0.02, entry={"ordering": "none", "rate_limit": 20, "window_size": 2})},
        rate=15.0,
    ),
    "wide_fan_out_cut": Hunt(nothing, MIX),
    "callbacks_mixed_up": Hunt(nothing, _ASKED),
    "keys_without_limits": Hunt(nothing, _ASKED, has_doors=True),
    "senders_not_asked": Hunt(nothing, {**_ASKED, "own-1": MIX["own-1"]}, rate=100.0),
    "sent_before_due": Hunt(nothing, _ASKED, timed=0.5),
    "replaced_though_sent": Hunt(nothing, {"slow": ReceiverPlan("slow", seconds=0.5)}, timed=0.5),
    "unusable_is_unknown": Hunt(nothing, OF_SOME_PROCESSES, members=2, lacking=1),
}

EXPERIMENTS: Final = (Experiment("E21", "planted bugs, each to be caught", planted_bugs),)
