"""Chains of status GETs, as in Jenkins: a queue item, then its build."""

import json
from typing import Any

import pytest
from msgspec import structs

from relay.config.receivers_file import parse_receivers_file
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.outcome import Answered
from relay.domain.receiver import Receiver
from relay.domain.status import StillRunning
from relay.domain.status_chain import (
    MOST_CHAIN,
    can_be_asked_first,
    decode_chain,
    first_position,
    next_position,
    read_step,
)
from relay.engine.decision import Dead, Decision, Done, Later
from relay.state.attempts import Change
from relay.state.rows import Result, Stage
from tests.expecting import expect, present
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, TOPICS, Rig, hop_record, stepped
from workers.from_receiver_async import Awaited, FromReceiverAsync
from workers.to_receiver import ToReceiver

JENKINS = """
receivers:
  ci:
    post_endpoint: https://ci.example/job/app/buildWithParameters
    allow_origins: [https://builds.example]
    headers: {authorization: Basic secret}
    poll: {base: 2s, factor: 2, cap: 60s}
    status_steps:
      - {url: "${{ response.headers.location }}api/json", until: "has(body.executable)"}
      - url: "${{ steps[0].body.executable.url }}api/json"
        until: "!body.building"
        unknown: "response.status == 404"
        answer: {json: {result: "${{ body.result }}", number: "${{ steps[0].body.executable.number }}"}}
        poll: {base: 5s}
"""
ITEM = "https://ci.example/queue/item/7/"
BUILD = "https://ci.example/job/app/9/"


def receiver(text: str = JENKINS) -> Receiver:
    return parse_receivers_file(text).resolve({})[0]["ci"]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def worker(rig: Rig, known: Receiver | None = None) -> FromReceiverAsync:
    rig.know(known or receiver())
    return FromReceiverAsync(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside)


async def posted(rig: Rig, status: int = 202, **headers: str) -> tuple[Decision, Result | None]:
    rig.know(receiver())
    rig.reply(status, b"", **headers)
    step = ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)
    decision = await stepped(step, step.admit(hop_record(TOPICS.to_receiver("ci"), Hop(DELIVERY))))
    return decision, decision.result if isinstance(decision, Done) else None


async def awaited(rig: Rig, location: str = ITEM) -> Awaited:
    """The delivery after a 202 with this `Location`, as its record on the pending topic says."""
    _, result = await posted(rig, location=location)
    assert result is not None
    hop = Hop(DELIVERY, attempt=1, status_url=result.status_url, chain=result.chain, not_asked=result.detail)
    return worker(rig).admit(hop_record(TOPICS.pending("ci"), decode_hop(encode_hop(hop))))


async def heard(rig: Rig, work: Awaited, status: int, body: bytes = b"", **headers: str) -> Decision:
    rig.http.replies.clear()
    rig.reply(status, body, **headers)
    work.polls += 1
    return await stepped(worker(rig), work)


QUEUED = b'{"why": "waiting"}'
STARTED = b'{"executable": {"number": 9, "url": "%s"}}' % BUILD.encode()


async def test_a_chain_goes_from_the_post_to_the_answer(rig: Rig) -> None:
    work = await awaited(rig)
    assert work.status_url == ITEM + "api/json"
    assert await heard(rig, work, 200, QUEUED) == Later(4.0, "still working", up=True)
    moved = await heard(rig, work, 200, STARTED)
    assert moved == Later(0.0, "step 2 of 2", change=Change.STEP, up=True, park=True)
    assert work.status_url == BUILD + "api/json"
    assert await heard(rig, work, 200, b'{"building": true}') == Later(7.5, "still working", up=True)
    decision = await heard(rig, work, 200, b'{"building": false, "result": "SUCCESS"}')
    answer = Result("answered", 200, "application/json", b'{"result":"SUCCESS","number":9}')
    assert decision == Done(stage=Stage.PUBLISHED, result=answer, up=True)
    assert {request.url for request in rig.http.requests[1:]} == {ITEM + "api/json", BUILD + "api/json"}


LISTED = """
receivers:
  ci:
    post_endpoint: https://ci.example/builds
    status_steps:
      - {url: "${{ post.headers.location }}", until: "has(body.started)"}
      - url: https://ci.example/builds
        until: body.builds.exists(each, each.id == post.body.id && each.done)
        answer: {json: "${{ body.builds.filter(each, each.id == post.body.id)[0] }}"}
"""


