"""Session and portal tokens: they carry what they were issued for, until they expire, and cannot be forged."""

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.own_address import keep_launch_secret, launch_secret, session_secrets
from relay.config.setting_layers import load_settings
from relay.control.keys import MOST_ENDED, read_keys
from relay.control.records import LimitReached
from relay.domain.answer_token import issue as issue_answer
from relay.domain.control_key import decode_value, encode_value
from relay.domain.errors import InvalidRecord, UserError
from relay.domain.identity import DeliveryId
from relay.domain.session import (
    MOST_RECEIVERS,
    Session,
    SessionEnd,
    SessionInvalid,
    SessionIssuer,
    SessionOver,
    derived_secret,
    issue,
    kind_of,
    proof_of,
    read,
)
from relay.domain.topics import Topics
from tests.fakes.keys import MemoryKeys
from tests.fakes.log import MemoryBroker, MemoryLog

SECRET, OTHER = b"k" * 32, b"o" * 32
EXPIRES = 1_700_000_000
SESSION = Session("session", "5e55", SessionIssuer("key", "proof"), EXPIRES)
PORTAL = Session("portal", "90a1", SessionIssuer("api", "proof"), EXPIRES, "acme", frozenset({"ci", "cd"}))

ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
makers = st.builds(SessionIssuer, st.text("abc234", max_size=16), st.text("0123456789abcdef", max_size=16))
sessions = st.builds(Session, st.just("session"), st.text("0123456789abcdef"), makers, st.integers(1, 2**53))
portals = st.builds(
    Session,
    *(st.just("portal"), st.text("0123456789abcdef"), makers, st.integers(1, 2**53), ids),
    st.none() | st.frozensets(names, min_size=1, max_size=MOST_RECEIVERS),
)


@given(st.binary(min_size=16), sessions | portals)
def test_a_token_says_what_it_was_issued_for(secret: bytes, session: Session) -> None:
    token = issue(secret, session)
    assert re.fullmatch(r"r[sp]_[A-Za-z0-9_-]+", token)
    assert kind_of(token) == session.kind
    assert read((secret,), token, session.expires - 1) == session
    with pytest.raises(SessionOver):
        read((secret,), token, session.expires)


def test_the_longest_one_is_good_and_fits_into_a_cookie() -> None:
    longest = replace(PORTAL, owner="é" * 128, receivers=frozenset(f"{n:063}" for n in range(MOST_RECEIVERS)))
    token = issue(SECRET, longest)
    assert read((SECRET,), token, 0) == longest
    assert len(token) < 4_000


@given(st.data(), st.sampled_from([SESSION, PORTAL]))
def test_what_was_changed_anywhere_is_refused(data: st.DataObject, session: Session) -> None:
    token = issue(SECRET, session)
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(exclude_characters=token[place], exclude_categories=["Cs"]))
    with pytest.raises(SessionInvalid):
        read((SECRET,), token[:place] + other + token[place + 1 :], 0)


@pytest.mark.parametrize(
    "changed",
    [
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token + "=",
        lambda token: token.replace("rs_", "rp_"),
        lambda token: token.replace("rs_", "RS_"),
        lambda token: token.removeprefix("rs_"),
        lambda token: (
            "rs_" + base64.urlsafe_b64encode(b"\x02" + base64.urlsafe_b64decode(token[3:] + "==")[1:]).decode()
        ),
        lambda _token: "",
        lambda _token: "rs_",
        lambda _token: "rs_" + "A" * 100_000,
        lambda _token: "rs_\udcff\x00",
        lambda _token: "rs_" + issue_answer(SECRET, DeliveryId("ci", "github", "m-1"), 0, EXPIRES),
        lambda _token: issue(OTHER, SESSION),
    ],
)
def test_what_is_none_of_ours_is_refused(changed: Callable[[str], str]) -> None:
    with pytest.raises(SessionInvalid):
        read((SECRET,), changed(issue(SECRET, SESSION)), 0)


def test_a_secret_takes_the_place_of_another() -> None:
    token = issue(SECRET, SESSION)
    assert read((OTHER, SECRET), token, 0) == SESSION
    with pytest.raises(SessionInvalid):
        read((OTHER,), token, 0)
    with pytest.raises(SessionInvalid):
        read((), token, 0)


def test_a_key_of_the_settings_is_known_by_a_proof_that_tells_nothing_of_it() -> None:
    assert proof_of(SECRET, b"one") == proof_of(SECRET, b"one")
    assert len({proof_of(SECRET, b"one"), proof_of(SECRET, b"other"), proof_of(OTHER, b"one")}) == 3


# --- the secrets ----------------------------------------------------------------------------------------------------


