"""Tests of the fault harness's checker: it passes a run without faults, and finds each kind of damage."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relay.domain.timing import Timing
from tests.faults.harness.checker import DAMAGE, Verdict, check, total
from tests.faults.harness.history import (
    NOTHING,
    Arrival,
    Asked,
    Died,
    Fault,
    History,
    Key,
    Peak,
    Ping,
    Promise,
    Record,
    Returned,
    Sent,
    Unheard,
    answer_to,
    digest_of,
)
from tests.faults.harness.ledger import Ledger, read
from tests.faults.harness.numbers import wrongly_numbered
from tests.faults.harness.timeline import timeline

PROMISES: Final[Mapping[str, Promise]] = {
    "asked": Promise(asked=True, ordered=True, in_doubt_per_fault=0, deaths=frozenset({"rejected"})),
    "blind": Promise(asked=False, ordered=True, in_doubt_per_fault=2, deaths=frozenset({"rejected"})),
    "loose": Promise(asked=False, ordered=False, in_doubt_per_fault=2, deaths=frozenset({"rejected"})),
}

few = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class Life:
    """What becomes of one message at one receiver. `refused`: POSTs that are answered with these before it works."""

    source: str
    receiver: str
    wait_s: float
    refused: tuple[int, ...]
    dies: bool


lives = st.lists(
    st.builds(
        Life,
        source=st.sampled_from(["a", "b"]),
        receiver=st.sampled_from(sorted(PROMISES)),
        wait_s=st.floats(0, 5),
        refused=st.lists(st.sampled_from([408, 425, 429, 500, 503]), max_size=2).map(tuple),
        dies=st.integers(0, 5).map(lambda n: n == 0),
    ),
    min_size=1,
    max_size=8,
)


def records_of(lives_: Iterable[Life]) -> list[Record]:
    """A run without faults: in each line of a receiver and source, one message after the other."""
    told: list[Record] = []
    free: dict[tuple[str, str], float] = {}
    for number, life in enumerate(lives_):
        digest = digest_of(b"payload %d" % number)
        key = Key(life.source, f"m-{number}", life.receiver)
        told.append(Sent(float(number), key.source, key.message_id, number, key.receiver, digest, acked=True))
        line = (life.receiver, life.source)
        at = max(float(number), free.get(line, 0.0)) + 0.5
        statuses = [*life.refused, 422 if life.dies else 200]
        for attempt, status in enumerate(statuses, start=1):
            at += 0.25 + life.wait_s
            told.append(
                Arrival(at, key.receiver, *key[:2], attempt, 0, number, digest, status, processed=status == 200)
            )
        free[line] = at
        told += ending_of(key, digest, at + 0.125, dies=life.dies)
    return told


def ending_of(key: Key, digest: str, at: float, *, dies: bool) -> list[Record]:
    if dies:
        return [Died("rejected", *key), Returned(at, f"fail_{key.message_id}_x_0", *key, "failed", NOTHING)]
    answer = digest_of(answer_to(key, digest))
    return [Returned(at, f"ans_{key.message_id}_x_0", *key, "answered", answer)]


def history_of(records: Iterable[Record], *, parked: int = 0, **unfinished: int) -> History:
    return History.of(records, unfinished=unfinished, parked=parked)


def judged(records: Iterable[Record]) -> Verdict:
    return check(history_of(records), PROMISES)


def damage(verdict: Verdict) -> dict[str, int]:
    return {kind: count for kind in DAMAGE if (count := getattr(verdict, kind))}


def one_of(data: st.DataObject, records: Iterable[Record], kind: type[Record], **having: object) -> Record:
    """One of the records of a kind, with these fields; gives the example up when there is none."""
    found = [
        record
        for record in records
        if isinstance(record, kind) and all(getattr(record, name) == value for name, value in having.items())
    ]
    assume(found)
    return data.draw(st.sampled_from(found))


def processed_of(data: st.DataObject, records: Iterable[Record], **having: object) -> Arrival:
    found = one_of(data, records, Arrival, processed=True, **having)
    assert isinstance(found, Arrival)
    return found


@few
@given(lives)
def test_a_run_without_faults_is_ok(lives_: list[Life]) -> None:
    verdict = judged(records_of(lives_))
    assert verdict.ok
    assert (verdict.messages, damage(verdict), verdict.copies, verdict.doubled_results) == (len(lives_), {}, 0, 0)


@few
@given(lives, st.data())
def test_the_records_of_several_ledgers_may_come_in_any_order(lives_: list[Life], data: st.DataObject) -> None:
    records = records_of(lives_)
    shuffled = data.draw(st.permutations(records))
    assert judged(shuffled) == judged(records)


@few
@given(lives, st.data())
def test_a_message_that_never_came_back_is_lost(lives_: list[Life], data: st.DataObject) -> None:
    records = records_of(lives_)
    result = one_of(data, records, Returned, outcome="answered")
    assert isinstance(result, Returned)
    records.remove(result)
    verdict = judged(records)
    assert damage(verdict) == {"lost": 1}
    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.messages) == ("lost", (result.key,))


@few
@given(lives, st.data())
def test_a_message_without_acknowledgement_may_vanish_but_not_stop_half_way(
    lives_: list[Life], data: st.DataObject
) -> None:
    records = records_of(lives_)
    sent = one_of(data, records, Sent)
    assert isinstance(sent, Sent)
    others = [record for record in records if getattr(record, "message_id", "") != sent.message_id]
    unsure = replace(sent, acked=False)
    assert judged([*others, unsure]).ok
    arrived = Arrival(sent.at + 1, sent.receiver, *sent.key[:2], 1, 0, sent.number, sent.digest, 200)
    verdict = judged([*others, unsure, arrived])
    assert verdict.stuck == 1
    assert verdict.lost == 0


@few
@given(lives, st.data(), st.sampled_from(["asked", "blind", "loose"]))
def test_a_message_processed_twice_is_a_copy(lives_: list[Life], data: st.DataObject, receiver: str) -> None:
    records = records_of(lives_)
    arrival = processed_of(data, records, receiver=receiver)
    verdict = judged([*records, replace(arrival, at=arrival.at + 0.01, attempt=arrival.attempt + 1)])
    kind = "doubled" if receiver == "asked" else "copies_over"
    assert damage(verdict) == {kind: 1}
    assert verdict.copies == (receiver != "asked")
    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.messages) == (kind, (arrival.key,))


@few
@given(lives, st.data(), st.sampled_from(["blind", "loose"]), st.sampled_from([None, 408, 500, 504]))
def test_an_answer_that_was_not_heard_explains_a_copy_unless_the_receiver_can_be_asked(
    lives_: list[Life], data: st.DataObject, receiver: str, status: int | None
) -> None:
    records = records_of(lives_)
    arrival = processed_of(data, records, receiver=receiver)
    copy = replace(arrival, at=arrival.at + 0.01, attempt=arrival.attempt + 1)
    records.remove(arrival)
    verdict = judged([*records, replace(arrival, status=status), copy])
    assert (verdict.copies, verdict.ok) == (1, True)
    post = (arrival.receiver, *arrival.key[:2], arrival.attempt, arrival.generation)
    verdict = judged([*records, arrival, Unheard(arrival.at + 0.005, *post), copy])
    assert (verdict.copies, verdict.ok) == (1, True)


@few
@given(lives, st.data())
def test_an_answer_that_was_not_heard_explains_nothing_where_the_receiver_can_be_asked(
    lives_: list[Life], data: st.DataObject
) -> None:
    records = records_of(lives_)
    arrival = processed_of(data, records, receiver="asked")
    records.remove(arrival)
    copy = replace(arrival, at=arrival.at + 0.01, attempt=arrival.attempt + 1)
    assert damage(judged([*records, replace(arrival, status=None), copy])) == {"doubled": 1}


@few
@given(lives, st.data(), st.integers(0, 2), st.integers(1, 6))
def test_faults_explain_so_many_copies_and_no_more(
    lives_: list[Life], data: st.DataObject, faults: int, copies: int
) -> None:
    records = records_of(lives_)
    arrival = processed_of(data, records, receiver="blind")
    records += [Fault(float(n), f"kill -9 relay-{n}") for n in range(faults)]
    records += [Fault(9.0, "started relay-1 again", heals=True)]
    records += [replace(arrival, at=arrival.at + n / 100) for n in range(1, copies + 1)]
    verdict = judged(records)
    assert (verdict.copies, verdict.copies_over) == (copies, max(0, copies - 2 * faults))


@few
@given(lives, st.data())
def test_two_messages_of_a_source_that_changed_places_are_disordered(lives_: list[Life], data: st.DataObject) -> None:
    records = records_of([*lives_, *(replace(life, dies=False) for life in lives_)])
    first = processed_of(data, records)
    assume(PROMISES[first.receiver].ordered)
    line = [
        record
        for record in records
        if isinstance(record, Arrival) and record.processed and record.key[::2] == first.key[::2]
    ]
    later = [record for record in line if record.at > first.at]
    assume(later)
    second = later[0]
    for record in (first, second):
        records.remove(record)
    verdict = judged([*records, replace(first, at=second.at), replace(second, at=first.at)])
    assert damage(verdict) == {"disordered": 1}
    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.messages) == ("disordered", (second.key, first.key))


def test_a_sequence_that_falls_is_disorder_and_a_dead_message_is_none() -> None:
    plain = Life("a", "asked", 0.0, (), dies=False)
    records = records_of([plain, plain])
    last = next(record for record in reversed(records) if isinstance(record, Arrival))
    records.remove(last)
    assert damage(judged([*records, replace(last, sequence=-1)])) == {"disordered": 1}
    assert judged([*records, replace(last, sequence=None)]).ok

    records = records_of([plain, plain])
    first = next(record for record in records if isinstance(record, Arrival))
    records.remove(first)
    late = replace(first, at=100.0)
    assert damage(judged([*records, late])) == {"disordered": 1}
    result = next(record for record in records if isinstance(record, Returned) and record.key == first.key)
    records.remove(result)
    assert judged([*records, late, Died("rejected", *first.key)]).ok


def test_order_is_that_of_first_arrivals_against_all_that_came_before() -> None:
    records = records_of([Life("a", "blind", 0.0, (), dies=False)] * 3)
    first, second, third = (record for record in records if isinstance(record, Arrival))
    others: list[Record] = [record for record in records if not isinstance(record, Arrival)]
    again = replace(first, at=60.0, attempt=2)
    assert judged([*others, replace(first, status=None), second, third, again]).ok
    verdict = judged([*others, third, replace(first, at=50.0), replace(second, at=60.0)])
    assert damage(verdict) == {"disordered": 2}, "both are behind the third"

    sent = next(record for record in others if isinstance(record, Sent))
    unsure: list[Record] = [record for record in others if record is not sent]
    late: list[Record] = [replace(sent, acked=False), sent, second, third, replace(first, at=50.0)]
    assert judged([*unsure, *late]).ok, "it was sent again, and nobody knows which of them got there"


@few
@given(lives, st.data())
def test_other_bytes_are_found_at_the_receiver_and_at_the_sender(lives_: list[Life], data: st.DataObject) -> None:
    records = records_of(lives_)
    altered = data.draw(st.sampled_from([each for each in records if isinstance(each, Arrival | Returned)]))
    records[records.index(altered)] = replace(altered, digest=digest_of(b"other"))
    verdict = judged(records)
    assert damage(verdict) == {"altered": 1}
    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.messages) == ("altered", (altered.key,))


@few
@given(lives, st.integers(0, 5), st.integers(-1, 5))
def test_what_is_left_over_is_stuck(lives_: list[Life], parked: int, lag: int) -> None:
    history = history_of(records_of(lives_), parked=parked, group=lag, other=0)
    verdict = check(history, PROMISES)
    assert verdict.stuck == parked + abs(lag)
    assert verdict.ok == (not parked and not lag)
    if verdict.first is not None:
        assert (verdict.first.kind, verdict.first.messages) == ("stuck", ())


@few
@given(lives, st.data())
def test_a_result_that_comes_again_needs_a_fault_or_an_unheard_answer(lives_: list[Life], data: st.DataObject) -> None:
    records = records_of(lives_)
    result = one_of(data, records, Returned)
    assert isinstance(result, Returned)
    again = replace(result, at=result.at + 1)
    verdict = judged([*records, again])
    assert (verdict.doubled_results, damage(verdict)) == (1, {"results_over": 1})
    verdict = judged([*records, again, Fault(0.0, "kill -9 relay-1")])
    assert (verdict.doubled_results, verdict.ok) == (1, True)
    records.remove(result)
    verdict = judged([*records, replace(result, status=None), again])
    assert (verdict.doubled_results, verdict.ok) == (1, True)


@few
@given(lives, st.data())
def test_a_message_ends_one_way_in_each_life(lives_: list[Life], data: st.DataObject) -> None:
    records = records_of(lives_)
    result = one_of(data, records, Returned, outcome="answered")
    assert isinstance(result, Returned)
    notice = Returned(result.at + 1, f"fail_{result.message_id}_x_0", *result.key, "failed", NOTHING)
    assert damage(judged([*records, Died("rejected", *result.key), notice])) == {"contradicted": 1}
    replayed = replace(notice, result_id=f"fail_{result.message_id}_x_1")
    assert judged([*records, Died("rejected", *result.key), replayed]).ok


@few
@given(lives)
def test_what_was_never_sent_is_a_phantom(lives_: list[Life]) -> None:
    records = records_of(lives_)
    key = Key("a", "never", "asked")
    for phantom in (
        Arrival(50.0, key.receiver, *key[:2], 1, 0, 99, digest_of(b"x"), 200),
        Returned(50.0, "ans_never_x_0", *key, "answered", digest_of(b"x")),
        Died("rejected", *key),
    ):
        verdict = judged([*records, phantom])
        assert damage(verdict) == {"phantom": 1}
        assert verdict.first is not None
        assert verdict.first.messages == (key,)


@few
@given(lives, st.data())
def test_a_result_at_another_callback_has_crossed(lives_: list[Life], data: st.DataObject) -> None:
    records = records_of(lives_)
    result = one_of(data, records, Returned)
    assert isinstance(result, Returned)
    records[records.index(result)] = replace(result, callback="callback-1")
    assert damage(judged(records)) == {"crossed": 1}


def test_what_its_source_may_not_send_to_a_receiver_ends_as_unknown_and_never_arrives() -> None:
    key = Key("a", "m-0", "asked")
    sent = Sent(0.0, *key[:2], 0, key.receiver, digest_of(b"x"), acked=True, allowed=False)
    notice = Returned(1.0, "fail_m-0_x_0", *key, "failed", NOTHING)
    assert judged([sent, Died("unknown_receiver", *key), notice]).ok
    assert damage(judged([sent, Died("exhausted", *key), notice])) == {"unexpected_dead": 1}
    arrived = Arrival(0.5, key.receiver, *key[:2], 1, 0, 0, sent.digest, 500, processed=False)
    assert damage(judged([sent, arrived, Died("unknown_receiver", *key), notice])) == {"crossed": 1}


def test_a_result_without_a_processed_arrival_is_a_phantom() -> None:
    records = records_of([Life("a", "asked", 0.0, (500,), dies=False)])
    arrival = next(record for record in records if isinstance(record, Arrival) and record.processed)
    records.remove(arrival)
    assert damage(judged(records)) == {"phantom": 1}


def test_a_message_may_die_only_for_the_reasons_that_are_promised() -> None:
    records = records_of([Life("a", "asked", 0.0, (), dies=True)])
    assert judged(records).ok
    died = next(record for record in records if isinstance(record, Died))
    strict = {"asked": replace(PROMISES["asked"], deaths=frozenset())}
    assert damage(check(history_of(records), strict)) == {"unexpected_dead": 1}
    records.remove(died)
    verdict = judged([*records, replace(died, reason="poison")])
    assert damage(verdict) == {"unexpected_dead": 1}
    assert damage(check(history_of(records), strict)) == {"unexpected_dead": 1}, "a notice without a dead letter"


def test_a_dead_letter_without_a_receiver_ends_the_message_for_all_of_them() -> None:
    digest = digest_of(b"payload")
    sent = [Sent(0.0, "a", "m", 1, receiver, digest, acked=True) for receiver in ("asked", "blind")]
    unrouted = {**PROMISES, "": Promise(False, False, 0, deaths=frozenset({"invalid"}))}
    assert check(history_of([*sent, Died("invalid", "a", "m", "")]), unrouted).ok
    assert check(history_of([Died("invalid", "", "", "")]), unrouted).ok, "a record whose ids cannot be read"
    assert judged([*sent, Died("invalid", "a", "m", "")]).unexpected_dead == 1


def test_a_refused_second_payload_does_not_end_the_message_that_has_the_id() -> None:
    promises = {"asked": replace(PROMISES["asked"], deaths=frozenset({"id_conflict"}))}
    records = records_of([Life("a", "asked", 0.0, (), dies=False)])
    sent = next(record for record in records if isinstance(record, Sent))
    other = replace(sent, at=sent.at + 0.1, digest=digest_of(b"other"))
    records += [other, Died("id_conflict", *sent.key)]
    assert check(history_of(records), promises).ok
    records = [record for record in records if not isinstance(record, Returned)]
    assert damage(check(history_of(records), promises)) == {"lost": 1}


def test_a_replay_is_another_life_if_one_was_promised() -> None:
    records = records_of([Life("a", "asked", 0.0, (), dies=False)])
    arrival = next(record for record in records if isinstance(record, Arrival))
    replayed = replace(arrival, at=9.0, generation=1)
    assert damage(judged([*records, replayed])) == {"doubled": 1}
    promises = {"asked": replace(PROMISES["asked"], generations=2)}
    assert check(history_of([*records, replayed]), promises).ok
    assert check(history_of([*records, replayed, replace(replayed, at=10.0)]), promises).doubled == 1


def test_a_receiver_without_a_promise_is_an_error() -> None:
    with pytest.raises(ValueError, match="no promise is given for receivers asked"):
        check(history_of(records_of([Life("a", "asked", 0.0, (), dies=False)])), {})


def test_the_gravest_damage_comes_first_and_verdicts_add_up() -> None:
    records = records_of([Life("a", "asked", 0.0, (), dies=False)])
    lost = check(history_of([each for each in records if not isinstance(each, Returned)], parked=1), PROMISES)
    stuck = check(history_of(records, parked=2), PROMISES)
    assert lost.first is not None
    assert lost.first.kind == "lost"
    both = total([judged(records), stuck, lost])
    assert (both.messages, both.lost, both.stuck, both.first) == (3, 1, 3, stuck.first)
    assert total([]).ok


# --- the timeline of a counterexample ---


CAPPED: Final = {"blind": replace(PROMISES["blind"], max_in_flight=2, rate_limit=3, window_s=1.0)}


def test_more_posts_under_way_than_were_promised_are_found() -> None:
    peaks = [Peak(float(number), "blind", number) for number in (1, 2)]
    assert check(history_of(peaks), CAPPED).ok
    verdict = check(history_of([*peaks, Peak(3.0, "blind", 3)]), CAPPED)
    assert damage(verdict) == {"over_in_flight": 1}
    assert check(history_of([Peak(3.0, "blind", 3)]), PROMISES).ok, "nothing was promised"


@pytest.mark.parametrize(("late_s", "over"), [(0.0, 1), (0.04, 1), (0.06, 0)])
def test_more_posts_within_a_window_are_found_unless_they_were_only_seen_together(late_s: float, over: int) -> None:
    """The first of them came at most so long before it was seen: four within 0.95 s, of three in any second."""
    told: list[Record] = []
    for number, at in enumerate((10.0, 10.4, 10.8, 10.95, 12.0)):
        key, digest = Key("a", f"m-{number}", "blind"), digest_of(b"%d" % number)
        told.append(Sent(float(number), key.source, key.message_id, number, key.receiver, digest, acked=True))
        told.append(Arrival(at, key.receiver, *key[:2], 1, 0, number, digest, 200, seen_late_s=late_s))
        told += ending_of(key, digest, at + 0.1, dies=False)
    assert damage(check(history_of(told), CAPPED)) == ({"over_rate": over} if over else {})


def test_a_timeline_tells_what_happened_to_the_message_and_the_faults_around_it() -> None:
    records = records_of([Life("a", "asked", 0.0, (500,), dies=False), Life("a", "blind", 0.0, (), dies=False)])
    records = [each for each in records if not (isinstance(each, Returned) and each.receiver == "asked")]
    records += [Fault(0.5, "kill -9 relay-1"), Fault(1.5, "relay-1 runs", heals=True), Fault(999.0, "much later")]
    records += [Asked(1.125, "asked", "m-0", 200), Asked(1.2, "asked", "m-1", 404)]
    history = history_of(records)
    verdict = check(history, PROMISES)
    assert verdict.first is not None
    lines = timeline(history, verdict.first).splitlines()
    assert lines[0] == "lost: a/m-0 for asked: acknowledged, but no result and no dead letter; it arrived"
    digest = digest_of(b"payload 0")[:8]
    assert [" ".join(line.split()) for line in lines[1:]] == [
        f"+0.000 sent number 0, acknowledged, bytes {digest}",
        "+0.500 fault kill -9 relay-1",
        f"+0.750 arrived attempt 1 of generation 0, sequence 0, bytes {digest}: not processed, answered 500",
        f"+1.000 arrived attempt 2 of generation 0, sequence 0, bytes {digest}: processed, answered 200",
        "+1.125 asked answered 200",
        "+1.500 fault relay-1 runs (heals)",
    ]


def test_a_timeline_of_two_messages_says_which_and_one_of_none_shows_the_last_faults() -> None:
    records = records_of([Life("a", "asked", 0.0, (), dies=False)] * 2)
    arrivals = [record for record in records if isinstance(record, Arrival)]
    records.remove(arrivals[0])
    history = history_of([*records, replace(arrivals[0], at=50.0), Died("rejected", "a", "m-9", "asked")])
    verdict = check(history, PROMISES)
    assert verdict.disordered == 1
    assert verdict.first is not None
    phantom = timeline(history, verdict.first).splitlines()
    assert phantom[1:] == [f"  {'':10}  died      rejected"]

    story = timeline(history, replace(verdict.first, messages=(Key("a", "m-1", "asked"), Key("a", "m-0", "asked"))))
    assert story.count("[a/m-0 for asked]") == story.count("[a/m-1 for asked]") == 3

    stuck = history_of([*records, *(Fault(float(n), f"fault {n}") for n in range(70))], parked=1)
    counterexample = check(stuck, {**PROMISES, "asked": replace(PROMISES["asked"])})
    assert counterexample.first is not None
    told = timeline(stuck, replace(counterexample.first, messages=())).splitlines()
    assert told[1] == "  (10 earlier faults are left out)"
    assert told[-1].split() == ["+0.000", "fault", "fault", "69"]


# --- the ledger that a history is read from ---


EVERY_KIND: Final[list[Record]] = [
    Sent(0.5, "a", "m/é", 1, "asked", "d", acked=True),
    Arrival(1.0, "asked", "a", "m\n1", 1, 0, None, "d", None, processed=False),
    Unheard(1.25, "asked", "a", "m", 1, 0),
    Asked(1.5, "asked", "m", 404),
    Ping(1.75, "asked", None),
    Returned(2.0, "ans_x_asked_0", "a", "m", "asked", "answered", "d"),
    Died("poison", "a", "m", "asked"),
    Fault(3.0, "kill -9 relay-1", heals=False),
]


def test_a_ledger_gives_back_what_was_written_also_after_a_writer_died_over_a_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert read(path) == []
    with Ledger(path) as ledger:
        for record in EVERY_KIND:
            ledger.write(record)
    with Ledger(path) as ledger:
        ledger.write(EVERY_KIND[0])
    assert read(path) == [*EVERY_KIND, EVERY_KIND[0]]
    os.truncate(path, path.stat().st_size - 1)
    assert read(path) == EVERY_KIND


@pytest.mark.parametrize("line", [b"{}", b'{"kind":"arrow"}', b'{"kind":"fault","at":"x","what":"y"}', b'{"kind":'])
def test_a_hole_in_a_ledger_is_an_error(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ledger"
    with Ledger(path) as ledger:
        ledger.write(EVERY_KIND[0])
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ValueError, match="line 2: not a record of the history"):
        read(path)


def test_a_line_that_does_not_fit_on_the_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        monkeypatch.setattr(os, "write", lambda file, line: len(line) - 1)
        with pytest.raises(OSError, match="is the disk full"):
            ledger.write(EVERY_KIND[0])


def _timed(timing: Timing, arrived_at: float, *, generation: int = 0) -> Verdict:
    key, digest = Key("a", "m", "asked"), digest_of(b"x")
    sent = Sent(0.0, *key[:2], 1, key.receiver, digest, acked=True, timing=timing)
    arrival = Arrival(arrived_at, key.receiver, *key[:2], 1, generation, 1, digest, 200)
    return judged([sent, arrival, *ending_of(key, digest, arrived_at + 1, dies=False)])


@pytest.mark.parametrize(("at", "wrong"), [(9.0, 1), (9.9, 0), (30.0, 0), (81.0, 1)])
def test_an_arrival_before_its_time_or_long_after_its_deadline_is_untimely(at: float, wrong: int) -> None:
    assert damage(_timed(Timing(10.0, 50.0), at)) == ({"untimely": 1} if wrong else {})


def _replaced(older: Timing, newer: Timing, *, by: str = "m-2", sent: bool = False, fault: str = "kill -9") -> Verdict:
    """Of two messages the first was replaced."""
    told: list[Record] = [Fault(0.0, fault)]
    for number, timing in enumerate((older, newer), start=1):
        key, digest = Key("a", f"m-{number}", "asked"), digest_of(b"%d" % number)
        told.append(Sent(float(number), *key[:2], number, key.receiver, digest, acked=True, timing=timing))
        if number == 2 or sent:
            told.append(Arrival(number + 2.0, key.receiver, *key[:2], 1, 0, number, digest, 200))
        if number == 2:
            told += ending_of(key, digest, 6.0, dies=False)
        else:
            told += [Died("replaced", *key, by), Returned(5.0, "fail_m_x_0", *key, "failed", NOTHING)]
    return judged(told)


def test_only_a_newer_one_of_the_same_key_replaces_what_was_not_sent() -> None:
    key, window = Timing(key="k"), Timing(key="k", window=1.0)
    assert _replaced(key, key).ok
    assert _replaced(window, window).ok
    assert damage(_replaced(key, window)) == {"misreplaced": 1}
    assert damage(_replaced(key, Timing(key="l"))) == {"misreplaced": 1}
    assert damage(_replaced(key, key, by="m-1")) == {"misreplaced": 1}
    assert damage(_replaced(key, key, sent=True)) == {"misreplaced": 1}
    assert _replaced(key, key, sent=True, fault="FLUSHALL").ok, "Redis has forgotten that it was sent"
    assert damage(_replaced(Timing(5.0), key)) == {"unexpected_dead": 1, "misreplaced": 1}


@pytest.mark.parametrize(
    ("numbers", "gaps", "damaged"),
    [
        ([3, 4, 5], {}, 0),
        ([3, 4, 4], {}, 0),
        ([3, 5], {}, 1),
        ([3, 5], {5: ((4, 4),)}, 0),
        ([3, 9], {9: ((4, 5), (6, 8))}, 0),
        ([3, 9], {9: ((4, 5), (7, 8))}, 1),
        ([3, 6, 9], {}, 2),
    ],
)
def test_a_number_that_is_missing_without_a_gap_is_seen(
    numbers: list[int], gaps: dict[int, tuple[tuple[int, int], ...]], damaged: int
) -> None:
    arrivals = [
        Arrival(float(n), "numbered", "a", f"m-{n}", 1, 0, n, NOTHING, 200, gaps=gaps.get(n, ())) for n in numbers
    ]
    promises = {"numbered": Promise(asked=True, ordered=True, in_doubt_per_fault=0, numbered=True)}
    assert len(list(wrongly_numbered(history_of(arrivals), promises))) == damaged


def test_a_number_of_two_messages_is_seen() -> None:
    arrivals = [Arrival(1.0, "numbered", "a", f"m-{n}", 1, 0, 7, NOTHING, 200) for n in (1, 2)]
    for numbered in (True, False):
        promises = {"numbered": Promise(asked=True, ordered=True, in_doubt_per_fault=0, numbered=numbered)}
        assert len(list(wrongly_numbered(history_of(arrivals), promises))) == int(numbered)
