"""Forwarded headers of a message: how they are accepted, which receivers get them, and which are never forwarded."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from relay.config.receivers_file import parse_receivers_file
from relay.config.settings import Settings
from relay.domain.dead_letter import DeadLetter, dead_letter_headers, original_headers
from relay.domain.errors import InvalidRecord, UserError
from relay.domain.headers import MAX_HEADER_BYTES, MAX_HEADERS, Pairs, read_headers, wanted
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_digest, message_headers, parse_message, sender_headers
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.requests import post_request
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import virtually
from tests.fakes.world import World, message, receiver

OWN = (("x-team", "core"), ("x-ci-job", "7"), ("x-ci-stage", "tëst"))
PUSH = Message("github", "m-1", ("ci",), payload=b"{}", headers=OWN)
NEVER = [
    "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Authorization",
    "Proxy-Connection", "Host", "Content-Length", "Content-Type", "Expect", "Authorization", "Cookie", "Set-Cookie",
    "User-Agent", "traceparent", "tracestate",
    "relay-attempt", "relay-header-x", "webhook-id", "webhook-signature", "ce-id",
    "CE_source", "relay_answer_url", "Set_Cookie", "X_Hub_Signature",
    "X-Hub-Signature", "X-Hub-Signature-256", "Stripe-Signature", "Svix-Signature", "Signature", "",
    "a b", "a:b", "x\r\ny", "é",
]  # fmt: skip
"""What no sender may set at a receiver, however it is spelt."""


def sent(own: Pairs, allowed: tuple[str, ...], static: Pairs = ()) -> dict[str, str]:
    """What of `own` a receiver with this allow list gets. `static`: headers that it sets itself."""
    to = Receiver("ci", Endpoint("https://ci.example/", headers=static), forward_headers=allowed)
    hop = Hop(DeliveryId("ci", "github", "m-1"), headers=own)
    with_own, without = posted(to, hop), posted(to, structs.replace(hop, headers=()))
    names = [name.lower() for name, _ in with_own]
    assert len(set(names)) == len(names)
    return dict(pair for pair in with_own if pair not in without)


def posted(to: Receiver, hop: Hop) -> Pairs:
    made = post_request(to, hop, b"{}", attempt=1, sequence=None, now=0, answer_url=None, user_agent="relay/1")
    return made.headers


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        ((), set()),
        (("x-team",), {"x-team"}),
        (("x-ci-*",), {"x-ci-job", "x-ci-stage"}),
        (("x-ci",), set()),
        (("x-team", "x-ci-job", "other"), {"x-team", "x-ci-job"}),
        (("*",), {"x-team", "x-ci-job", "x-ci-stage"}),
    ],
)
def test_a_receiver_gets_what_its_list_allows(allowed: tuple[str, ...], names: set[str]) -> None:
    assert sent(OWN, allowed).keys() == names


def test_values_are_fit_for_http() -> None:
    assert sent((("x-a", "ä\r\nHost: evil"),), ("x-a",)) == {"x-a": "%C3%A4%0D%0AHost: evil"}


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_passed_on(name: str) -> None:
    """Not from a record of another producer, not into a message, and not as part of an allow list."""
    assert sent(((name.lower(), "forged"),), ("*", name.lower())) == {}
    with pytest.raises(InvalidRecord):
        read_headers({name: "forged"})
    with pytest.raises(UserError):
        parse_receivers_file(in_file([name]))


def test_what_a_receiver_sets_itself_counts() -> None:
    assert sent((("x-team", "mine"), ("x-a", "1")), ("*",), (("X-Team", "own"),)) == {"x-a": "1"}


@pytest.mark.parametrize("names", [("x-*",), ("*",)])
def test_names_are_compared_in_lower_case(names: tuple[str, ...]) -> None:
    assert wanted(read_headers({"X-Team": "a", "x-TEAM": "b"}), names, ()) == (("x-team", "b"),)


# the ways in


def test_both_forms_on_kafka_have_them() -> None:
    record = (("ce_id", b"1"), ("ce_source", b"github"), ("relay-header-X-Team", b"core"))
    assert parse_message(b"{}", record).headers == (("x-team", "core"),)
    envelope = {"source_id": "github", "message_id": "1", "payload": {}, "headers": {"X-Team": "core", "x-b": "2"}}
    value = json.dumps(envelope).encode()
    assert parse_message(value, ()).headers == (("x-team", "core"), ("x-b", "2"))
    assert dict(parse_message(value, record[2:]).headers) == {"x-team": "core", "x-b": "2"}


names = st.from_regex(r"x-[a-z0-9-]{0,20}", fullmatch=True).filter(lambda name: "signature" not in name)
values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(names, values, max_size=MAX_HEADERS))
def test_they_survive_every_record(own: dict[str, str]) -> None:
    headers = tuple(own.items())
    as_sent = message_headers(structs.replace(PUSH, headers=headers))
    assert parse_message(b"{}", as_sent).headers == headers
    assert parse_message(b"{}", sender_headers(as_sent)).headers == headers, "as a dead letter of from_sender has them"
    hop = encode_hop(Hop(DeliveryId("ci", "github", "m-1"), headers=headers))
    letter = dead_letter_headers(hop, DeadLetter("rejected", "", "to_receiver_ci", None, 1, 0, 422))
    assert decode_hop(original_headers(letter)).headers == headers


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({f"x-{n}": "" for n in range(MAX_HEADERS + 1)}, "has 17 headers of its own; 16 are allowed"),
        ({"x-a": "a" * MAX_HEADER_BYTES}, f"have {MAX_HEADER_BYTES + 3} bytes; 4096 are allowed"),
        ({"x-a": "\udcff"}, "header relay-header-x-a is not valid UTF-8"),
        ({"x" * 5_000 + " ": ""}, "is not the name of a header"),
    ],
)
def test_too_much_is_refused(own: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        read_headers(own)
    assert said in caught.value.detail


@pytest.mark.parametrize("headers", [["x-a"], {"x-a": 1}, "x-a"])
def test_an_envelope_with_other_headers_is_invalid(headers: object) -> None:
    value = json.dumps({"source_id": "a", "message_id": "1", "payload": {}, "headers": headers}).encode()
    with pytest.raises(InvalidRecord):
        parse_message(value, ())
    with pytest.raises(InvalidRecord, match="not valid UTF-8"):
        parse_message(b"{}", (("ce_id", b"1"), ("ce_source", b"a"), ("relay-header-x-a", b"\xff")))


def test_they_do_not_make_another_message() -> None:
    assert message_digest(PUSH) == message_digest(structs.replace(PUSH, headers=()))


# the file


def in_file(forward: list[str], more: str = "") -> str:
    return f"receivers: {{ci: {{post_endpoint: 'https://ci.example/', forward_headers: {json.dumps(forward)}{more}}}}}"


def test_the_list_reaches_the_receiver() -> None:
    receivers, _ = parse_receivers_file(in_file(["X-Team", "x-ci-*"])).resolve({})
    assert receivers["ci"].forward_headers == ("x-team", "x-ci-*")


@pytest.mark.parametrize(
    ("forward", "more", "said"),
    [
        (["authorization"], "", "forward_headers[0]: 'authorization' is never forwarded"),
        (["x-a", "Relay-*"], "", "forward_headers[1]: 'Relay-*' would match nothing"),
        (["webhook-*"], "", "would match nothing"),
        (["x-*-a"], "", "'x-*-a' is neither a header name nor a prefix followed by *"),
        (["X-Team"], ", headers: {x-TEAM: core}", "'x-team' contradicts headers, which set it"),
        ([f"x-{n}" for n in range(33)], "", "forward_headers: "),
    ],
)
def test_a_list_that_cannot_be_right(forward: list[str], more: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_receivers_file(in_file(forward, more))
    assert said in str(caught.value)


# the whole way


@virtually
async def test_they_arrive_where_they_are_wanted_also_after_parking_and_a_loss_of_the_state() -> None:
    wants = receiver("wants", "/wants", base=8.0, factor=1.0, cap=8.0)
    settings = Settings(receivers_file="none", hold_max=5.0)
    world = await World(
        [replace(wants, forward_headers=("x-team",)), receiver("other", "/other")], settings=settings
    ).create()
    world.outside.troubles["a-0"] = [REFUSED]
    both = [structs.replace(message(0, source, to), headers=OWN) for source, to in (("a", "wants"), ("b", "other"))]
    await world.send(*both)
    await world.run(Fuse(), 6)
    [copy] = world.parked_copies()
    assert ("relay-header-x-team", b"core") in copy.headers
    world.state.lose()
    await world.run(Fuse(), 600, until=lambda: len(world.outside.results()) == 2)
    [sent_a] = [headers for path, headers, _ in world.outside.posts if path == "/wants"]
    [sent_b] = [headers for path, headers, _ in world.outside.posts if path == "/other"]
    assert sent_a["x-team"] == "core"
    assert not {"x-ci-job", "x-ci-stage"} & sent_a.keys()
    assert not dict(OWN).keys() & sent_b.keys()
    everything = [name for _, headers, _ in world.outside.posts for name in headers]
    assert not any(name.startswith("relay-header-") for name in everything), "not even on the way back"
    lane = world.broker.partitions_of(world.topics.to_receiver("other"))
    in_lane = [name for at in lane for record in world.broker[at].records for name, _ in record.headers]
    assert in_lane
    assert not any(name.startswith("relay-header-") for name in in_lane), "nobody wants them there"