async def test_conditions_and_the_answer_know_the_response_to_the_post(rig: Rig) -> None:
    known = receiver(LISTED)
    whole = Response(202, {"location": ITEM, "other": "x"}, b'{"id": 7, "log": "long"}')
    position = first_position(known, Hop(DELIVERY, attempt=1), b"{}", whole)
    assert position.url == ITEM
    hop = Hop(DELIVERY, attempt=1, status_url=position.url, chain=position.text)
    assert decode_chain(hop.chain).response == {"body": {"id": 7}}
    position = next_position(known, hop, b"{}", Response(200, {}, b'{"started": true}'), polls=1)
    hop = structs.replace(hop, status_url=position.url, chain=position.text)
    running = Response(200, {}, b'{"builds": [{"id": 6, "done": true}, {"id": 7, "done": false}]}')
    assert isinstance(read_step(running, known, hop, b"{}", now=0.0), StillRunning)
    ended = Response(200, {}, b'{"builds": [{"id": 6, "done": false}, {"id": 7, "done": true}]}')
    answer = expect(Answered, read_step(ended, known, hop, b"{}", now=0.0))
    assert json.loads(answer.body) == {"id": 7, "done": True}


def test_a_receiver_whose_first_step_needs_the_response_to_the_post_cannot_be_asked_without_it() -> None:
    assert not can_be_asked_first(receiver(LISTED))
    assert can_be_asked_first(receiver(LISTED.replace("${{ post.headers.location }}", ITEM)))


async def test_the_position_is_in_the_record_that_is_parked(rig: Rig) -> None:
    work = await awaited(rig)
    await heard(rig, work, 200, STARTED)
    again = worker(rig).admit(work.record)
    assert again.status_url == BUILD + "api/json"
    decision = expect(Done, await heard(rig, again, 200, b'{"building": false, "result": "FAILURE"}'))
    assert present(decision.result).body == b'{"result":"FAILURE","number":9}'


async def test_a_step_that_ended_is_no_unknown_message(rig: Rig) -> None:
    work = await awaited(rig)
    await heard(rig, work, 200, STARTED)
    assert await heard(rig, work, 404, b"") == Later(7.5, "the receiver says that it never saw it", up=True)
    assert work.forgotten


@pytest.mark.parametrize(("status", "kind"), [(500, "status"), (401, "status"), (503, "not_now")])
async def test_conditions_do_not_count_for_error_pages(rig: Rig, status: int, kind: str) -> None:
    work = await awaited(rig)
    await heard(rig, work, 200, STARTED)
    decision = expect(Later, await heard(rig, work, status, b'{"building": false, "result": "SUCCESS"}'))
    assert decision.reason == kind


async def test_a_condition_that_cannot_be_evaluated_is_asked_again(rig: Rig) -> None:
    work = await awaited(rig)
    await heard(rig, work, 200, STARTED)
    decision = expect(Later, await heard(rig, work, 200, b'{"state": 1}'))
    assert decision.reason == "expression"
    assert "status_steps[1].until: `!body.building`: there is no field 'building'" in (decision.detail or "")
    assert await heard(rig, work, 202) == Later(11.25, "still working", up=True)


async def test_an_answer_that_cannot_be_made_is_a_dead_letter(rig: Rig) -> None:
    work = await awaited(rig)
    await heard(rig, work, 200, STARTED)
    decision = expect(Dead, await heard(rig, work, 200, b'{"building": false}'))
    assert decision.reason == "invalid"
    assert "status_steps[1].answer.json.result" in decision.detail


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (None, "there is no field 'location'"),
        ("https://evil.example/x/", "https://evil.example is no origin that it may lead to"),
        ("https://ci.example@evil.example/", "is not a URL that can be requested"),
        ("ftp://ci.example/x/", "is not a URL that can be requested"),
    ],
)
async def test_a_ticket_that_cannot_be_followed_waits_for_the_callback(
    rig: Rig, location: str | None, why: str
) -> None:
    _, result = await posted(rig) if location is None else await posted(rig, location=location)
    assert result is not None
    assert result.status_url is None
    assert why in (result.detail or "")


