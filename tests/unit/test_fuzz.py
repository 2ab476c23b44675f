"""Each parser and masker on random input: it returns something, or refuses as it says. Ten thousand inputs each, and a
million in `make test-full`."""

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec
import pytest
from jwcrypto.jwk import JWK
from msgspec import structs

from relay.api.batch import Defaults, read_event, read_events, read_lines
from relay.api.problems import Problem
from relay.config.entry_types import parse_quota
from relay.domain.coordinate import Headers
from relay.domain.dead_letter import (
    dead_letter_headers,
    identity_of,
    original_headers,
    parse_dead_letter,
    reduced_forms,
)
from relay.domain.errors import RelayError
from relay.domain.event_type import check_type_name
from relay.domain.expression import STATUS, check_expression
from relay.domain.headers import check_pattern, check_token
from relay.domain.hop import decode_hop, encode_hop
from relay.domain.http_message import sign_message, verify_message
from relay.domain.identity import DeliveryId, read_message_id
from relay.domain.inbound import read_event as read_inbound
from relay.domain.inbound import verify
from relay.domain.incident_notice import parse_quiet_hours
from relay.domain.json_pointer import check_pointer
from relay.domain.jwe import encrypt, opened, private_keys
from relay.domain.message import Message, message_headers, parse_message
from relay.domain.one_off import decode_one_off
from relay.domain.receiver import Inbound, SigningPolicy
from relay.domain.scope import parse_scope
from relay.domain.signing import check_secret, check_verifier
from relay.domain.status_chain import decode_chain
from relay.domain.template import spans_of_expressions, without_expressions
from relay.domain.times import parse_moment, parse_past
from relay.domain.timing import HEADERS as TIMES
from relay.domain.timing import decode_timing, timing_in
from relay.domain.topics import Topics
from relay.domain.trace import read_tracestate
from relay.engine.parked_copy import unwrap_ours
from relay.history.port import AfterAttempt, AfterMessage, clean, read_cursor
from relay.log.kafka.record_batches import Unpacking, offset_behind
from relay.log.port import Record, TopicPartition
from relay.pages.brand import parse as parse_colour
from relay.replay.letter import read_dead_letter
from tests.fakes.raw_batches import ENCODERS, RawBatch, RawRecord
from tests.unit.stored_samples import FORMATS, from_text, written
from tests.unit.test_dead_letter import LETTER
from tests.unit.test_foreign_text import FUNCTIONS, PIECES
from tests.unit.test_hop import FULL
from tests.unit.test_inbound import SCHEMES

pytestmark = pytest.mark.thorough

REFUSALS: Final = (ValueError, RelayError, Problem, msgspec.MsgspecError, zlib.error, struct.error)
WORDS: Final = (*PIECES, "1", "-1", "1.5e9", "null", "true", "[", "{}", "a,b", "answered", "1h", "6/1m", "\ud800")
DELIVERY: Final = DeliveryId("ci", "é/%2F", "m-1")
HOP: Final = structs.replace(FULL, delivery=DELIVERY, event_type="push", chain="{}")
MESSAGE: Final = Message("é/%2F", "m-1", ("ci",), "push", None, "application/json", b"{}")
ENVELOPE: Final = b'{"source_id": "a", "message_id": "m", "receiver": ["ci"], "payload": {"n": [1.50, "\\u00e9"]}}'
EVENT: Final = b'[{"specversion": "1.0", "id": "m", "source": "a", "type": "push", "data": {"n": 1}}]\n'
AT: Final = TopicPartition("topic", 3)
BATCHES: Final = [
    RawBatch([RawRecord(b"k", b"v" * 9, [(b"n", b"1")])] * 3, base=7, codec=codec).encoded() for codec in ENCODERS
]
DEFAULTS: Final = Defaults("app", ("ci",), None, None, 1_000, lambda: "new")


