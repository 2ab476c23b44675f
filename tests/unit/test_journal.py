"""Journal entries of each request: its message, its outcome, and the consequence; and no secret."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from msgspec import structs

from relay.domain.attempt import SHOWN_BODY, Attempt, AttemptFailure, AttemptResponse, decode_attempt, encode_attempt
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.receiver import CodeClasses, Endpoint, Receiver
from relay.engine.decision import Dead, Decision, Done, Later
from relay.engine.work import W, Worker
from relay.state.attempts import Change
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, NOW, TOPICS, Rig, hop_record, stepped
from tests.unit.test_from_receiver_async import HOP as PENDING_HOP
from tests.unit.test_from_receiver_async import PENDING
from tests.unit.test_to_receiver import ASKED, HOP, PLAIN, POST, TO_CI
from tests.unit.test_to_sender import ANSWERED, CALLED
from workers.from_receiver_async import FromReceiverAsync
from workers.journal import KEPT_BODY, RequestPurpose, attempt_of, ended_request
from workers.to_receiver import ToReceiver
from workers.to_sender import ToSender

SECRET = "s3cret-token"
WARY = Endpoint(
    f"https://ci.example/hooks?key={SECRET}",
    headers=(("X-Team", "team-1"), ("authorization", f"Bearer {SECRET}")),
    secrets=(SECRET,),
)
IDS = {"source_id": "github", "message_id": "m-1", "receiver": "ci"}
OK = Response(200, {"content-type": "text/plain"}, b"built")
DELIVERED = Done()


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def told(rig: Rig, worker: Worker[W], work: W, *replies: Exchange, attempt: int | None = None) -> Attempt:
    """The journal entry of the one request that the step makes, which takes a quarter of a second."""
    rig.http.replies, rig.http.seconds = list(replies), 0.25
    await stepped(worker, work, attempt)
    [attempt_told] = rig.journal.attempts
    assert decode_attempt(encode_attempt(attempt_told)) == attempt_told
    return attempt_told


def to_receiver(rig: Rig, receiver: Receiver = PLAIN) -> tuple[ToReceiver, Any]:
    rig.know(receiver)
    worker = ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)
    return worker, worker.admit(hop_record(TO_CI, structs.replace(HOP, generation=2)))


def to_sender(rig: Rig) -> tuple[ToSender, Any]:
    rig.known.sources = {"github": CALLED}
    worker = ToSender(rig.known, MemoryState(), rig.letters, rig.outside)
    return worker, worker.admit(hop_record(TOPICS.to_sender, ANSWERED, b"built"))


def awaited(rig: Rig) -> tuple[FromReceiverAsync, Any]:
    rig.know(ASKED)
    worker = FromReceiverAsync(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside)
    work = worker.admit(hop_record(PENDING, PENDING_HOP))
    work.polls = 4
    return worker, work


def facts(attempt: Attempt, *names: str) -> dict[str, object]:
    return {name: getattr(attempt, name) for name in names}


# journals of each worker


async def test_a_post(rig: Rig) -> None:
    attempt = await told(rig, *to_receiver(rig), OK, attempt=3)
    [request] = rig.http.requests
    expected = {**IDS, "kind": "post", "generation": 2, "attempt": 3, "started_at": NOW, "duration_ms": 250.0}
    assert facts(attempt, *expected) == expected
    assert (attempt.method, attempt.url, list(attempt.headers)) == ("POST", POST, [name for name, _ in request.headers])
    assert attempt.headers["relay-attempt"] == "3"
    assert attempt.headers["relay-answer-url"] == "https://us/********"
    assert attempt.response == AttemptResponse(200, {"content-type": "text/plain"}, "built")
    expected = dict.fromkeys(("error", "reason", "detail", "next_attempt_at"))
    expected |= {"outcome": "done", "code_class": "delivered", "failed": False, "counted": True}
    assert facts(attempt, *expected) == expected


SHORT = NoResponse("no_resources", "too many open files", sent=False)


@pytest.mark.parametrize(
    ("receiver", "reply", "expected"),
    [
        (
            PLAIN,
            Response(503, {"retry-after": "40"}, b""),
            {"outcome": "retry", "reason": "not now", "detail": f"POST {POST}: 503", "next_attempt_at": NOW + 40.25}
            | {"code_class": "not_now", "failed": True, "counted": True},
        ),
        (
            PLAIN,
            Response(422, {}, b"no such branch"),
            {"outcome": "dead", "reason": "rejected", "detail": f"POST {POST}: 422: no such branch"}
            | {"next_attempt_at": None, "code_class": "rejected", "counted": True},
        ),
        (PLAIN, Response(429, {}, b""), {"outcome": "retry", "code_class": "not_now", "counted": False}),
        (PLAIN, SHORT, {"outcome": "released", "code_class": "not_processed", "counted": False}),
        (
            ASKED,
            NoResponse("timeout", "no answer", sent=True),
            {"outcome": "doubt", "code_class": "ambiguous", "response": None}
            | {"error": AttemptFailure("timeout", "no answer", sent=True)},
        ),
    ],
    ids=["made again, and when", "a dead letter", "not counted", "for want of something of ours", "without a response"],
)
async def test_a_post_that_is_not_done(
    rig: Rig, receiver: Receiver, reply: Exchange, expected: dict[str, object]
) -> None:
    attempt = await told(rig, *to_receiver(rig, receiver), reply, attempt=1)
    assert facts(attempt, *expected) == expected


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"id":".."}', "{response.id} of the status endpoint's path would be '..', which"),
        (b'{"id":""}', "the answer to the POST has an empty {response.id}"),
        (b'{"id":["a"]}', "{response.id} of the answer to the POST is neither a text nor an integer"),
        (b"{}", "the answer to the POST has no {response.id}"),
        (b"accepted", "the answer to the POST is not readable JSON, so it has no {response.id}"),
        (b'{"id":7}', None),
    ],
)
async def test_an_accepted_post_says_why_its_answer_cannot_be_asked_for(rig: Rig, body: bytes, why: str | None) -> None:
    receiver = replace(ASKED, status_endpoint="https://ci.example/builds/{response.id}")
    attempt = await told(rig, *to_receiver(rig, receiver), Response(202, {}, body), attempt=1)
    assert attempt.outcome == "done"
    said, _, unasked = (attempt.detail or "").partition(": ")
    assert said == ("the receiver cannot be asked for its answer" if why else "")
    assert unasked.startswith(why or "")


async def test_a_status_get_in_doubt(rig: Rig) -> None:
    worker, work = to_receiver(rig, ASKED)
    work.in_doubt = True
    attempt = await told(rig, worker, work, Response(404, {}, b""))
    expected = {**IDS, "kind": "status", "generation": 2, "attempt": 1, "method": "GET", "url": f"{POST}/m-1"}
    assert facts(attempt, *expected) == expected
    assert (attempt.outcome, attempt.reason, attempt.code_class) == ("retry", "the receiver never saw it", None)
    await stepped(worker, work)
    assert [each.attempt for each in rig.journal.attempts] == [1, 2]


async def test_a_message_id_in_the_url_of_a_status_get_is_told(rig: Rig) -> None:
    worker, _ = to_receiver(rig, ASKED)
    message_id = "550e8400-e29b-41d4-a716-446655440000"
    hop = structs.replace(HOP, delivery=HOP.delivery._replace(message_id=message_id))
    work = worker.admit(hop_record(TO_CI, hop))
    work.in_doubt = True
    attempt = await told(rig, worker, work, Response(500, {}, b""))
    assert (attempt.url, attempt.detail) == (f"{POST}/{message_id}", f"GET {POST}/{message_id}: 500")


@pytest.mark.parametrize(
    ("reply", "outcome", "reason", "wait_s"),
    [
        (Response(202, {"retry-after": "7"}, b""), "working", "still working", 7.25),
        (OK, "done", None, None),
        (Response(500, {}, b""), "retry", "status", None),
        (NoResponse("refused", "nobody listens", sent=False), "retry", "refused", None),
        (SHORT, "released", None, None),
        (Response(410, {}, b""), "dead", "gone", None),
    ],
)
async def test_a_status_get(rig: Rig, reply: Exchange, outcome: str, reason: str | None, wait_s: float | None) -> None:
    attempt = await told(rig, *awaited(rig), reply)
    assert facts(attempt, *IDS, "kind", "attempt", "outcome") == {
        **IDS,
        "kind": "status",
        "attempt": 4,
        "outcome": outcome,
    }
    if reason is not None or outcome == "done":
        assert attempt.reason == reason
    if wait_s is not None:
        assert attempt.next_attempt_at == NOW + wait_s
    assert attempt.failed == (outcome not in ("done", "working"))


async def test_a_callback(rig: Rig) -> None:
    attempt = await told(rig, *to_sender(rig), Response(204, {}, b""), attempt=2)
    expected = {**IDS, "kind": "callback", "attempt": 2, "outcome": "done", "url": "https://sender.example/results"}
    assert facts(attempt, *expected, "code_class") == expected | {"code_class": None}


@pytest.mark.parametrize(
    ("reply", "outcome", "reason"),
    [
        (OK, "done", "answered"),
        (Response(500, {}, b""), "retry", "status"),
        (Response(410, {}, b""), "dead", "gone"),
        (SHORT, "released", None),
    ],
)
async def test_a_ping_at_a_receiver(rig: Rig, reply: Exchange, outcome: str, reason: str | None) -> None:
    worker, work = to_receiver(rig)
    work.pinging, work.token = True, b"\x01"
    attempt = await told(rig, worker, work, reply)
    expected = {"kind": "ping", "receiver": "ci", "source_id": None, "message_id": None, "identity": None}
    assert facts(attempt, *expected) == expected
    assert attempt.outcome == outcome
    assert reason is None or attempt.reason == reason
    assert attempt.next_attempt_at is None or outcome == "released"


async def test_a_ping_at_a_callback(rig: Rig) -> None:
    worker, work = to_sender(rig)
    work.pinging, work.token = True, b"\x01"
    attempt = await told(rig, worker, work, OK)
    expected = {"kind": "ping", "receiver": None, "source_id": "github", "message_id": None}
    assert facts(attempt, *expected) == expected


async def test_what_is_decided_without_a_request_is_not_told(rig: Rig) -> None:
    worker, work = to_receiver(rig, replace(PLAIN, on_ambiguous="dead_letter"))
    work.in_doubt = True
    assert isinstance(await stepped(worker, work), Dead)
    assert rig.journal.attempts == []


# what of it


def attempt(
    exchange: Exchange = OK, decision: Decision = DELIVERED, endpoint: Endpoint = WARY, **request: Any
) -> Attempt:
    asked = Request(**{"method": "POST", "url": endpoint.url, "headers": (), "body": b"{}"} | request)
    about = RequestPurpose("post", "r:ci", endpoint, DELIVERY)
    return attempt_of(ended_request(about, asked, exchange, decision, started_at=NOW, seconds=1.0))


def test_no_secret_is_told() -> None:
    again = Later(5.0, "status", Change.RETRY)
    headers = (*WARY.headers, ("x-api-key", "of the sender"), ("x-note", f"it is {SECRET}"))
    response = Response(500, {"set-cookie": "a=b", "x-echo": SECRET}, f"unknown key {SECRET}".encode())
    found = [
        attempt(response, again, headers=headers),
        attempt(NoResponse("tls", f"no certificate for {SECRET}", sent=False), again),
    ]
    assert SECRET not in str(found)
    assert found[0].url == "https://ci.example/hooks?key=********"
    assert set(found[0].headers.values()) == {"********", "it is ********"}
    assert found[0].response == AttemptResponse(
        500, {"set-cookie": "********", "x-echo": "********"}, "unknown key ********"
    )


def test_of_a_large_body_little_is_kept_and_less_is_told() -> None:
    body = b"x" * 100_000
    made = ended_request(
        RequestPurpose("post", "r:ci", WARY, DELIVERY),
        Request("POST", "u", (), body),
        Response(200, {}, body),
        DELIVERED,
        started_at=NOW,
        seconds=0.0,
    )
    assert isinstance(made.exchange, Response)
    assert len(made.exchange.body) == KEPT_BODY
    response = attempt_of(made).response
    assert response is not None
    assert (len(response.body), response.truncated) == (SHOWN_BODY, True)


def test_the_class_is_that_of_the_receivers_own_list() -> None:
    codes: CodeClasses = {418: "delivered"}
    assert attempt(Response(418, {}, b""), endpoint=replace(WARY, codes=codes)).code_class == "delivered"


def test_a_wait_without_an_end_has_no_next_attempt() -> None:
    assert attempt(decision=Later(inf, "waiting")).next_attempt_at is None
    assert attempt(decision=Later(0.0, "again")).next_attempt_at is None
