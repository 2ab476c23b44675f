"""Each parser and masker on random input: it returns something, or refuses as it says. Ten thousand inputs each, and a
million in `make test-full`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec
import pytest

from relay.api.batch import Defaults, read_event, read_events, read_lines
from relay.api.problems import Problem
from relay.config.quota_text import parse_quota
from relay.domain.coordinate import Headers
from relay.domain.dead_letter import (
    DeadLetter,
    dead_letter_headers,
    identity_of,
    original_headers,
    parse_dead_letter,
    smaller_forms,
)
from relay.domain.errors import RelayError
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers, parse_message
from relay.domain.status_chain import decode_chain
from relay.domain.template import spans_of_expressions, without_expressions
from relay.domain.timestamps import parse_moment
from relay.domain.topics import Topics
from relay.engine.parked_copy import unwrap_ours
from relay.history.cursor import read_attempt_cursor, read_message_cursor
from relay.history.text import clean
from relay.log.kafka.record_batches import decode, offset_behind
from relay.log.port import Record, TopicPartition
from relay.replay.letter import read_letter
from tests.fakes.raw_batches import ENCODERS, RawBatch, RawRecord
from tests.unit.test_foreign_text import FUNCTIONS, PIECES

pytestmark = pytest.mark.thorough

REFUSALS: Final = (ValueError, RelayError, Problem, msgspec.MsgspecError)
WORDS: Final = (*PIECES, "1", "-1", "1.5e9", "null", "true", "[", "{}", "a,b", "answered", "1h", "6/1m", "\ud800")
DELIVERY: Final = DeliveryId("ci", "é/%2F", "m-1")
HOP: Final = Hop(DELIVERY, "push", content_type="application/json", attempt=2, generation=1, sequence=3, chain="{}")
LETTER: Final = DeadLetter("exhausted", "why", "to_receiver", None, 3, 0, 500)
MESSAGE: Final = Message("é/%2F", "m-1", ("ci",), "push", None, "application/json", b"{}")
ENVELOPE: Final = b'{"source_id": "a", "message_id": "m", "receiver": ["ci"], "payload": {"n": [1.50, "\\u00e9"]}}'
EVENT: Final = b'[{"specversion": "1.0", "id": "m", "source": "a", "type": "push", "data": {"n": 1}}]\n'
AT: Final = TopicPartition("topic", 3)
BATCHES: Final = [
    RawBatch([RawRecord(b"k", b"v" * 9, [(b"n", b"1")])] * 3, base=7, codec=codec).encoded() for codec in ENCODERS
]
DEFAULTS: Final = Defaults("app", ("ci",), None, None, 1_000, lambda: "new")


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
    for _ in smaller_forms(one.key, one.value, one.headers):
        pass


def both_ways(chance: Random) -> None:
    """What a hop says is said again by its headers."""
    hop = decode_hop(headers(chance, encode_hop(HOP)))
    assert decode_hop(encode_hop(hop)) == hop


def batch(chance: Random) -> None:
    whole = changed(chance, chance.choice(BATCHES))
    offset_behind(whole, 0, 2**40)
    chunk = decode(AT, whole, start=0, end=2**40, max_bytes=10_000)
    assert [one.offset for one in chunk.records] == sorted({one.offset for one in chunk.records})


def of_text(function: Callable[[str], object]) -> Callable[[Random], object]:
    return lambda chance: function(text(chance))


TARGETS: Final[dict[str, Callable[[Random], object]]] = {
    **{f"text {place}": of_text(function) for place, function in enumerate(FUNCTIONS)},
    **{
        function.__name__: of_text(function)
        for function in (
            *(parse_quota, parse_moment, decode_chain, without_expressions, clean),
            *(read_message_cursor, read_attempt_cursor),
        )
    },
    "spans_of_expressions": lambda chance: list(spans_of_expressions(text(chance))),
    "parse_message": lambda chance: parse_message(changed(chance, ENVELOPE), headers(chance, message_headers(MESSAGE))),
    "an envelope": lambda chance: parse_message(changed(chance, ENVELOPE), ()),
    "decode_hop": both_ways,
    "parse_dead_letter": lambda chance: parse_dead_letter(letter(chance).headers),
    "original_headers": lambda chance: original_headers(letter(chance).headers),
    "identity_of": lambda chance: identity_of(changed(chance, ENVELOPE), letter(chance).headers),
    "smaller_forms": each_smaller_form,
    "read_letter": lambda chance: read_letter(letter(chance), Topics()),
    "unwrap_ours": lambda chance: unwrap_ours(letter(chance)),
    "read_lines": lambda chance: read_lines(changed(chance, ENVELOPE + b"\n" + ENVELOPE), DEFAULTS),
    "read_events": lambda chance: read_events(changed(chance, EVENT), DEFAULTS),
    "read_event": lambda chance: read_event(changed(chance, EVENT.strip(b"[]\n")), DEFAULTS),
    "record batches": batch,
}
NEVER_RAISE: Final = {"parse_dead_letter", "identity_of", "record batches", "without_expressions", "clean"}


def fuzz(target: str, rounds: int) -> None:
    chance = Random(target)
    allowed: Sequence[type[Exception]] = () if target in NEVER_RAISE else REFUSALS
    for _ in range(rounds):
        with suppress(*allowed):
            TARGETS[target](chance)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("rounds", [pytest.param(10_000, id="10k"), pytest.param(1_000_000, marks=pytest.mark.slow)])
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
