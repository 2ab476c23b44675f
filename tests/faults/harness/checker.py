"""Checks a history against the guarantees. Pure.

Each message that the log acknowledged ends once, as a result at the sender or as a dead letter. A receiver with a
status endpoint processes each message once; another one gets a copy only if a response was lost, or a fault left a
request in doubt. Order holds for the first arrivals of a source. Nothing is altered, invented, or left behind.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final

from tests.faults.harness.history import (
    NOTHING,
    Arrival,
    Counterexample,
    Died,
    History,
    Key,
    Promise,
    Returned,
    Sent,
    answer_to,
    digest_of,
)
from tests.faults.harness.numbers import wrongly_numbered
from tests.faults.harness.timed import has_own_time, may_die_of, untimely, wrongly_replaced

_NOTHING_DIES: Final = Promise(asked=False, ordered=False, in_doubt_per_fault=0)
_NOT_AN_END: Final = "id_conflict"
"""Reason of a second message with an id that is taken: the first one still has to end."""

_NOT_FOUND: Final = "unknown_receiver"
"""Reason at a receiver that the source may not name."""

DAMAGE: Final = (
    *("lost", "altered", "phantom", "crossed", "doubled", "copies_over", "disordered", "contradicted"),
    *("unexpected_dead", "untimely", "misreplaced", "misnumbered", "results_over"),
    *("over_in_flight", "over_rate", "stuck"),
)
"""The fields of `Verdict` that count broken promises, the gravest first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of violations. All counts are per message and receiver.

    `lost`: acknowledged, and neither returned nor dead. `doubled`: processed again by a receiver with a status
    endpoint. `copies`: processed again by others; `copies_over`: those of them that neither a lost response nor the
    faults explain. `doubled_results`: results that the sender got again; `results_over`: those without a reason.
    `contradicted`: both answered and failed in one generation. `disordered`: arrived after a later message of its
    source. `altered`: with other bytes. `stuck`: uncommitted records, parked messages, and arrivals of unacknowledged
    messages that never ended. `phantom`: arrivals, results and dead letters of messages that were never sent, and
    results of messages that never arrived. `crossed`: arrivals at a receiver that the source may not name, and results
    at the callback of another source. `over_in_flight`, `over_rate`: how often a receiver had more POSTs in flight, or
    within its window, than its limit. `unexpected_dead`: dead letters with a reason that neither the promise nor the
    message allows. `untimely`: before a message was due, or after its deadline. `misreplaced`: replaced by one that is
    not newer, or after it was sent. `misnumbered`: a number of two messages, or one that is missing without a gap that
    names it. `first`: the first case of the gravest violation.
    """

    messages: int
    lost: int
    doubled: int
    copies: int
    copies_over: int
    doubled_results: int
    results_over: int
    contradicted: int
    disordered: int
    altered: int
    stuck: int
    phantom: int
    crossed: int
    unexpected_dead: int
    untimely: int
    misreplaced: int
    misnumbered: int
    over_in_flight: int
    over_rate: int
    first: Counterexample | None

    @property
    def ok(self) -> bool:
        """Whether all promises were kept."""
        return self.first is None


def check(history: History, promises: Mapping[str, Promise]) -> Verdict:
    """`promises`: by receiver; "" is for dead letters that were not routed yet, where any are expected.

    Raises ValueError when something was sent to a receiver without a promise.
    """
    facts = _Facts(history, promises)
    copies = list(_copies(facts))
    over = list(_copies_over(facts, copies))
    results = list(_repeated_results(facts))
    found = {
        "lost": list(_lost(facts)),
        "altered": list(_altered(facts)),
        "phantom": list(_phantom(facts)),
        "crossed": list(_crossed(facts)),
        "doubled": [copy.counterexample("doubled") for copy in copies if copy.asked],
        "copies_over": [copy.counterexample("copies_over") for copy in over],
        "disordered": list(_disordered(facts)),
        "contradicted": list(_contradicted(facts)),
        "unexpected_dead": list(_unexpected_dead(facts)),
        "untimely": list(untimely(history, facts.sent)),
        "misreplaced": list(wrongly_replaced(history, facts.sent)),
        "misnumbered": list(wrongly_numbered(history, promises)),
        "results_over": [_result_twice(result) for result, excused in results if not excused and not facts.harms],
        "over_in_flight": list(_over_in_flight(facts)),
        "over_rate": list(_over_rate(facts)),
        "stuck": list(_stuck(facts)),
    }
    counts = {kind: len(cases) for kind, cases in found.items()}
    counts["stuck"] += max(0, _left_count(history) - 1)
    return Verdict(
        messages=len(facts.sent),
        copies=sum(not copy.asked for copy in copies),
        doubled_results=len(results),
        first=next((case for kind in DAMAGE for case in found[kind]), None),
        **counts,
    )


def total(verdicts: Iterable[Verdict]) -> Verdict:
    """The sum of all verdicts. `first`: of the first verdict that has one."""
    every = list(verdicts)
    names = [each.name for each in fields(Verdict) if each.name != "first"]
    counts = {name: sum(getattr(verdict, name) for verdict in every) for name in names}
    return Verdict(**counts, first=next((verdict.first for verdict in every if verdict.first), None))


class _Facts:
    """The history, by message and receiver."""

    def __init__(self, history: History, promises: Mapping[str, Promise]) -> None:
        self.history = history
        self.promises = promises
        self.sent: dict[Key, list[Sent]] = defaultdict(list)
        self.arrivals: dict[Key, list[Arrival]] = defaultdict(list)
        self.returned: dict[Key, list[Returned]] = defaultdict(list)
        for sent in history.sent:
            self.sent[sent.key].append(sent)
        for arrival in history.arrivals:
            self.arrivals[arrival.key].append(arrival)
        for returned in history.returned:
            self.returned[returned.key].append(returned)
        self.died = _deaths(history.died, self.sent)
        self.unheard = {(each.key, each.generation, each.attempt) for each in history.unheard}
        self.harms = sum(not fault.heals for fault in history.faults)
        if missing := {key.receiver for key in self.sent} - set(promises):
            raise ValueError(f"no promise is given for receivers {', '.join(sorted(missing))}")

    def has_ended(self, key: Key) -> bool:
        return key in self.returned or any(died.reason != _NOT_AN_END for died in self.died.get(key, ()))

    def is_dead(self, key: Key) -> bool:
        return key in self.died or any(result.outcome == "failed" for result in self.returned.get(key, ()))

    def is_foreign(self, key: Key) -> bool:
        """Whether its source may not name its receiver."""
        return key in self.sent and not self.sent[key][0].allowed

    def was_heard(self, arrival: Arrival) -> bool:
        """Whether the relay can know the outcome of this POST."""
        if arrival.status is None or arrival.status >= 500 or arrival.status == 408:
            return False
        return (arrival.key, arrival.generation, arrival.attempt) not in self.unheard


def _deaths(died: Iterable[Died], sent: Iterable[Key]) -> dict[Key, list[Died]]:
    """By message and receiver: a dead letter of a message that was not routed counts for all its receivers."""
    receivers: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for key in sent:
        receivers[key.source, key.message_id].append(key)
    deaths: dict[Key, list[Died]] = defaultdict(list)
    for each in died:
        own = each.key
        for key in [own] if each.receiver else receivers.get((each.source, each.message_id), [own]):
            deaths[key].append(each)
    return deaths


def _lost(facts: _Facts) -> Iterator[Counterexample]:
    for key, sent in facts.sent.items():
        if any(each.acked for each in sent) and not facts.has_ended(key):
            where = "it arrived" if key in facts.arrivals else "it never arrived"
            yield Counterexample("lost", (key,), f"{key}: acknowledged, but no result and no dead letter; {where}")


def _altered(facts: _Facts) -> Iterator[Counterexample]:
    for arrival in facts.history.arrivals:
        key = arrival.key
        if key in facts.sent and all(arrival.digest != sent.digest for sent in facts.sent[key]):
            yield Counterexample(
                "altered", (key,), f"{key}: attempt {arrival.attempt} has not the bytes that were sent"
            )
    for result in facts.history.returned:
        key = result.key
        if key in facts.sent and result.digest not in _right_digests(result, facts.sent[key]):
            yield Counterexample("altered", (key,), f"{key}: result {result.result_id} is not what was answered")


def _right_digests(result: Returned, sent: Iterable[Sent]) -> set[str]:
    if result.outcome != "answered":
        return {NOTHING}
    return {digest_of(answer_to(result.key, each.digest)) for each in sent}


def _phantom(facts: _Facts) -> Iterator[Counterexample]:
    for what, seen in (("arrived", facts.arrivals), ("returned", facts.returned), ("died", facts.died)):
        for key in seen:
            if key not in facts.sent and key.source:  # the ids of a record that cannot be read are empty
                yield Counterexample("phantom", (key,), f"{key}: {what}, but was never sent")
    for key, results in facts.returned.items():
        made_up = [each for each in results if each.outcome != "failed"]
        if key in facts.sent and made_up and not any(each.processed for each in facts.arrivals.get(key, ())):
            result = made_up[0]
            yield Counterexample("phantom", (key,), f"{key}: {result.outcome}, but its receiver never processed it")


def _crossed(facts: _Facts) -> Iterator[Counterexample]:
    for key in facts.arrivals:
        if facts.is_foreign(key):
            yield Counterexample("crossed", (key,), f"{key}: arrived, but its source may not name that receiver")
    for key, results in facts.returned.items():
        for result in results:
            if key in facts.sent and result.callback != facts.sent[key][0].callback:
                yield Counterexample("crossed", (key,), f"{key}: its result came to {result.callback}")


@dataclass(frozen=True, slots=True)
class _Copy:
    """A processed arrival beyond the first of a generation. `excused`: the response to the previous one was lost."""

    key: Key
    asked: bool
    excused: bool
    generation: int
    attempt: int

    def counterexample(self, kind: str) -> Counterexample:
        what = f"{self.key}: processed once more, by attempt {self.attempt} of generation {self.generation}"
        return Counterexample(kind, (self.key,), what)


def _copies(facts: _Facts) -> Iterator[_Copy]:
    for key, arrivals in facts.arrivals.items():
        if key not in facts.sent:
            continue
        promise = facts.promises[key.receiver]
        latest: dict[int, Arrival] = {}
        for arrival in arrivals:
            if not arrival.processed:
                continue
            before = latest.get(arrival.generation)
            latest[arrival.generation] = arrival
            if before is not None or arrival.generation >= promise.generations:
                excused = before is not None and not facts.was_heard(before)
                yield _Copy(key, promise.asked, excused, arrival.generation, arrival.attempt)


def _copies_over(facts: _Facts, copies: Iterable[_Copy]) -> Iterator[_Copy]:
    """Copies beyond those that the faults may have left in doubt, for each receiver."""
    unexplained: Counter[str] = Counter()
    for copy in copies:
        if copy.asked or copy.excused:
            continue
        receiver = copy.key.receiver
        unexplained[receiver] += 1
        if unexplained[receiver] > facts.promises[receiver].in_doubt_per_fault * facts.harms:
            yield copy


def _disordered(facts: _Facts) -> Iterator[Counterexample]:
    """First arrivals that a receiver processed behind a later one of their source, by the sender's numbers or by the
    sequence that the relay gave them. Dead letters do not count, nor messages whose order the sender does not know.
    """
    highest: dict[tuple[str, str], tuple[int, Arrival]] = {}
    sequences: dict[tuple[str, str], int] = {}
    for arrival in _first_processed(facts):
        key = arrival.key
        line = (key.receiver, key.source)
        number = facts.sent[key][0].number
        last, ahead = highest.get(line, (number, arrival))
        sequence = arrival.sequence
        if number < last:
            says = f"{key}: number {number} arrived first behind number {last}, {ahead.message_id}"
            yield Counterexample("disordered", (ahead.key, key), says)
        elif sequence is not None and sequence < sequences.get(line, sequence):
            says = f"{key}: its sequence {sequence} is below {sequences[line]}, that of {ahead.message_id}"
            yield Counterexample("disordered", (ahead.key, key), says)
        if number >= last:
            highest[line] = (number, arrival)
            if sequence is not None:
                sequences[line] = sequence


def _first_processed(facts: _Facts) -> Iterator[Arrival]:
    """First arrivals of messages whose order counts, in order of time."""
    seen: set[Key] = set()
    for arrival in facts.history.arrivals:
        key = arrival.key
        if not arrival.processed or key in seen or key not in facts.sent:
            continue
        seen.add(key)
        sure = all(sent.acked for sent in facts.sent[key]) and not has_own_time(facts.sent[key])
        if sure and facts.promises[key.receiver].ordered and not facts.is_dead(key):
            yield arrival


def _contradicted(facts: _Facts) -> Iterator[Counterexample]:
    for key, results in facts.returned.items():
        failed = {_generation(each) for each in results if each.outcome == "failed"}
        if both := failed & {_generation(each) for each in results if each.outcome != "failed"}:
            says = f"{key}: came back both failed and delivered in generation {min(both)}"
            yield Counterexample("contradicted", (key,), says)


def _generation(result: Returned) -> int:
    """The last part of a result's id."""
    last = result.result_id.rpartition("_")[2]
    return int(last) if last.isdecimal() else 0