NUMBER: Final = re.compile(rb"[0-9][0-9.]*")
NUMBERS: Final = (b"Infinity", b"-Infinity", b"NaN", b"1e999", b"9" * 400, b"-1", b"0.5", b"null", b"\xc2\xb2", b"[]")
AT_S: Final = 1_700_000_000
EVENT_HEADERS: Final = ("x-github-event", "x-github-delivery", "content-type", "ce-id", "webhook-id", "svix-id")
BODIES: Final = (ENVELOPE, b"payload=%7B%22action%22%3A1%7D", b'{"type": "x", "event_id": "e"}')
EXPRESSION: Final = "response.status == 200 && has(body.build) ? body.build : steps[0].body.items.map(x, x.id)"
HOOK: Final = "https://ci.example/h?x=1"
KEY: Final = "whsec_" + base64.b64encode(bytes(range(32))).decode()
FIELDS: Final = (("webhook-id", "m"), ("content-type", "application/json"))
MOMENTS: Final[tuple[object, ...]] = (
    1,
    -1,
    10**400,
    math.inf,
    math.nan,
    True,
    None,
    [],
    "1h",
    "2026-11-26T00:00:00Z",
    "\ud800",
)
ONE_OFF: Final = b'{"url":"https://h.example:8443/x?y=%C3%A4","secret":"enc:1:abc"}'
SIGNED: Final = dict(
    (
        *FIELDS,
        *sign_message(
            SigningPolicy(("http-message",), (KEY,)), method="POST", url=HOOK, fields=FIELDS, body=b"{}", created=AT_S
        ),
    )
)
PRIVATE: Final = json.dumps(JWK.generate(kty="EC", crv="P-256").export_private(as_dict=True))
JWKS: Final = private_keys(PRIVATE)
SEALED: Final = encrypt(JWK.from_json(PRIVATE).export_public(), b"an answer", "text/plain")


def text(chance: Random) -> str:
    return "".join(chance.choices(WORDS, k=chance.randrange(12)))


def data(chance: Random) -> bytes:
    return text(chance).encode(errors="surrogatepass")


def changed(chance: Random, whole: bytes) -> bytes:
    """Some bytes of it are others, missing or more."""
    for _ in range(chance.randrange(1, 4)):
        at, length = chance.randrange(len(whole) + 1), chance.choice([0, 0, 1, 4])
        whole = whole[:at] + chance.choice([b"", chance.randbytes(length), data(chance)]) + whole[at + length :]
    return whole


def with_another_number(chance: Random, whole: bytes) -> bytes:
    """One of its numbers is none that there should be."""
    found = list(NUMBER.finditer(whole))
    if not found:
        return whole
    one = chance.choice(found)
    return whole[: one.start()] + chance.choice(NUMBERS) + whole[one.end() :]


def headers(chance: Random, whole: Headers) -> Headers:
    """Some of them have another value, are missing, or there twice."""
    found = list(whole)
    for _ in range(chance.randrange(1, 4)):
        name, value = chance.choice(whole)
        match chance.randrange(3):
            case 0:
                found = [each for each in found if each[0] != name]
            case 1:
                found.append((name, data(chance)))
            case _:
                found.insert(0, (name, changed(chance, value)))
    return tuple(found)


def record(chance: Random, whole: Headers) -> Record:
    value = chance.choice([None, b"", b"{}", changed(chance, ENVELOPE)])
    return Record("topic", 0, 5, data(chance), value, headers(chance, whole), 1_700_000_000_000)


def letter(chance: Random) -> Record:
    return record(chance, dead_letter_headers(chance.choice([encode_hop(HOP), message_headers(MESSAGE)]), LETTER))


def each_smaller_form(chance: Random) -> None:
    one = letter(chance)
    for _ in reduced_forms(one.key, one.value, one.headers):
        pass


def both_ways(chance: Random) -> None:
    """What a hop says is said again by its headers."""
    hop = decode_hop(headers(chance, encode_hop(HOP)))
    assert decode_hop(encode_hop(hop)) == hop


def batch(chance: Random) -> None:
    whole = changed(chance, chance.choice(BATCHES))
    offset_behind(whole, 0, 2**40)
    chunk = Unpacking(AT, whole, start=0, end=2**40, max_bytes=10_000).take_all()
    assert [one.offset for one in chunk.records] == sorted({one.offset for one in chunk.records})


def of_text(function: Callable[[str], object]) -> Callable[[Random], object]:
    return lambda chance: function(text(chance))


def stored(name: str) -> Callable[[Random], object]:
    """A form that is stored: what others may have written there."""
    read, whole = FORMATS[name].read, [from_text(each) for each in written(name)]
    assert read is not None

    def target(chance: Random) -> object:
        one = chance.choice(whole)
        if not isinstance(one, bytes):
            return read(headers(chance, one))
        return read(chance.choice([changed, with_another_number])(chance, one))

    return target


def webhook(chance: Random) -> tuple[Inbound, dict[str, str], bytes]:
    """One of others, signed or nearly so."""
    policy, sign_as = chance.choice(SCHEMES)
    body = chance.choice(BODIES)
    given = sign_as(policy.secrets[0], body, AT_S)
    given |= {name: text(chance) for name in chance.sample([*given, *EVENT_HEADERS], k=chance.randrange(3))}
    return policy, given, chance.choice([body, changed(chance, body)])


def inbound(chance: Random) -> None:
    policy, given, body = webhook(chance)
    verify(policy, given, body, AT_S)