def test_the_derivation_is_that_of_rfc_5869() -> None:
    """Its third test case, with an empty salt; the first 32 bytes of the output."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert derived_secret(b"\x0b" * 22, b"").hex() == expected


def test_what_signs_is_the_setting_else_made_from_the_answer_secrets_else_of_this_launch() -> None:
    launch, answers = b"l" * 32, (b"a" * 32, b"b" * 32)
    none = load_settings({}, {})
    both = load_settings({}, {"RELAY_SESSION_SECRET": "the newest secret,the oldest secret"})
    old = load_settings({}, {"RELAY_SESSION_SECRET": "the oldest secret"})
    assert session_secrets(none, (), launch) == (launch,)
    derived = session_secrets(none, answers, launch)
    assert len(derived) == 2
    assert not set(derived) & set(answers)
    given = session_secrets(both, answers, launch)
    assert len(given) == 2
    assert given[1:] == session_secrets(old, (), launch)


def test_a_secret_that_could_be_guessed_is_refused_and_none_is_told() -> None:
    with pytest.raises(UserError, match="RELAY_SESSION_SECRET") as caught:
        load_settings({}, {"RELAY_SESSION_SECRET": "fifteen letters"})
    assert "fifteen" not in str(caught.value)
    assert "fifteen letters and" not in repr(load_settings({}, {"RELAY_SESSION_SECRET": "fifteen letters and"}))


def test_the_processes_of_a_launch_share_its_secret(tmp_path: Path) -> None:
    keep_launch_secret(tmp_path)
    assert launch_secret(tmp_path) == launch_secret(tmp_path) != launch_secret(None)
    assert len(launch_secret(tmp_path)) == 32
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("app.example", "'app.example' is not an origin"),
        ("https://app.example/", "is not an origin"),
        ("https://app.example/portal", "is not an origin"),
        ("https://*.app.example", "is not an origin"),
        ("https://a b", "is not an origin"),
        ("javascript:alert(1)", "is not an origin"),
        ("https://a;script-src *", "is not an origin"),
    ],
)
def test_what_may_show_the_portal_is_an_origin(text: str, problem: str) -> None:
    with pytest.raises(UserError, match="RELAY_PORTAL_ORIGINS") as caught:
        load_settings({}, {"RELAY_PORTAL_ORIGINS": text})
    assert problem in str(caught.value)
    known = load_settings({}, {"RELAY_PORTAL_ORIGINS": "https://App.example, http://127.0.0.1:9000,https://[::1]:1"})
    assert known.portal_origins == ("https://app.example", "http://127.0.0.1:9000", "https://[::1]:1")


# --- those that were ended ------------------------------------------------------------------------------------------


async def test_an_end_is_known_until_the_session_would_have_been_over() -> None:
    topics, log = Topics("t-"), MemoryLog(MemoryBroker())
    await log.start()
    await log.create(topics.fixed(), {})
    keys = MemoryKeys(log, topics.receiver_config)
    await keys.end(SESSION, EXPIRES - 10)
    again = await read_keys(log, topics.receiver_config)
    assert dict(again.ended) == dict(keys.keys.ended) == {SESSION.id: SessionEnd(EXPIRES, "key")}
    assert not again.closed  # no key was made
    later = replace(SESSION, id="1a7e", expires=EXPIRES + 100)
    await keys.end(later, EXPIRES)
    again = await read_keys(log, topics.receiver_config)
    assert dict(keys.keys.ended) == dict(again.ended) == {"1a7e": SessionEnd(later.expires, "key")}


async def no_keys() -> MemoryKeys:
    topics, log = Topics("t-"), MemoryLog(MemoryBroker())
    await log.start()
    await log.create(topics.fixed(), {})
    return MemoryKeys(log, topics.receiver_config)


async def test_ends_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_ENDED == 10_000
    monkeypatch.setattr("relay.control.keys.MOST_ENDED", 2)
    keys = await no_keys()
    for n in range(2):
        await keys.end(replace(SESSION, id=f"{n}"), 0)
    with pytest.raises(LimitReached):
        await keys.end(SESSION, 0)
    await keys.end(replace(SESSION, expires=EXPIRES + 1), EXPIRES)
    assert set(keys.keys.ended) == {SESSION.id}


async def test_one_key_takes_no_ends_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.control.keys.MOST_ENDED_OF_ONE", 2)
    keys = await no_keys()
    for n in range(2):
        await keys.end(replace(SESSION, id=f"{n}", expires=EXPIRES + n), 0)
    with pytest.raises(LimitReached) as caught:
        await keys.end(replace(SESSION, id="2"), EXPIRES - 10)
    assert caught.value.wait_s == 10
    await keys.end(PORTAL, 0)  # of another key
    await keys.end(replace(SESSION, id="3", expires=EXPIRES + 9), EXPIRES)
    assert set(keys.keys.ended) == {"1", "3"}


def test_an_end_is_read_as_it_was_written() -> None:
    end = SessionEnd(EXPIRES, "key")
    assert decode_value(SessionEnd, encode_value(end)) == end
    assert decode_value(SessionEnd, b'{"expires": 7}') == SessionEnd(7, "")  # of a release before
    for rubbish in (b"", b"{}", b'{"expires": Infinity}', b"[]", b"\xff", b'{"expires": null}', b"[" * 100_000):
        with pytest.raises(InvalidRecord):
            decode_value(SessionEnd, rubbish)
