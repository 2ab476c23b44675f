"""What a replay does with one dead letter, by what its delivery's row says."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.errors import LogUnavailable, RecordTooLarge
from relay.domain.expression import STATUS, Expression
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers
from relay.domain.reasons import NO_ANSWER, REASON_CODES, REASONS
from relay.domain.receiver import Endpoint, Receiver, Source, StatusStep
from relay.domain.template import template
from relay.domain.topics import Topics
from relay.log.port import Coordinate, NewRecord, Record
from relay.replay.executor import ReplayExecutor
from relay.replay.letter import Letter, read_dead_letter
from relay.replay.life import is_open, next_life
from relay.replay.plan import HERE, Original, Out, Planner, ReplayPlan, Rows
from relay.state.rows import Mark, Result, Row, Stage, delivery_row
from tests.fakes.no_moves import NoMoves
from tests.fakes.virtual_time import LoopClock
from tests.fakes.world import Known

TOPICS = Topics("t-")
DELIVERY = DeliveryId("ci", "github", "m-1")
AT = Coordinate(TOPICS.failed_messages, 3, 7)
ORIGIN = Coordinate(TOPICS.from_sender, 1, 5)


def letter(
    stage: str = "to_receiver_ci", why: str = "rejected", *, generation: int = 0, attempts: int = 3, **hop: Any
) -> Letter:
    headers = encode_hop(Hop(DELIVERY, "push", attempt=2, generation=generation, origin=ORIGIN, move=4, **hop))
    told = DeadLetter(why, "it said no", TOPICS.prefix + stage, ORIGIN, attempts, 1_700_000_000_000, 422)
    headers = dead_letter_headers((*headers, ("x-own", b"kept")), told)
    return read_dead_letter(Record(*AT, b"github", b"{}", headers, 1_700_000_000_000), TOPICS)


def planner(**receiver: Any) -> Planner:
    known = Receiver("ci", Endpoint("http://ci/"), **receiver)
    return Planner(TOPICS, Known([known], []), max_payload_bytes=100)


def replayed(found: Letter, rows: Rows | None = None, **receiver: Any) -> ReplayPlan:
    return planner(**receiver).replay(found, rows or {}, same_life=False)


@pytest.mark.parametrize(
    ("row", "life"),
    [
        (Row(), 3),
        (Row(Stage.FAILED, 2, at=AT[1:]), 3),
        (Row(Stage.FAILED, 2, at=(0, 0)), 3),  # another copy of the letter
        (Row(Stage.FAILED, 1, at=(0, 0)), 3),  # of a row that was rebuilt, and lacks the last life
        (Row(Stage.SENDING, 2), 3),
        (Row(Stage.DONE, 2), "delivered"),
        (Row(Stage.AWAITING, 2), "delivered"),
        (Row(Stage.SENDING, 3), "replayed"),
        (Row(Stage.DONE, 3), "replayed"),
        (Row(Stage.FAILED, 3, at=(0, 0)), "replayed"),
        (Row(Stage.FAILED, 3, at=(0, 0), code=REASON_CODES["discarded"]), "discarded"),
        (Row(Stage.FAILED, 5, at=AT[1:]), 6),  # its notice was replayed meanwhile
        (Row(Stage.RESULT, 3, result=Result("dead", reason="discarded")), 3),  # its discard may have died
        (Row(Stage.RESULT, 4, result=Result("dead", reason="discarded")), "replayed"),
        (Row(Stage.RESULT, 3, result=Result("dead", reason="rejected")), "replayed"),
    ],
)
def test_the_next_life_follows_from_letter_and_row(row: Row, life: int | str) -> None:
    found = letter(generation=2)
    assert next_life(found, row) == life
    assert is_open(found, row) == isinstance(life, int)


@given(
    generation=st.integers(0, 5),
    row=st.builds(Row, stage=st.sampled_from(Stage), generation=st.integers(0, 8), at=st.just((0, 0))),
)
def test_a_replay_begins_a_life_that_nothing_is_known_of(generation: int, row: Row) -> None:
    life = next_life(letter(generation=generation), row)
    assert isinstance(life, str) or life > max(generation, row.generation if row.stage is not Stage.NONE else 0)
    begun = Row(Stage.SENDING, life) if isinstance(life, int) else row
    assert isinstance(next_life(letter(generation=generation), begun), str), "and once it is known, no other"


def test_it_goes_to_the_lane_of_now_with_nothing_of_its_former_life() -> None:
    plan = replayed(letter(generation=1), {DELIVERY: Row(Stage.FAILED, 1, at=AT[1:])}, lane="shared", move=9)
    [out] = plan.out
    assert (out.record.topic, out.record.key, out.record.value) == ("t-to_receiver_shared", b"ci", b"{}")
    hop = decode_hop(out.record.headers)
    assert (hop.generation, hop.attempt, hop.move, hop.origin, hop.event_type) == (2, 0, 9, ORIGIN, "push")
    named = dict(out.record.headers)
    assert named["x-own"] == b"kept", "headers that this version does not know go along"
    assert not {name for name in named if name.startswith(("relay-reason", "relay-stage", "relay-detail"))}
    assert out.marks == ()


@pytest.mark.parametrize("stage", ["to_receiver_ci", "pending_from_receiver_ci"])
def test_the_messages_own_headers_go_along(stage: str) -> None:
    own = (("x-team", "core"), ("x-b", "2"))
    [out] = replayed(letter(stage, "receiver_forgot", headers=own)).out
    assert (out.record.topic, decode_hop(out.record.headers).headers) == ("t-to_receiver_ci", own)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_only_what_may_have_arrived_is_asked_about_first(reason: str) -> None:
    [out] = replayed(letter(why=reason)).out
    assert decode_hop(out.record.headers).ask_first == (
        reason in ("ambiguous", "expired", "unknown_receiver", "discarded")
    )
    [out] = replayed(letter(why=reason, attempts=0)).out
    assert not decode_hop(out.record.headers).ask_first, "it was never sent"


def test_a_wait_for_an_answer_goes_on_where_it_was() -> None:
    url = "http://ci/jobs/1"
    found = letter("pending_from_receiver_ci", "answer_timeout", status_url=url)
    [out] = replayed(found).out
    assert out.record.topic == "t-pending_from_receiver_ci"
    assert decode_hop(out.record.headers).status_url == url
    assert out.marks == (Mark(delivery_row(DELIVERY), 1, Stage.AWAITING),)
    [out] = replayed(letter("pending_from_receiver_ci", "receiver_forgot", status_url=url)).out
    assert (out.record.topic, decode_hop(out.record.headers).status_url) == ("t-to_receiver_ci", None)


def test_a_wait_that_could_not_ask_begins_its_chain_if_that_needs_no_response() -> None:
    step = StatusStep(template("http://ci/jobs/${{ message.id }}", STATUS), Expression("true", STATUS))
    found = letter("pending_from_receiver_ci", "answer_timeout", not_asked="no such field", chain='{"step":1}')
    [out] = planner(status_steps=(step,)).replay(found, {}, same_life=False).out
    hop = decode_hop(out.record.headers)
    assert (hop.status_url, hop.chain, hop.not_asked) == ("http://ci/jobs/m-1", "{}", None)
    needs_response = StatusStep(template("${{ response.headers.location }}", STATUS), Expression("true", STATUS))
    [out] = planner(status_steps=(needs_response,)).replay(found, {}, same_life=False).out
    assert decode_hop(out.record.headers).not_asked == "no such field"


def test_the_advice_says_which_replay_waits_for_the_answer_only() -> None:
    for reason in NO_ANSWER:
        [out] = replayed(letter("pending_from_receiver_ci", reason)).out
        waits_only = out.record.topic == "t-pending_from_receiver_ci"
        assert ("does not send the message" in REASONS[reason].advice) == waits_only, reason


def test_an_answer_is_published_in_its_new_life() -> None:
    found = letter("to_sender", "callback_exhausted", outcome="answered", answer_status=200)
    [out] = replayed(found, {DELIVERY: Row(Stage.DONE, 0, at=(1, 1), code=3)}).out
    assert (out.record.topic, out.record.key) == ("t-to_sender", b"github")
    assert dict(out.record.headers)["webhook-id"].decode().endswith("_ci_1")
    assert out.marks == (Mark(delivery_row(DELIVERY), 1, Stage.PUBLISHED, HERE),)


def test_a_notice_leaves_its_delivery_as_it_is() -> None:
    failed = Row(Stage.FAILED, 0, at=(9, 9), code=REASON_CODES["gone"])
    found = letter("to_sender", "callback_exhausted", outcome="failed", reason="gone")
    [out] = replayed(found, {DELIVERY: failed}).out
    assert decode_hop(out.record.headers).reason == "gone"
    assert out.marks == (Mark(delivery_row(DELIVERY), 1, Stage.FAILED, (9, 9), REASON_CODES["gone"]),)


def test_a_discard_says_why_it_had_failed_and_can_be_undone() -> None:
    plan = planner().discard(letter(generation=1), {DELIVERY: Row(Stage.FAILED, 1, at=AT[1:])}, now=1_800_000_000.0)
    [out] = plan.out
    again = read_dead_letter(Record(*AT, out.record.key, out.record.value, out.record.headers, 0), TOPICS)
    assert (again.dead.reason, again.reason, again.generation) == ("discarded", "rejected", 2)
    assert (again.dead.attempts, again.dead.last_status, again.dead.stage) == (3, 422, "t-to_receiver_ci")
    [undone] = replayed(again).out
    assert decode_hop(undone.record.headers).generation == 3
    assert planner().discard(again, {}, now=1.0).skip == "discarded"


def test_a_source_whose_entry_cannot_be_read_here_makes_no_message_invalid() -> None:
    """Another process, or this one later, may send it."""
    known = Known([Receiver("ci", Endpoint("http://ci/"))], [Source("github", keep=None)])
    planner = Planner(TOPICS, known, max_payload_bytes=100)
    message = Message("github", "m-1", ("ci",), "push", None, "application/json", b"{}")
    told = DeadLetter("unknown_receiver", "no", TOPICS.from_sender, ORIGIN, 0, 1_700_000_000_000, None)
    headers = dead_letter_headers(message_headers(message), told)
    found = read_dead_letter(Record(*AT, b"github", message.payload, headers, 1_700_000_000_000), TOPICS)
    assert planner.replay(found, {}, same_life=False).skip == "configuration"
    original = Original(message, ORIGIN, 1)
    assert planner.once_more(original, DELIVERY, Row(Stage.DONE), same_life=False).skip == "configuration"


@pytest.mark.parametrize(
    ("found", "skip"), [(letter("elsewhere"), "unknown_stage"), (letter("from_sender", "id_conflict"), "id_conflict")]
)
def test_what_cannot_be_replayed_is_said(found: Letter, skip: str) -> None:
    assert replayed(found).skip == skip


class _Took:
    """Stands for log and state. `calls`: values of each append. From the `fails_at`-th append on the log is away."""

    def __init__(self, fails_at: int) -> None:
        self.calls: list[list[bytes | None]] = []
        self.marked: list[Mark] = []
        self._fails_at = fails_at

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        if len(self.calls) == self._fails_at:
            raise LogUnavailable("away")
        self.calls.append([record.value for record in records])
        return [Coordinate("t", 0, 10 * len(self.calls) + n) for n in range(len(records))]

    async def mark(self, marks: Sequence[Mark]) -> list[None]:
        self.marked += marks
        return [None] * len(marks)


async def test_what_is_carried_out_is_marked_slice_by_slice() -> None:
    """So who repeats it after a failure finds the first ones done."""
    deliveries = [DeliveryId("ci", "github", f"m-{number}") for number in range(9)]
    marks = [Mark(delivery_row(one), 1, Stage.AWAITING, HERE) for one in deliveries]
    plans = [
        ReplayPlan((Out(NewRecord("t", b"k", b"%d" % n + bytes(1_000_000)), one, 1, (mark,)),))
        for n, (one, mark) in enumerate(zip(deliveries, marks, strict=True))
    ]
    took: Any = _Took(fails_at=2)
    executor = ReplayExecutor(took, took, TOPICS, Known([], []), NoMoves(), LoopClock(), max_payload_bytes=100)
    with pytest.raises(LogUnavailable):
        await executor.carry_out(plans)
    assert [len(call) for call in took.calls] == [4, 4]
    assert [mark.row for mark in took.marked] == [mark.row for mark in marks[:8]]
    assert took.marked[4].at == (0, 20)


async def test_of_a_message_that_is_too_large_for_one_receiver_nothing_is_sent() -> None:
    """It stays an open dead letter, so it may not be half done."""

    class Small(_Took):
        async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
            if any(len(record.value or b"") > 10 for record in records):
                raise RecordTooLarge("too large", [0])
            return await super().append(records)

    outs = [Out(NewRecord("t", b"k", bytes(size)), DeliveryId(f"ci-{size}", "github", "m-1"), 1) for size in (1, 11)]
    alone = ReplayPlan((outs[0],))
    took: Any = Small(fails_at=2)
    executor = ReplayExecutor(took, took, TOPICS, Known([], []), NoMoves(), LoopClock(), max_payload_bytes=100)
    done = await executor.carry_out([alone, ReplayPlan(tuple(outs)), ReplayPlan(skip="replayed")])
    assert [plan.skip for plan in done] == [None, "too_large", "replayed"]
    assert took.calls == [[bytes(1)]]
