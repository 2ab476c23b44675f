"""API keys: their text, their stored form, which secrets are valid when, and that records may arrive in any order."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.control.keys import MOST_SECRETS, ApiKeys, read_keys
from relay.control.records import LimitReached
from relay.domain.api_key import Key, Secret, decode_key, encode_key, fresh_key, id_of, secret_key
from relay.domain.api_key import digest_of as digest
from relay.domain.control_key import ControlKey, decode_value, encode_value
from relay.domain.errors import InvalidRecord
from relay.domain.scope import Scope
from relay.domain.topics import Topics
from relay.log.port import Record
from tests.fakes.keys import MemoryKeys, counted
from tests.fakes.log import MemoryBroker, opened_log

NOW = 1_000.0
TOPICS = Topics("t-")


def made(text: str = "rk_a_s", *, expires_at: float | None = None) -> Key:
    return Key("a", "n", frozenset({Scope("admin")}), NOW, "anybody", expires_at, (Secret(digest(text), NOW),))


def record(key: bytes, value: bytes | None, offset: int = 0) -> Record:
    return Record(TOPICS.receiver_config, 0, offset, key, value, (), 0)


# --- text ---------------------------------------------------------------------------------------------------------


def test_a_key_has_a_mark_an_id_and_a_secret_of_256_bits() -> None:
    sizes: list[int] = []

    def random(size: int) -> bytes:
        sizes.append(size)
        return bytes(range(size))

    id, text, kept = fresh_key(random)
    assert text.split("_")[:2] == ["rk", id]
    assert (sizes[-1], len(text.split("_")[2])) == (32, 52)
    assert text.replace("_", "").isalnum()
    assert (id_of(text), kept) == (id, digest(text))
    assert fresh_key(random, "mine").text.startswith("rk_mine_")


@pytest.mark.parametrize("text", ["", "rk", "rk_", "rk_a", "rk_a_", "rk__s", "xx_a_s", "RK_a_s"])
def test_what_has_not_the_form_of_a_key_has_no_id(text: str) -> None:
    assert id_of(text) is None


# --- secrets --------------------------------------------------------------------------------------------------------


def test_a_former_secret_is_good_until_its_overlap_is_over() -> None:
    key = replace(made("old"), secrets=(*made("old").secrets, Secret(digest("new"), NOW + 5, NOW + 10)))
    assert [key.secret_of("old", at) is not None for at in (NOW, NOW + 9.9, NOW + 10)] == [True, True, False]
    assert [key.secret_of(text, NOW + 99) is not None for text in ("new", "other", "")] == [True, False, False]
    assert (key.old_until(NOW + 6), key.old_until(NOW + 10)) == (NOW + 10, None)


def test_a_key_is_over_when_it_expires() -> None:
    key = made(expires_at=NOW + 1)
    assert [key.is_over(at) for at in (NOW, NOW + 1)] == [False, True]
    assert not made().is_over(NOW * 1_000)


def test_a_second_rotation_ends_the_first_secret_no_later() -> None:
    first, second = Secret(digest("b"), NOW + 1, NOW + 50), Secret(digest("c"), NOW + 2, NOW + 10)
    key = replace(made("a"), secrets=(*made("a").secrets, first, second))
    assert [key.secret_of(text, NOW + 20) is not None for text in "abc"] == [False, False, True]


# --- records --------------------------------------------------------------------------------------------------------


def test_records_say_what_the_key_is_and_not_its_text() -> None:
    id, text, kept = fresh_key(counted)
    key = replace(made(expires_at=NOW + 1), id=id, secrets=(Secret(kept, NOW),))
    assert decode_key(id, encode_key(key)) == key
    assert text.split("_")[2] not in encode_key(key).decode()
    assert decode_value(Secret, encode_value(Secret("d", 1.0, 2.0))) == Secret("d", 1.0, 2.0)


def test_a_scope_of_a_newer_version_allows_nothing() -> None:
    value = encode_key(made()).replace(b'["admin"]', b'["fly:x", 1, "read:a"]')
    assert decode_key("a", value).scopes == {Scope("read", "a")}


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"null", b"[" * 100_000, b'{"scopes": 1}', b"\xff"])
def test_what_is_no_key_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_key("a", value)
    with pytest.raises(InvalidRecord):
        decode_value(Secret, value)


A = ControlKey("key", "a")
CLOSED = ControlKey("keys-closed", "")


def take(keys: ApiKeys, key: ControlKey, value: bytes | None) -> None:
    keys.take(key, record(key.encode(), value))


@given(st.permutations(range(4)))
def test_records_may_come_in_any_order(order: list[int]) -> None:
    secrets = [Secret(digest(str(n)), NOW + n, NOW + n + 10) for n in (1, 2)]
    records = [(CLOSED, b"{}"), (A, encode_key(made("0")))]
    records += [(secret_key("a", each.digest), encode_value(each)) for each in secrets]
    keys = ApiKeys()
    for number in order:
        take(keys, *records[number])
    [key] = keys.all()
    assert key == replace(made("0"), secrets=(*made("0").secrets, *secrets))
    assert keys.closed


def test_a_revoked_key_is_gone_and_a_late_secret_does_not_bring_it_back() -> None:
    keys = ApiKeys()
    take(keys, A, encode_key(made()))
    take(keys, A, None)
    take(keys, secret_key("a", "d" * 64), encode_value(Secret("d" * 64, NOW)))
    assert (keys.all(), keys.get("a"), keys.closed) == ([], None, True)


def test_a_record_that_cannot_be_read_ends_the_key_and_keeps_the_door_closed() -> None:
    keys = ApiKeys()
    take(keys, A, encode_key(made()))
    take(keys, A, b"?")
    assert (keys.get("a"), keys.closed) == (None, True)


# --- the desk -------------------------------------------------------------------------------------------------------


async def desk() -> MemoryKeys:
    return MemoryKeys(await opened_log(MemoryBroker(), TOPICS.fixed()), TOPICS.receiver_config)


async def create(at: MemoryKeys, **facts: Any) -> Any:
    return await at.create("n", frozenset({Scope("admin")}), facts.get("expires_at"), by="x", now=NOW)


async def test_a_key_that_was_made_is_in_force_and_read_by_others() -> None:
    own = await desk()
    key, text = await create(own)
    assert own.keys.find(text) == key
    there = await read_keys(own.log, TOPICS.receiver_config)
    assert (there.all(), there.closed, there.known, there.any_good(NOW)) == ([key], True, True, True)
    await own.revoke(key)
    there = await read_keys(own.log, TOPICS.receiver_config)
    assert (own.keys.find(text), there.all(), there.closed, there.any_good(NOW)) == (None, [], True, False)


async def test_without_the_topic_there_are_no_keys() -> None:
    there = await read_keys(await opened_log(MemoryBroker()), TOPICS.receiver_config)
    assert (there.all(), there.closed, there.known) == ([], False, True)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=8), st.integers(0, 60))
async def test_secrets_that_are_over_are_cleared_away_and_change_nothing(
    steps: list[tuple[int, int]], later: int
) -> None:
    """Each step: so long after the last one a rotation, with so long an overlap."""
    own, now = await desk(), NOW
    key, text = await create(own)
    texts, all_secrets = [text], list(key.secrets)
    for wait, overlap in steps:
        now += wait
        rotated = await own.rotate(own.keys.all()[0], float(overlap), now)
        texts.append(rotated.text)
        all_secrets.append(rotated.key.secrets[-1])
    [known], whole, at = own.keys.all(), replace(key, secrets=tuple(all_secrets)), now + later
    assert [known.secret_of(each, at) for each in texts] == [whole.secret_of(each, at) for each in texts]
    assert known.secret_of(texts[-1], at) is not None


async def test_there_are_never_more_good_secrets_than_may_be() -> None:
    own = await desk()
    key, _ = await create(own)
    for _ in range(MOST_SECRETS - 1):
        key = (await own.rotate(key, 100.0, NOW)).key
    with pytest.raises(LimitReached):
        await own.rotate(key, 100.0, NOW)
    assert (await own.rotate(key, 100.0, NOW + 100)).key.secret_of("x", NOW) is None