def inbound_event(chance: Random) -> None:
    policy, given, body = webhook(chance)
    if policy.kind != "cloudevents":
        read_inbound(policy, given, body)


def signed_message(chance: Random) -> None:
    """A signature of RFC 9421, some of its fields changed."""
    given = {name: chance.choice([value, changed_text(chance, value)]) for name, value in SIGNED.items()}
    verify_message([KEY], method="POST", url=HOOK, headers=given, body=b"{}", now=AT_S)


def changed_text(chance: Random, whole: str) -> str:
    """As a header's value is read: bytes that are no text are surrogates."""
    return changed(chance, whole.encode()).decode(errors="surrogateescape")


def sealed(chance: Random) -> None:
    opened(JWKS, "application/jose", changed(chance, SEALED))


TARGETS: Final[dict[str, Callable[[Random], object]]] = {
    **{f"text {place}": of_text(function) for place, function in enumerate(FUNCTIONS)},
    **{
        function.__name__: of_text(function)
        for function in (
            *(parse_quota, parse_moment, decode_chain, without_expressions, clean),
            *(parse_scope, check_pointer, parse_quiet_hours, check_pattern),
            *(check_type_name, check_token, check_secret, check_verifier, private_keys),
        )
    },
    "read_cursor of messages": of_text(lambda text: read_cursor(text, AfterMessage)),
    "read_cursor of attempts": of_text(lambda text: read_cursor(text, AfterAttempt)),
    "spans_of_expressions": lambda chance: list(spans_of_expressions(text(chance))),
    "parse_message": lambda chance: parse_message(changed(chance, ENVELOPE), headers(chance, message_headers(MESSAGE))),
    "an envelope": lambda chance: parse_message(changed(chance, ENVELOPE), ()),
    "decode_hop": both_ways,
    "parse_dead_letter": lambda chance: parse_dead_letter(letter(chance).headers),
    "original_headers": lambda chance: original_headers(letter(chance).headers),
    "identity_of": lambda chance: identity_of(changed(chance, ENVELOPE), letter(chance).headers),
    "reduced_forms": each_smaller_form,
    "read_dead_letter": lambda chance: read_dead_letter(letter(chance), Topics()),
    "unwrap_ours": lambda chance: unwrap_ours(letter(chance)),
    "read_lines": lambda chance: read_lines(changed(chance, ENVELOPE + b"\n" + ENVELOPE), DEFAULTS),
    "read_events": lambda chance: read_events(changed(chance, EVENT), DEFAULTS),
    "read_event": lambda chance: read_event(changed(chance, EVENT.strip(b"[]\n")), DEFAULTS),
    "record batches": batch,
    "read_message_id": lambda chance: read_message_id(data(chance)),
    "read_tracestate": lambda chance: read_tracestate(data(chance)),
    "parse_past": lambda chance: parse_past(text(chance), 1e9),
    "timing": lambda chance: timing_in(
        {name: data(chance) for name in TIMES}, {chance.choice([*TIMES.values()]): chance.choice(MOMENTS)}
    ),
    "decode_timing": lambda chance: decode_timing(with_another_number(chance, b'{"deliver_at":1.5,"deadline":9e8}')),
    "decode_one_off": lambda chance: decode_one_off(changed(chance, ONE_OFF)),
    "an expression": lambda chance: check_expression(changed_text(chance, EXPRESSION), STATUS, condition=True),
    "a colour": lambda chance: parse_colour(text(chance)),
    "inbound": inbound,
    "an inbound event": inbound_event,
    "a signed message": signed_message,
    "a sealed answer": sealed,
    **{f"stored {name}": stored(name) for name in FORMATS if FORMATS[name].read and name != "parked copy"},
}
NEVER_RAISE: Final = {
    *("parse_dead_letter", "identity_of", "record batches", "without_expressions", "clean"),
    *("inbound", "a signed message", "a sealed answer"),
}


def fuzz(target: str, rounds: int) -> None:
    chance = Random(target)
    allowed: Sequence[type[Exception]] = () if target in NEVER_RAISE else REFUSALS
    for _ in range(rounds):
        with suppress(*allowed):
            TARGETS[target](chance)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("rounds", [pytest.param(2_000, id="2k"), pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", TARGETS)
def test_whatever_comes_is_taken_or_refused(target: str, rounds: int) -> None:
    fuzz(target, rounds)


@pytest.mark.parametrize("error", [TypeError, IndexError, KeyError, RecursionError])
def test_any_other_error_is_found(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def breaks(_: Any) -> None:
        raise error

    monkeypatch.setitem(TARGETS, "decode_hop", breaks)
    with pytest.raises(error):
        fuzz("decode_hop", 1)