def _repeated_results(facts: _Facts) -> Iterator[tuple[Returned, bool]]:
    """Each repeated result, and whether the sender had not responded to the previous one."""
    latest: dict[str, Returned] = {}
    for result in facts.history.returned:
        before = latest.get(result.result_id)
        latest[result.result_id] = result
        if before is not None:
            yield result, before.status is None


def _result_twice(result: Returned) -> Counterexample:
    key = result.key
    return Counterexample("results_over", (key,), f"{key}: result {result.result_id} came once more, without a fault")


def _unexpected_dead(facts: _Facts) -> Iterator[Counterexample]:
    for died in facts.history.died:
        if facts.is_foreign(died.key) and died.reason == _NOT_FOUND:
            continue
        allowed = facts.promises.get(died.receiver, _NOTHING_DIES).deaths | may_die_of(facts.sent.get(died.key, ()))
        if died.reason not in allowed:
            yield Counterexample("unexpected_dead", (died.key,), f"{died.key}: a dead letter, {died.reason}")
    for key, results in facts.returned.items():
        allowed = facts.promises.get(key.receiver, _NOTHING_DIES).deaths
        failed = any(each.outcome == "failed" for each in results)
        if failed and key not in facts.died and not allowed:
            yield Counterexample("unexpected_dead", (key,), f"{key}: a failure notice without a dead letter")


