"""FromSender: routing of messages, and invalid ones."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from random import Random

import pytest
from msgspec import structs

from relay.config.filter_entry import FilterEntry
from relay.control.routes import LaneRoutes
from relay.domain import recipients
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.coordinate import Headers
from relay.domain.erasure import Erasure
from relay.domain.errors import InvalidRecord
from relay.domain.expression import ROUTING, Expression
from relay.domain.filters import UNDECIDED, Filter
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.message import Message, message_headers
from relay.domain.own_events import message_of, turn_of
from relay.domain.reasons import CANCELLED, REASON_CODES
from relay.domain.receiver import Endpoint, Receiver, Source
from relay.domain.route import Cut, LaneRoute, Marker
from relay.domain.timing import Timing
from relay.domain.topics import DAY_S
from relay.engine.decision import Dead, Done, Later
from relay.engine.work import LookupResult, Outcome
from relay.log.port import Coordinate, NewRecord, Record
from relay.state.attempts import Change, Settlement
from relay.state.port import Lane
from relay.state.replies import answered
from relay.state.rows import Mark, MessageStage, Result, RowKey, Stage, delivery_row
from tests.expecting import expect
from tests.fakes.no_moves import NoMoves
from tests.fakes.state import MemoryState
from tests.fakes.steps import NOW, TOPICS, Rig, headers_of, hop_of, letter_of, record
from workers import from_sender
from workers.from_sender import FromSender, Incoming

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FROM_SENDER = TOPICS.from_sender
MAX = 1_000
CI = Receiver("ci", Endpoint("https://ci.example/"))
CD = Receiver("cd", Endpoint("https://cd.example/"), lane="shared")
PUSH = Message("github", "m-1", ("ci",), "push", "2024-01-01T00:00:00Z", "text/plain", b"payload", TRACE)
LANE = Lane(FROM_SENDER, 3, 1)
KEEPING = Source("github", keep={"sha": Expression("payload.after", ROUTING, "keep.sha")})


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.know(CI, CD)
    return rig


def worker(rig: Rig, state: MemoryState | None = None) -> FromSender:
    state = state or MemoryState()
    return FromSender(TOPICS, rig.known, state, rig.letters, rig.outside, max_payload_bytes=MAX, moves=rig.known)


def mover(rig: Rig, moves: "Announced") -> FromSender:
    return FromSender(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, max_payload_bytes=MAX, moves=moves)


def sent(message: Message = PUSH, *, offset: int = 7, age_s: float = 0, key: bytes | None = b"github") -> Record:
    return record(FROM_SENDER, message_headers(message), message.payload, offset=offset, age_s=age_s, key=key)


def routed(rig: Rig, message: Message | Record = PUSH) -> list[NewRecord]:
    step, record = worker(rig), message if isinstance(message, Record) else sent(message)
    return list(expect(Done, step.step(step.admit(record))).records)


def ended(rig: Rig, message: Message) -> Dead:
    step = worker(rig)
    return expect(Dead, step.step(step.admit(sent(message))))


def for_each(*names: str) -> list[RowKey]:
    """The rows of the deliveries to these receivers."""
    return [delivery_row(DeliveryId(name, *PUSH.id)) for name in names]


# routing


@pytest.mark.parametrize(
    ("receiver", "may"),
    [
        (CI, True),
        (replace(CI, senders=("github",)), True),
        (replace(CI, senders=("git*",)), True),
        (replace(CI, senders=("gitlab", "hub")), False),
        (replace(CI, senders=()), False),
        (replace(CI, owner="acme"), True),
        (replace(CI, owner="acme", sources=("github",), event_types=("*",)), True),
        (replace(CI, owner="acme", sources=("acme-*",), event_types=("*",)), False),
        (replace(CI, owner="acme", sources=("acme-*",), event_types=("*",), senders=("*",)), True),
        (replace(CI, sources=("acme-*",), event_types=("*",)), True),
    ],
)
def test_a_receiver_that_a_source_may_not_name_is_an_unknown_one(rig: Rig, receiver: Receiver, may: bool) -> None:
    rig.know(receiver)
    [sent_to] = routed(rig)
    rig.known.receivers.pop("ci")
    [unknown] = routed(rig)
    assert unknown.topic == TOPICS.failed_messages
    assert (sent_to.topic == TOPICS.to_receiver("ci")) is may
    assert may or (sent_to.value, sent_to.headers) == (unknown.value, unknown.headers)


def names_only_what_it_may(seed: int) -> None:
    """A drawn receiver and source: routed to it, or to nothing, as the fields read."""
    draw, rig = Random(seed), Rig()
    patterns = ("github", "git*", "*", "gitlab", "acme-*", "github-")
    senders, sources = (tuple(draw.sample(patterns, draw.randint(0, 2))) for _ in range(2))
    given = None if draw.random() < 0.5 else senders
    owner = draw.choice((None, "acme"))
    rig.know(replace(CI, owner=owner, sources=sources, event_types=("*",), senders=given))
    source = draw.choice(("github", "gitlab", "git", "acme-1", "github-"))
    [one] = routed(rig, structs.replace(PUSH, source_id=source))
    bound = given if given is not None else sources if owner is not None and sources else ("*",)
    may = any(fnmatchcase(source, pattern) for pattern in bound)
    assert (one.topic == TOPICS.to_receiver("ci")) is may, f"seed {seed}: {source} to {owner}, {given}, {sources}"


def test_any_source_names_only_what_it_may() -> None:
    for seed in range(300):
        names_only_what_it_may(seed)


@pytest.mark.parametrize(
    "planted",
    [
        lambda _receiver, _source: True,
        lambda receiver, source: receiver.senders is None or source in receiver.senders,
        lambda receiver, source: recipients.may_name(replace(receiver, owner=None), source),
        lambda receiver, source: recipients.may_name(replace(receiver, senders=receiver.senders or None), source),
    ],
)
def test_a_planted_sender_that_may_too_much_is_found(monkeypatch: pytest.MonkeyPatch, planted: object) -> None:
    monkeypatch.setattr(from_sender, "may_name", planted)
    with pytest.raises(AssertionError, match="seed"):
        test_any_source_names_only_what_it_may()


def test_whoever_subscribes_gets_it_whatever_may_name_it(rig: Rig) -> None:
    rig.know(replace(CI, sources=("github",), event_types=("*",), senders=()))
    rig.known.subscribed = ("ci",)
    [hop] = routed(rig, structs.replace(PUSH, receivers=None))
    assert hop.topic == TOPICS.to_receiver("ci")


def test_the_payload_goes_to_the_receivers_topic_as_it_is(rig: Rig) -> None:
    (hop,) = routed(rig, structs.replace(PUSH, payload=b"\x00\xffraw"))
    assert (hop.topic, hop.key, hop.value) == (TOPICS.to_receiver("ci"), b"github", b"\x00\xffraw")
    assert hop_of(hop) == Hop(
        DeliveryId("ci", "github", "m-1"),
        event_type="push",
        time="2024-01-01T00:00:00Z",
        content_type="text/plain",
        origin=Coordinate(FROM_SENDER, 3, 7),
        accepted_ms=int(NOW * 1000),
        traceparent=TRACE,
    )


def test_a_receiver_whose_settings_cannot_be_used_here_gets_its_messages_all_the_same(rig: Rig) -> None:
    rig.known.receivers["ci"] = replace(rig.known.receivers["ci"], unusable="the environment variable X is not set")
    rig.known.refused["ci"] = "the environment variable X is not set"
    assert [hop.topic for hop in routed(rig, PUSH)] == [TOPICS.to_receiver("ci")]


def test_a_message_waits_while_the_lane_of_one_of_its_receivers_cannot_be_told(rig: Rig) -> None:
    step = worker(rig)
    work = step.admit(sent(structs.replace(PUSH, receivers=("ci", "cx"))))
    rig.known.refused["cx"] = "a record that is not JSON with declared_by and entry"
    assert isinstance(step.step(work), Later)
    del rig.known.refused["cx"]
    assert isinstance(step.step(work), Done)


def test_a_message_waits_while_it_is_not_known_whether_a_receiver_subscribes_to_it(rig: Rig) -> None:
    rig.known.receivers["ci"] = replace(rig.known.receivers["ci"], unusable="not set", filter=UNDECIDED)
    rig.known.subscribed = ("ci",)
    step = worker(rig)
    assert isinstance(step.step(step.admit(sent(structs.replace(PUSH, receivers=None)))), Later)
    assert isinstance(step.step(step.admit(sent(PUSH))), Done)  # which names it


def test_in_the_shared_lane_the_receiver_is_the_key(rig: Rig) -> None:
    (hop,) = routed(rig, structs.replace(PUSH, receivers=("cd",)))
    assert (hop.topic, hop.key) == (TOPICS.to_receiver("shared"), b"cd")


def test_a_json_envelope_goes_the_same_way(rig: Rig) -> None:
    value = b'{"source_id":"github","message_id":"m-1","receiver":["ci","cd"],"payload": {"a":1.0},"new":1}'
    hops = routed(rig, record(FROM_SENDER, (), value))
    assert [hop.value for hop in hops] == [b'{"a":1.0}'] * 2
    assert [hop_of(hop).delivery.receiver for hop in hops] == ["ci", "cd"]
    assert hop_of(hops[0]).content_type == "application/json"


def test_without_a_receiver_it_goes_to_those_that_subscribe(rig: Rig) -> None:
    rig.known.subscribed = ("cd", "ci")
    hops = routed(rig, structs.replace(PUSH, receivers=None))
    assert [hop_of(hop).delivery.receiver for hop in hops] == ["cd", "ci"]


def filtered(**condition: object) -> Filter:
    return FilterEntry.model_validate(condition).compiled()


def test_of_those_that_subscribe_it_goes_to_those_whose_filter_takes_it(rig: Rig) -> None:
    rig.know(replace(CI, filter=filtered(pointer="/size", gt=1)))
    rig.known.subscribed = ("cd", "ci")
    for payload, names in ((b'{"size": 2}', ["cd", "ci"]), (b'{"size": 1}', ["cd"]), (b"no json", ["cd"])):
        hops = routed(rig, structs.replace(PUSH, receivers=None, payload=payload))
        assert [hop_of(hop).delivery.receiver for hop in hops] == names


def test_what_nobodys_filter_takes_is_over_and_counted(rig: Rig) -> None:
    rig.know(replace(CI, filter=filtered(header="ce-type", exact="pull")))
    rig.known.subscribed = ("ci",)
    assert routed(rig, structs.replace(PUSH, receivers=None)) == []
    assert ("filtered",) in rig.meter.told


def test_who_is_named_gets_what_its_filter_would_leave_out(rig: Rig) -> None:
    rig.know(replace(CI, filter=filtered(header="ce-type", exact="pull")))
    assert [hop_of(hop).delivery.receiver for hop in routed(rig, PUSH)] == ["ci"]


def test_that_a_request_waits_goes_along_to_an_only_receiver(rig: Rig) -> None:
    waited = structs.replace(PUSH, wait_s=10)
    [hop] = routed(rig, waited)
    assert hop_of(hop).wait_s == 10
    assert [hop_of(hop).wait_s for hop in routed(rig, structs.replace(waited, receivers=("ci", "cd")))] == [0, 0]


@pytest.mark.parametrize("value", [b"soon", b"-1", b"", b"9" * 10, b"\xff"])
def test_a_wait_that_is_no_number_is_none(rig: Rig, value: bytes) -> None:
    [hop] = routed(rig, record(FROM_SENDER, (*message_headers(PUSH), ("relay-wait", value)), b"{}"))
    assert hop_of(hop).wait_s == 0


def test_hop_metadata_of_a_sender_means_nothing(rig: Rig) -> None:
    step = worker(rig)
    forged: Headers = (("relay-receiver", b"cd"), ("relay-generation", b"9"), ("relay-attempt", b"9"))
    work = step.admit(structs.replace(sent(), headers=message_headers(PUSH) + forged))
    hop = hop_of(expect(Done, step.step(work)).records[0])
    assert (hop.delivery.receiver, hop.generation, hop.attempt) == ("ci", 0, 0)
    letter = step.dead_letter(work.record, work, Dead("id_conflict"))
    assert not {"relay-receiver", "relay-generation"} & headers_of(letter).keys()


def test_a_receiver_that_is_switched_off_gets_what_names_it_later(rig: Rig) -> None:
    rig.know(replace(CI, enabled=False))
    (hop,) = routed(rig)
    assert hop.topic == TOPICS.to_receiver("ci")


@pytest.mark.parametrize(
    ("age_s", "accepted_s"), [(30, 30), (-5, 0), (604_800, 604_800), (604_801, 0), (NOW, 0), (NOW - 1_700_000, 0)]
)
def test_a_clock_that_cannot_be_right_is_not_believed(rig: Rig, age_s: float, accepted_s: float) -> None:
    [hop] = routed(rig, sent(age_s=age_s))
    assert hop_of(hop).accepted_ms == int((NOW - accepted_s) * 1000)


# unknown receivers


def test_one_of_several_is_unknown(rig: Rig) -> None:
    hop, letter = routed(rig, structs.replace(PUSH, receivers=("nobody", "ci")))
    assert hop_of(hop).delivery.receiver == "ci"
    assert letter_of(letter).reason == "unknown_receiver"
    assert headers_of(letter)["relay-receiver"] == b"nobody"
    assert headers_of(letter)["ce_receiver"] == b"nobody,ci"
    assert (letter.key, letter.value) == (b"github", b"payload")
    assert [told[:2] for told in rig.meter.told if told[0] == "unrouted"] == [("unrouted", "nobody")]


def test_all_are_unknown(rig: Rig) -> None:
    letters = routed(rig, structs.replace(PUSH, receivers=("nobody", "noone")))
    assert [headers_of(letter)["relay-receiver"] for letter in letters] == [b"nobody", b"noone"]
    assert {letter_of(letter).stage for letter in letters} == {FROM_SENDER}


def test_a_step_that_is_repeated_says_the_same(rig: Rig) -> None:
    step = worker(rig)
    work = admitted(step, sent(structs.replace(PUSH, receivers=("nobody", "ci"))))
    assert step.step(work) == step.step(work)
    assert list(work.failed) == ["nobody"]


[_ROW] = for_each("nobody")


@pytest.mark.parametrize(
    ("earlier", "reasons"),
    [
        ([], ["unknown_receiver"]),
        ([Settlement(_ROW, 0, b"", Change.RESULT, result=Result("dead", reason=CANCELLED), unsent_ms=0)], [CANCELLED]),
        ([Settlement(_ROW, 0, b"", Change.RESULT, result=Result("answered", 200))], []),
        ([Mark(_ROW, 0, Stage.PUBLISHED, (0, 1))], []),
        ([Mark(_ROW, 0, Stage.FAILED, (0, 1))], []),
    ],
    ids=["none", "cancelled", "answered", "its result is on the log", "its letter is on the log"],
)
async def test_a_delivery_has_one_end_however_often_it_is_routed(
    rig: Rig, earlier: list[Settlement | Mark], reasons: list[str]
) -> None:
    state = MemoryState()
    await answered(state.settle([each for each in earlier if isinstance(each, Settlement)]))
    await answered(state.mark([each for each in earlier if isinstance(each, Mark)]))
    step = worker(rig, state)
    work = admitted(step, sent(structs.replace(PUSH, receivers=("nobody", "ci"))))
    work.out = expect(Done, step.step(work)).records
    for _ in range(2):  # the letter may have to become smaller
        await step.table.settle([work])
        hop, *letters = work.out
        assert hop_of(hop).delivery.receiver == "ci"
        assert [letter_of(letter).reason for letter in letters] == reasons
        assert [dead.reason for dead in work.failed.values()] == reasons
    [row] = await answered(state.peek([_ROW]))
    assert earlier or (row.result is not None and row.result.reason == "unknown_receiver")


def test_one_that_can_be_read_later_has_not_failed(rig: Rig) -> None:
    """Else its delivery was marked as failed, and its record skipped."""
    step = worker(rig)
    receiver = rig.known.receivers.pop("ci")
    rig.known.refused["ci"] = "a record that is not JSON with declared_by and entry"
    work = admitted(step, sent(structs.replace(PUSH, receivers=("ci",))))
    assert isinstance(step.step(work), Later)
    rig.known.receivers["ci"] = receiver
    del rig.known.refused["ci"]
    assert isinstance(step.step(work), Done)
    assert not work.failed


def test_nobody_subscribes(rig: Rig) -> None:
    assert ended(rig, structs.replace(PUSH, receivers=None)).reason == "unknown_receiver"


def test_too_many_subscribe(rig: Rig) -> None:
    rig.known.subscribed = InvalidRecord("invalid", "1001 receivers subscribe to this; 1000 are allowed")
    dead = ended(rig, structs.replace(PUSH, receivers=None))
    assert dead == Dead("invalid", "1001 receivers subscribe to this; 1000 are allowed")


# invalid messages


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ((), b"not json"),
        ((), b"{}"),
        ((), None),
        ((), json.dumps({"source_id": "", "message_id": "m", "payload": 1}).encode()),
        ((("ce_id", b"m"),), b"no source"),
        ((("ce_id", b"\xff"), ("ce_source", b"s")), b""),
        ((("ce_id", b"m"), ("ce_source", b"s"), ("ce_receiver", b"NO NAME")), b""),
        ((("ce_id", b"m"), ("ce_source", b"s"), ("ce_receiver", b"")), b""),
    ],
)
def test_what_cannot_be_read_is_a_dead_letter(rig: Rig, headers: Headers, value: bytes | None) -> None:
    step = worker(rig)
    given = record(FROM_SENDER, headers, value)
    with pytest.raises(InvalidRecord) as caught:
        step.admit(given)
    assert caught.value.reason == "invalid"
    buried = step.dead_letter(given, None, Dead(caught.value.reason, caught.value.detail))
    assert letter_of(buried).origin == given.coordinate
    assert (buried.key, buried.value) == (given.key, value)
    assert rig.meter.told == []


def test_a_record_over_the_limit_is_too_large(rig: Rig) -> None:
    step = worker(rig)
    step.admit(sent(structs.replace(PUSH, payload=b"x" * MAX)))
    with pytest.raises(InvalidRecord) as caught:
        step.admit(sent(structs.replace(PUSH, payload=b"x" * (MAX + 1))))
    assert (caught.value.reason, caught.value.detail) == ("too_large", "the record has 1001 bytes; 1000 are allowed")


@pytest.mark.parametrize(("key", "foreign"), [(b"github", False), (b"other", True), (None, True)])
def test_a_foreign_key_is_taken_and_counted(rig: Rig, key: bytes | None, foreign: bool) -> None:
    step = worker(rig)
    assert admitted(step, sent(key=key)).message == PUSH
    assert rig.meter.told == [("received", foreign)]


# moves


class Announced(LaneRoutes, NoMoves):
    """One move of `ci`, and where its markers were met."""

    def __init__(self) -> None:
        super().__init__()
        self.take(ControlKey("route", "ci"), encode_value(LaneRoute(1, "shared", moving=True, token="t", left=True)))


def test_a_message_takes_the_old_lane_before_the_marker_and_the_new_one_behind_it(rig: Rig) -> None:
    moves = Announced()
    rig.know(moves.route("ci").applied_to(CI))
    step = mover(rig, moves)

    def lane(offset: int) -> tuple[str, bytes | None, int]:
        [hop] = expect(Done, step.step(step.admit(sent(offset=offset)))).records
        return hop.topic, hop.key, hop_of(hop).move

    def marked(offset: int, token: str) -> Done | Dead | Later:
        return step.step(step.admit(record(FROM_SENDER, Marker("ci", 1, token).headers(), b"", offset=offset)))

    old, new = (TOPICS.to_receiver("ci"), b"github", 0), (TOPICS.to_receiver("shared"), b"ci", 1)
    assert lane(20) == old
    cut = Cut("ci", 1, 3, 10)
    assert marked(10, "t") == Done((NewRecord(TOPICS.receiver_config, cut.key.encode(), encode_value(cut)),))
    assert [lane(9), lane(11)] == [old, new]
    assert marked(15, "t") == Done()  # of two markers the first one counts
    assert lane(12) == new
    assert expect(Dead, marked(5, "guessed")).reason == "invalid"


@pytest.mark.parametrize(("version", "token"), [(1, "anything"), (2, "t")])
def test_a_marker_of_a_move_that_is_over_says_nothing(rig: Rig, version: int, token: str) -> None:
    """A sender can write one: under its key it would take the place of the cut that counts."""
    moves = Announced()
    moves.take(ControlKey("route", "ci"), encode_value(LaneRoute(2, "dedicated", moving=version == 1, token="t")))
    step = mover(rig, moves)
    marker = Marker("ci", version, token)
    assert step.step(step.admit(record(FROM_SENDER, marker.headers(), b"", offset=5))) == Done()
    assert moves.cut("ci", version, 3) is None


# memory


def admitted(step: FromSender, record: Record) -> Incoming:
    work = step.admit(record)
    assert isinstance(work, Incoming)
    return work


async def seen(step: FromSender, *records: Record) -> tuple[list[Incoming], list[LookupResult]]:
    works = [admitted(step, one) for one in records]
    return works, await step.table.intake(LANE, works)


async def finish(step: FromSender, work: Incoming) -> None:
    decision = step.step(work)
    assert not isinstance(decision, Later)
    count = len(decision.records) if isinstance(decision, Done) else 1
    at = tuple(Coordinate("t", 2, offset) for offset in range(count))
    await step.table.mark([(work, Outcome(decision, at))])


async def test_a_message_is_a_duplicate_once_its_hop_records_are_acknowledged(rig: Rig) -> None:
    step = worker(rig)
    (work,), known = await seen(step, sent())
    assert known == [LookupResult.READY]
    _, known = await seen(step, sent(), sent(offset=8))
    assert known == [LookupResult.READY, LookupResult.READY]  # seen is no proof: both go on
    await finish(step, work)
    _, known = await seen(step, sent(), sent(offset=8))
    assert known == [LookupResult.FINISHED, LookupResult.FINISHED]


@pytest.mark.parametrize("other", [{"payload": b"x"}, {"event_type": "pull"}, {"receivers": ("cd",)}])
async def test_an_id_with_other_bytes_is_a_conflict(rig: Rig, other: dict[str, object]) -> None:
    state = MemoryState()
    step = worker(rig, state)
    (first, second), known = await seen(step, sent(), sent(structs.replace(PUSH, **other), offset=8))
    assert known == [LookupResult.READY, LookupResult.READY]
    assert isinstance(step.step(first), Done)
    assert expect(Dead, step.step(second)).reason == "id_conflict"
    await finish(step, second)
    row = (await state.messages([MessageId("github", "m-1")]))[0]
    assert row is not None
    assert row.stage is MessageStage.ARRIVED  # the first one's hop records are still to come
    await finish(step, first)
    (third,), known = await seen(step, sent(structs.replace(PUSH, **other), offset=8))
    assert known == [LookupResult.READY]
    assert third.conflict


async def test_its_own_record_read_again_is_no_conflict(rig: Rig) -> None:
    step = worker(rig)
    await seen(step, sent())
    (again,), _ = await seen(step, sent(structs.replace(PUSH, payload=b"x")))
    assert not again.conflict


async def test_a_delivery_to_nobody_has_failed(rig: Rig) -> None:
    state = MemoryState()
    step = worker(rig, state)
    (work,), _ = await seen(step, sent(structs.replace(PUSH, receivers=("nobody", "ci"))))
    await finish(step, work)
    nobody, ci = await answered(state.peek(for_each("nobody", "ci")))
    assert (nobody.stage, nobody.at, nobody.code) == (Stage.FAILED, (2, 1), REASON_CODES["unknown_receiver"])
    assert ci.stage is Stage.NONE


@pytest.mark.parametrize(
    ("faulty", "detail"),
    [
        ({}, "keep.sha: `payload.after`: the payload is not JSON"),
        ({"payload": b"{}"}, "there is no field 'after'"),
        ({"timing": Timing(deliver_at=NOW + 40 * DAY_S)}, "30 days"),
        ({"time": "yesterday"}, "'yesterday', which is not RFC 3339"),
    ],
)
async def test_a_message_that_can_be_sent_to_no_receiver_has_failed_for_each(
    rig: Rig, faulty: dict[str, object], detail: str
) -> None:
    rig.known.sources["github"] = KEEPING
    state, message = MemoryState(), structs.replace(PUSH, receivers=("ci", "cd"), **faulty)
    step = worker(rig, state)
    (work,), _ = await seen(step, sent(message))
    await finish(step, work)
    rows = await answered(state.peek(for_each("ci", "cd")))
    assert [(row.stage, row.at, row.code) for row in rows] == [
        (Stage.FAILED, (2, 0), REASON_CODES["invalid"]),
        (Stage.FAILED, (2, 1), REASON_CODES["invalid"]),
    ]
    letters = routed(rig, message)
    assert [headers_of(letter)["relay-receiver"] for letter in letters] == [b"ci", b"cd"]
    assert all(detail in letter_of(letter).detail for letter in letters)


async def test_a_message_that_was_erased_before_it_was_routed_has_failed_for_each_receiver(rig: Rig) -> None:
    rig.outside.erasures.add(Erasure("e-1", NOW + 1, source_id="github", message_id="m-1"))
    rig.known.subscribed = ("ci", "cd")
    state, erased = MemoryState(), structs.replace(PUSH, receivers=None)
    step = worker(rig, state)
    (work,), _ = await seen(step, sent(erased))
    await finish(step, work)
    rows = await answered(state.peek(for_each("ci", "cd")))
    assert [(row.stage, row.code) for row in rows] == [(Stage.FAILED, REASON_CODES["discarded"])] * 2
    letters = routed(rig, erased)
    assert [headers_of(letter)["relay-receiver"] for letter in letters] == [b"ci", b"cd"]
    assert {letter_of(letter).reason for letter in letters} == {"discarded"}


# what the relay says itself

OWN = message_of(turn_of("receiver.offline", "ci", None, None, None), "1")


def test_an_event_of_our_own_goes_to_those_that_may_hear_it_but_not_to_whom_it_is_about(rig: Rig) -> None:
    rig.known.subscribed = ("cd", "ci")
    [hop] = routed(rig, OWN)
    assert hop_of(hop).delivery == DeliveryId("cd", "relay", "receiver.offline:ci:1")


def test_an_event_of_our_own_that_nobody_wants_to_hear_any_more_is_no_failure(rig: Rig) -> None:
    assert routed(rig, OWN) == []


def test_who_sends_as_us_is_refused(rig: Rig) -> None:
    for forged in (structs.replace(PUSH, source_id="relay"), structs.replace(OWN, receivers=("cd",))):
        dead = ended(rig, forged)
        assert dead.reason == "invalid"
        assert "'relay' is the relay's own source" in dead.detail


async def test_the_same_event_from_two_processes_is_sent_once_and_no_conflict(rig: Rig) -> None:
    step = worker(rig)
    again = structs.replace(OWN, payload=OWN.payload + b" ", time="2026-01-01T00:00:01Z")
    (first, second), _ = await seen(step, sent(OWN), sent(again, offset=8))
    await finish(step, first)
    assert not second.conflict
    _, known = await seen(step, sent(again, offset=8))
    assert known == [LookupResult.FINISHED]
