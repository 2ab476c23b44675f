"""A parked record gives the original back, byte for byte, whatever was in it."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack, structs

from relay.domain.errors import InvalidRecord
from relay.engine.parked_copy import LIFE_KEY, life_key, lost_copy, parked_key, second_copy, unwrap, wrap
from relay.engine.work import Work
from relay.log.port import Coordinate, NewRecord, Record
from relay.state.rows import Due, Row, RowKey
from tests.servers.release import Release
from tests.servers.release import last_release as last_release

names = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="-_"), min_size=1, max_size=20)
records = st.builds(
    Record,
    topic=st.from_regex(r"[a-z0-9._-]{1,40}", fullmatch=True),
    partition=st.integers(0, 1000),
    offset=st.integers(0, 2**62),
    key=st.none() | st.binary(max_size=40),
    value=st.binary(max_size=200),
    headers=st.lists(st.tuples(names, st.binary(max_size=40)), max_size=5).map(tuple),
    timestamp_ms=st.integers(0, 2**45),
)
rows = st.builds(
    RowKey,
    owner=st.tuples(st.sampled_from(["r:", "s:"]), st.text(min_size=1, max_size=30)).map("".join),
    digest=st.binary(min_size=12, max_size=12),
)
queues = st.none() | st.binary(min_size=12, max_size=12)


def _appended(new: NewRecord) -> Record:
    return Record(new.topic, 3, 77, new.key, new.value, new.headers, 1_700_000_000_000)


def _work(record: Record, row: RowKey, queue: bytes | None, generation: int = 0, attempts: int = 0) -> Work:
    work = Work(record, row, generation, queue, row.owner)
    work.attempts = attempts
    return work


@given(records, rows, queues, st.integers(0, 99), st.integers(0, 99), st.integers(0, 2**45), st.booleans())
def test_what_is_wrapped_comes_out_again(
    record: Record, row: RowKey, queue: bytes | None, generation: int, attempts: int, due_ms: int, poll: bool
) -> None:
    work = _work(record, row, queue, generation, attempts)
    parked = _appended(wrap("parked_messages", "to_receiver", work, row, due_ms=due_ms, poll=poll))
    copy = unwrap(parked)
    assert copy.record == record
    assert (copy.row, copy.queue, copy.generation, copy.attempts) == (row, queue, generation, attempts)
    assert (copy.due_ms, copy.poll) == (due_ms, poll)
    assert copy.at == parked.coordinate
    assert copy.key == parked.key == parked_key("to_receiver", row)


@given(records, rows, st.integers(1, 99))
def test_a_second_copy_says_the_same_under_the_key_of_its_life(record: Record, row: RowKey, generation: int) -> None:
    first = wrap("parked", "to_receiver", _work(record, row, None, generation), row, due_ms=1, poll=False)
    second = second_copy(first, "to_receiver", row, generation)
    one, other = unwrap(_appended(first)), unwrap(_appended(second))
    assert replace(other, key=one.key) == one
    assert other.key == life_key("to_receiver", row, generation) != life_key("to_receiver", row, generation + 1)
    assert (one.is_second, other.is_second) == (False, True)
    assert "relay-parked-generation" not in dict(second.headers), "no process of the last release takes it for its own"


@pytest.mark.parametrize(("status", "known"), [(None, "1 status request"), (503, "1 status request, last status 503")])
def test_a_lost_copy_says_what_is_known_of_it(status: int | None, known: str) -> None:
    due = Due(RowKey("r:ci", b"row"), 0, Coordinate("parked", 1, 2))
    flaw = lost_copy(due, b"key", Row(attempts=2, polls=1, last_status=status)).record.flaw
    assert flaw is not None
    assert flaw.detail.startswith("the log lost the record that waited at parked/1/2; known of it: row 726f77")
    assert flaw.detail.endswith(f", 2 attempts, {known}")


@given(records, rows)
def test_a_copy_that_is_parked_again_does_not_grow(record: Record, row: RowKey) -> None:
    first = wrap("parked", "s", _work(record, row, None), row, due_ms=1, poll=False)
    again = wrap("parked", "s", _work(unwrap(_appended(first)).record, row, None), row, due_ms=1, poll=False)
    assert again == first


READ_BY_THE_LAST = """
import sys
from msgspec import msgpack
from relay.engine.parking import parked_key, unwrap_ours
from relay.log.port import Record
for record in msgpack.decode(bytes.fromhex(sys.argv[1]), type=list[Record]):
    copy = unwrap_ours(record)
    print(copy and (copy.generation, copy.key == parked_key("to_receiver", copy.row)))
"""


def test_the_last_release_takes_the_first_copy_for_its_own_and_leaves_the_second_alone(last_release: Release) -> None:
    first = wrap("parked", "to_receiver", _work(ORIGINAL, ROW, None, 1), ROW, due_ms=1, poll=False)
    both = [_appended(each) for each in (first, second_copy(first, "to_receiver", ROW, 1))]
    command = [sys.executable, "-c", READ_BY_THE_LAST, msgpack.encode(both).hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=last_release.environ, cwd="/")
    assert done.stdout.splitlines() == ["(1, True)", "None"]


ORIGINAL = Record("t", 0, 1, b"k", b"v", (), 0)
ROW = RowKey("r:ci", bytes(12))
PARKED = _appended(wrap("parked", "s", _work(ORIGINAL, ROW, None), ROW, due_ms=1, poll=False))


def test_stages_of_one_delivery_have_keys_of_their_own() -> None:
    assert parked_key("to_receiver", ROW) != parked_key("pending", ROW)
    assert parked_key("to_receiver", ROW) != LIFE_KEY


@pytest.mark.parametrize("missing", [name for name, _ in PARKED.headers])
def test_a_copy_with_a_header_missing_is_not_one_of_ours(missing: str) -> None:
    headers = tuple(header for header in PARKED.headers if header[0] != missing)
    with pytest.raises(InvalidRecord, match="not one of ours"):
        unwrap(structs.replace(PARKED, headers=headers))


@pytest.mark.parametrize("rubbish", [b"", b"\xff\xfe", b"x", b"t/0"])
@pytest.mark.parametrize("name", ["from", "row", "generation", "attempts", "due", "at"])
def test_a_copy_with_a_wrong_header_is_not_one_of_ours(name: str, rubbish: bytes) -> None:
    if name == "row" and rubbish == b"":
        return  # an empty digest is one, if not a useful one
    full = f"relay-parked-{name}"
    headers = tuple((each, rubbish if each == full else value) for each, value in PARKED.headers)
    with pytest.raises(InvalidRecord, match="not one of ours"):
        unwrap(structs.replace(PARKED, headers=headers))
