"""Payloads that are encrypted for their receivers: nothing readable is sent, or left in a dead letter."""

import asyncio
import json
from dataclasses import replace

import pytest
from jwcrypto.jwk import JWK
from msgspec import structs

from relay.domain.exchange import NoResponse, Response
from relay.domain.hop import Hop, decode_hop
from relay.domain.jwe import MEDIA_TYPE, UsableKey, decrypt, encrypt, key_text, usable_key
from relay.domain.receiver import Encryption, Endpoint, Receiver, SigningPolicy
from relay.domain.signing import verify_standard
from relay.engine.decision import Dead, Done, Later
from relay.log.port import Record
from tests.expecting import expect, present
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, NOW, TOPICS, Rig, hop_record, stepped
from workers import payload_encryption
from workers.payload_encryption import ENCRYPTED_AT_ONCE, FAILED_S, FRESH_S, USABLE_S
from workers.to_receiver import ToReceiver

JWKS = "https://ci.example/jwks.json"
PRIVATE = [JWK.generate(kty="EC", crv="P-256", kid=kid) for kid in ("new", "old")]
PUBLIC = tuple(key_text(each.export_public(as_dict=True)) for each in PRIVATE)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PLAIN = Receiver("ci", Endpoint("https://ci.example/hooks", SigningPolicy(secrets=(SECRET,))))
STATIC = replace(PLAIN, encrypt=Encryption(PUBLIC))
FETCHED = replace(PLAIN, encrypt=Encryption(url=JWKS))
HOP = Hop(DELIVERY, content_type="text/plain", accepted_ms=int(NOW * 1000))
PAYLOAD = b"the payload"
SET = Response(200, {}, json.dumps({"keys": [json.loads(each) for each in PUBLIC]}).encode())


@pytest.fixture
def rig() -> Rig:
    return Rig()


def worker(rig: Rig, receiver: Receiver) -> ToReceiver:
    rig.know(receiver)
    return ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)


def record(payload: bytes = PAYLOAD, hop: Hop = HOP) -> Record:
    return structs.replace(hop_record(TOPICS.to_receiver("ci"), hop), value=payload)


def plain_of(token: bytes, key: int = 0) -> tuple[bytes, str | None]:
    return decrypt([PRIVATE[key].export_private()], token)


@pytest.mark.parametrize("size", [10, ENCRYPTED_AT_ONCE + 1])
async def test_the_newest_key_encrypts_and_what_is_sent_is_signed(rig: Rig, size: int) -> None:
    rig.reply(204)
    step = worker(rig, STATIC)
    work = step.admit(record(b"x" * size))
    assert step.overdue(work) is None
    assert isinstance(await stepped(step, work, 1), Done)
    [sent] = rig.http.requests
    assert plain_of(sent.body) == (b"x" * size, "text/plain")
    headers = dict(sent.headers)
    assert headers["content-type"] == MEDIA_TYPE
    assert verify_standard([SECRET], headers, sent.body, NOW)


async def test_keys_are_fetched_once_and_the_delivery_waits_for_them(rig: Rig) -> None:
    rig.http.replies = [SET, Response(204, {}, b"")]
    step = worker(rig, FETCHED)
    work = step.admit(record())
    wait = expect(Later, step.overdue(work))
    assert wait.pause_s > 0
    assert step.overdue(work) == wait
    await asyncio.sleep(0)
    assert step.overdue(work) is None
    await stepped(step, work, 1)
    asked, sent = rig.http.requests
    assert (asked.method, asked.url) == ("GET", JWKS)
    assert plain_of(sent.body)[0] == PAYLOAD


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Response(500, {}, b""), "status 500"),
        (Response(301, {"location": "https://elsewhere"}, b""), "status 301"),
        (Response(200, {}, b"{}"), "it is no JWK Set"),
        (Response(200, {}, SET.body, truncated=True), "or was cut"),
        (Response(200, {}, SET.body + b" " * 70_000), "it has more than 65536 bytes"),
        (NoResponse("blocked", "the address is private", sent=False), "the address is private"),
    ],
)
async def test_without_a_key_nothing_is_sent(rig: Rig, reply: Response | NoResponse, said: str) -> None:
    rig.http.replies = [reply]
    step = worker(rig, FETCHED)
    work = step.admit(record())
    step.overdue(work)
    await asyncio.sleep(0)
    wait = expect(Later, step.overdue(work))
    assert said in wait.reason
    assert step.step(work) == wait
    assert len(rig.http.requests) == 1
    rig.clock.now += FAILED_S
    step.overdue(work)
    await asyncio.sleep(0)
    assert [each.method for each in rig.http.requests] == ["GET", "GET"]