async def test_a_next_step_that_cannot_be_followed_waits_for_the_callback(rig: Rig) -> None:
    work = await awaited(rig)
    decision = await heard(rig, work, 200, b'{"executable": {"number": 9, "url": "https://evil.example/9/"}}')
    assert isinstance(decision, Later)
    assert decision.park
    assert work.status_url is None
    assert "is no origin that it may lead to" in work.not_asked


async def test_an_allowed_origin_gets_no_credentials(rig: Rig) -> None:
    work = await awaited(rig, "https://builds.example/queue/7/")
    await heard(rig, work, 200, QUEUED)
    request = rig.http.requests[-1]
    assert request.url == "https://builds.example/queue/7/api/json"
    assert "authorization" not in dict(request.headers)
    await heard(rig, await awaited(rig), 200, QUEUED)
    assert dict(rig.http.requests[-1].headers)["authorization"] == "Basic secret"


@pytest.mark.parametrize("number", ["9" * MOST_CHAIN, "\u00e9" * (MOST_CHAIN // 2)])
async def test_what_a_hop_carries_is_bounded(rig: Rig, number: str) -> None:
    work = await awaited(rig)
    body = b'{"executable": {"number": "%s", "url": "%s"}}' % (number.encode(), BUILD.encode())
    expect(Later, await heard(rig, work, 200, body))
    assert "later steps need" in work.not_asked


async def test_only_what_later_steps_need_is_carried(rig: Rig) -> None:
    work = await awaited(rig)
    large = b'{"log": "%s", "executable": {"number": 9, "url": "%s"}}' % (b"x" * 100_000, BUILD.encode())
    await heard(rig, work, 200, large)
    chain = decode_chain(work.hop.chain)
    assert (chain.step, chain.polls, chain.response) == (1, 1, {})
    assert chain.steps == ({"body": {"executable": {"number": 9}}},)


ASKED_FIRST = """
receivers:
  ci:
    post_endpoint: https://ci.example/builds
    status_steps:
      - {url: "https://ci.example/builds/${{ message.id }}", until: "body.state == 'passed'"}
"""


async def doubtful(rig: Rig, reply: tuple[int, bytes], text: str = ASKED_FIRST) -> Decision:
    rig.know(receiver(text))
    rig.reply(*reply)
    step = ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)
    work = step.admit(hop_record(TOPICS.to_receiver("ci"), Hop(DELIVERY)))
    work.in_doubt, work.attempts = True, 1
    return await stepped(step, work)


async def test_a_chain_resolves_a_doubt(rig: Rig) -> None:
    answered = expect(Done, await doubtful(rig, (200, b'{"state": "passed"}')))
    assert answered.stage is Stage.PUBLISHED
    running = expect(Done, await doubtful(Rig(), (200, b'{"state": "running"}')))
    assert running.stage is Stage.AWAITING
    assert present(running.result).status_url == "https://ci.example/builds/m-1"
    assert "Resend" in repr(await doubtful(Rig(), (404, b"")))


async def test_an_id_that_leads_elsewhere_is_dead_before_the_post(rig: Rig) -> None:
    rig.know(receiver(ASKED_FIRST))
    step = ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)
    hop = Hop(DELIVERY._replace(message_id=".."))
    decision = expect(Dead, step.overdue(step.admit(hop_record(TOPICS.to_receiver("ci"), hop))))
    assert decision.reason == "invalid"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (NoResponse("refused", "connection refused", sent=False), "refused"),
        (Response(200, {}, STARTED, truncated=True, broken=True), "cut_off"),
    ],
)
async def test_no_whole_response_is_asked_again(rig: Rig, reply: Exchange, reason: str) -> None:
    work = await awaited(rig)
    rig.http.replies = [reply]
    decision = expect(Later, await stepped(worker(rig), work))
    assert decision.reason == reason


def test_the_deadline_of_a_chain_is_a_failure(rig: Rig) -> None:
    hop = Hop(DELIVERY, attempt=1, status_url=ITEM)
    step = worker(rig)
    work: Any = step.admit(hop_record(TOPICS.pending("ci"), hop))
    rig.clock.now += 4_000
    decision = expect(Dead, step.overdue(work))
    assert decision.reason == "answer_timeout"