def _over_in_flight(facts: _Facts) -> Iterator[Counterexample]:
    for peak in facts.history.peaks:
        promise = facts.promises.get(peak.receiver)
        if promise is not None and promise.max_in_flight is not None and peak.under_way > promise.max_in_flight:
            says = f"{peak.under_way} POSTs were under way at {peak.receiver}, which takes {promise.max_in_flight}"
            yield Counterexample("over_in_flight", (), says)


def _over_rate(facts: _Facts) -> Iterator[Counterexample]:
    """Arrivals that were too close together, even if some were seen late."""
    for name, promise in facts.promises.items():
        most = promise.rate_limit
        if most is None:
            continue
        at = [each for each in facts.history.arrivals if each.receiver == name]
        for first, last in zip(at, at[most:], strict=False):
            apart_s = last.at - (first.at - first.seen_late_s)
            if apart_s < promise.window_s:
                says = f"{most + 1} POSTs came to {name} within {apart_s:.3f} s, of {most} in {promise.window_s:g} s"
                yield Counterexample("over_rate", (first.key, last.key), says)


def _stuck(facts: _Facts) -> Iterator[Counterexample]:
    if left := _left_over(facts.history):
        yield Counterexample("stuck", (), left)
    for key, sent in facts.sent.items():
        if key in facts.arrivals and not any(each.acked for each in sent) and not facts.has_ended(key):
            says = f"{key}: arrived (though its sender had no acknowledgement), but has no result and no dead letter"
            yield Counterexample("stuck", (key,), says)


def _left_count(history: History) -> int:
    """An unknown lag, below zero, counts as one."""
    return history.parked + sum(max(1, lag) if lag else 0 for lag in history.unfinished.values())


def _left_over(history: History) -> str:
    """Uncommitted and parked records, in words; empty if there are none."""
    parts = [
        f"{group} has {lag if lag > 0 else 'an unknown number of'} records to go"
        for group, lag in sorted(history.unfinished.items())
        if lag
    ]
    if history.parked:
        parts.append(f"{history.parked} messages are parked")
    return "; ".join(parts)