async def test_a_set_is_renewed_while_it_is_used_and_not_used_for_ever(rig: Rig) -> None:
    rig.http.replies = [SET, Response(500, {}, b"")]
    step = worker(rig, FETCHED)
    work = step.admit(record())
    for elapsed_s, waits in ((0.0, False), (FRESH_S, False), (USABLE_S - FRESH_S, True)):
        rig.clock.now += elapsed_s
        step.overdue(work)
        await asyncio.sleep(0)
        assert isinstance(step.overdue(work), Later) is waits
    assert len(rig.http.requests) == 3


async def test_a_set_is_searched_once_and_again_when_its_key_is_over(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[float] = []

    def search(body: bytes, now: float) -> UsableKey:
        searched.append(now)
        return usable_key(body, now)

    monkeypatch.setattr(payload_encryption, "usable_key", search)
    key = {**json.loads(PUBLIC[0]), "exp": NOW + FRESH_S / 2}
    rig.http.replies = [Response(200, {}, json.dumps({"keys": [key]}).encode()), Response(500, {}, b"")]
    step = worker(rig, FETCHED)
    work = step.admit(record())
    step.overdue(work)
    await asyncio.sleep(0)
    for _ in range(9):
        assert step.overdue(work) is None
    assert searched == [NOW]
    rig.clock.now += FRESH_S / 2
    for _ in range(9):
        assert isinstance(step.overdue(work), Later)
    assert searched == [NOW, NOW + FRESH_S / 2]


async def test_another_key_is_used_as_soon_as_the_set_has_it(rig: Rig) -> None:
    later = Response(200, {}, json.dumps({"keys": [json.loads(PUBLIC[1])]}).encode())
    rig.http.replies = [SET, later, Response(204, {}, b"")]
    step = worker(rig, FETCHED)
    work = step.admit(record())
    for elapsed_s in (0.0, FRESH_S):
        rig.clock.now += elapsed_s
        step.overdue(work)
        await asyncio.sleep(0)
    await stepped(step, work, 1)
    assert plain_of(rig.http.requests[-1].body, 1)[0] == PAYLOAD


def test_a_dead_letter_has_ciphertext_and_is_sent_again_as_it_is(rig: Rig) -> None:
    step = worker(rig, STATIC)
    given = record()
    letter = step.dead_letter(given, step.admit(given), Dead("rejected"))
    assert plain_of(letter.value or b"") == (PAYLOAD, "text/plain")
    hop = decode_hop(letter.headers)
    assert (hop.content_type, hop.sealed) == (MEDIA_TYPE, True)
    again = structs.replace(given, value=letter.value, headers=letter.headers)
    assert step.dead_letter(again, step.admit(again), Dead("rejected")).value == letter.value


async def test_a_replayed_letter_is_not_encrypted_twice(rig: Rig) -> None:
    rig.reply(204)
    token = encrypt(PUBLIC[1], PAYLOAD, "text/plain")
    step = worker(rig, FETCHED)
    work = step.admit(record(token, structs.replace(HOP, sealed=True, content_type=MEDIA_TYPE)))
    assert step.overdue(work) is None
    await stepped(step, work, 1)
    [sent] = rig.http.requests
    assert (sent.body, dict(sent.headers)["content-type"]) == (token, MEDIA_TYPE)


def test_a_dead_letter_without_a_key_has_no_payload(rig: Rig) -> None:
    rig.known.gone["ci"] = FETCHED

    async def story() -> None:
        step = ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)
        given = record()
        letter = step.dead_letter(given, step.admit(given), Dead("unknown_receiver"))
        assert letter.value == b""
        assert dict(letter.headers)["relay-omitted"] == b"value=%d" % len(PAYLOAD)

    asyncio.run(story())


@pytest.mark.parametrize("in_doubt", [True, False])
@pytest.mark.parametrize("has_key", [True, False])
async def test_an_answer_is_decrypted_if_the_relay_has_the_key(rig: Rig, has_key: bool, in_doubt: bool) -> None:
    token = encrypt(PUBLIC[0], b"done", "text/plain")
    if has_key:
        rig.outside = replace(rig.outside, answer_keys=(PRIVATE[0].export_private(),))
    rig.reply(200, token, content_type=MEDIA_TYPE)
    step = worker(rig, replace(PLAIN, status_endpoint="https://ci.example/status/{message_id}"))
    work = step.admit(record())
    work.in_doubt = in_doubt
    decision = expect(Done, await stepped(step, work, 1))
    assert decision.result is not None
    expected = ("text/plain", b"done") if has_key else (MEDIA_TYPE, token)
    assert (decision.result.content_type, decision.result.body) == expected
    shown = present(rig.journal.attempts[-1].response)
    assert shown.body == token.decode()
