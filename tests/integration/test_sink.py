"""Tests of the sink over real connections: each mode, what it records, and its command."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from urllib.parse import quote

import pytest
from aiohttp import (
    ClientConnectionError,
    ClientOSError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ServerDisconnectedError,
    web,
)
from yarl import URL

from relay.domain.batch import CONTENT_TYPES, BatchEvent, encoded_event
from relay.domain.errors import UserError
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import BatchFormat, Endpoint, SigningPolicy
from relay.domain.requests import ping_request
from relay.domain.signing import sign
from relay.sink import Behaviour, ReceivedPost, Sink
from relay.sink.behaviour import Knobs, reaction, time_to_respond
from tests.servers.http import serving, started

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"ref": "refs/heads/main"}'


@pytest.mark.parametrize(
    ("prefer", "delay_s", "expected"),
    [
        ("respond-async, wait=5", 6.0, ("later", 5.0)),
        ("respond-async, wait=5", 5.0, ("answer", 5.0)),
        ("wait=5", 6.0, ("answer", 6.0)),
        ("respond-async", 6.0, ("answer", 6.0)),
    ],
)
def test_an_answer_that_takes_longer_than_is_waited_for_comes_later(
    prefer: str, delay_s: float, expected: tuple[str, float]
) -> None:
    assert time_to_respond(Behaviour(delay_s=delay_s), "answer", prefer) == expected
    assert time_to_respond(Behaviour(delay_s=delay_s), "fail", prefer) == ("fail", delay_s)


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    receiver = Sink()
    async with started(receiver):
        yield receiver


def headers(message_id: str = "gh-1", source_id: str = "github", **more: str) -> dict[str, str]:
    return {
        "webhook-id": f"msg_{source_id}_{message_id}".encode().hex(),
        "ce-id": quote(message_id, safe=""),
        "ce-source": quote(source_id, safe=""),
        "ce-type": "push",
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


async def post(client: ClientSession, sink: Sink, **fields: str) -> ClientResponse:
    response = await client.post(sink.url, data=BODY, headers=headers(**fields), allow_redirects=False)
    await response.read()
    return response


async def get_status(client: ClientSession, sink: Sink, message_id: str = "gh-1") -> ClientResponse:
    url = sink.status_url_template.replace("{message_id}", quote(message_id, safe=""))
    response = await client.get(URL(url, encoded=True))
    await response.read()
    return response


async def test_an_arrival_tells_what_came(client: ClientSession, sink: Sink) -> None:
    response = await post(client, sink, relay_attempt="3", relay_generation="1", relay_sequence="42")
    assert response.status == 200
    assert await response.json() == {"id": "job-1", "state": "success", "number": 1, "message_id": "gh-1"}
    [arrival] = await sink.wait_for(1)
    assert (arrival.source_id, arrival.message_id, arrival.event_type) == ("github", "gh-1", "push")
    assert (arrival.attempt, arrival.generation, arrival.sequence) == (3, 1, 42)
    assert arrival.body == BODY
    assert arrival.headers["content-type"] == "application/json"
    assert arrival.verified is None
    assert arrival.status == 200
    assert arrival.t_monotonic <= time.monotonic()


async def test_a_post_of_somebody_else_is_taken_too(client: ClientSession, sink: Sink) -> None:
    async with client.post(
        sink.url, data=b"\xff\x00", headers={"relay-attempt": "x", "webhook-id": "msg_1"}
    ) as response:
        assert response.status == 200
    [arrival] = sink.received
    assert (arrival.message_id, arrival.attempt, arrival.generation, arrival.sequence) == ("", 1, 0, None)
    assert arrival.body == b"\xff\x00"
    assert sink.knows("msg_1")


@pytest.mark.parametrize("message_id", ["a/b", "a b%2Fc?d#e", "größe", "..", "a" * 256, '"quoted"'])
async def test_ids_come_through_headers_and_paths_undamaged(client: ClientSession, sink: Sink, message_id: str) -> None:
    await post(client, sink, message_id=message_id, source_id="x/y z")
    assert sink.received[0].message_id == message_id
    assert sink.received[0].source_id == "x/y z"
    assert (await get_status(client, sink, message_id)).status == 200
    async with client.get(sink.url, params={"message_id": message_id}) as response:
        assert response.status == 200


@pytest.mark.parametrize(("signed_with", "verified"), [(SECRET, True), ("another secret", False), (None, False)])
async def test_signatures_are_checked(client: ClientSession, signed_with: str | None, verified: bool) -> None:
    receiver = Sink(secret=SECRET)
    async with started(receiver):
        policy = SigningPolicy(secrets=(signed_with,) if signed_with else ())
        signature = sign(policy, webhook_id="msg_1", timestamp=int(time.time()), body=BODY)
        async with client.post(receiver.url, data=BODY, headers=dict(signature)) as response:
            assert response.status == 200
    assert [arrival.verified for arrival in receiver.received] == [verified]


@pytest.mark.parametrize(("query", "verified"), [("?a=%20", True), ("?a=+", False)])
async def test_http_message_signatures_are_checked(client: ClientSession, query: str, verified: bool) -> None:
    receiver = Sink(secret=SECRET)
    async with started(receiver):
        signing = SigningPolicy(("http-message",), (SECRET,))
        sent = ping_request(Endpoint(f"{receiver.url}?a=%20", signing), "1", now=time.time(), user_agent="relay")
        url = URL(receiver.url + query, encoded=True)
        async with client.post(url, data=sent.body, headers=dict(sent.headers)) as response:
            assert response.status == 200
    assert [arrival.verified for arrival in receiver.received] == [verified]


async def test_later_answers_after_so_many_polls(client: ClientSession, sink: Sink) -> None:
    sink.become("later", later_polls=2, retry_after=3, location=True)
    response = await post(client, sink)
    assert response.status == 202
    assert response.headers["retry-after"] == "3"
    assert response.headers["location"] == f"{sink.url}/gh-1"
    assert (await response.json())["state"] == "pending"
    polled = [await get_status(client, sink) for _ in range(4)]
    assert [one.status for one in polled] == [202, 202, 200, 200]
    assert (await polled[-1].json())["state"] == "success"
    assert [poll.status for poll in await sink.noted(sink.polls, 4)] == [202, 202, 200, 200]


async def test_later_answers_not_before_its_time(client: ClientSession, sink: Sink) -> None:
    sink.become("later", later_polls=0, answer_after_s=3600)
    await post(client, sink)
    assert (await get_status(client, sink)).status == 202


async def test_an_unknown_message_is_unknown(client: ClientSession, sink: Sink) -> None:
    assert (await get_status(client, sink, "never-sent")).status == 404
    assert not sink.knows("never-sent")
    async with client.get(sink.url) as response:
        assert response.status == 400


async def test_a_message_that_comes_twice_is_one_job(client: ClientSession, sink: Sink) -> None:
    first, second = await post(client, sink), await post(client, sink)
    assert await first.json() == await second.json()
    other = await post(client, sink, source_id="gitlab")
    assert (await other.json())["number"] == 2
    assert len(sink.received) == 3


async def test_the_answer_is_posted_to_the_answer_url(client: ClientSession, sink: Sink) -> None:
    answers: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        answers.append(await request.read())
        return web.Response(status=204)

    async with serving(take) as url:
        sink.become("later", callback=True)
        for _ in range(2):  # the second is a duplicate, and leads to no callback
            await post(client, sink, relay_answer_url=f"{url}/v1/answers/t1")
        await post(client, sink, message_id="gh-2", relay_answer_url="http://127.0.0.1:1/nobody")
        sent = await sink.noted(sink.callbacks, 2)
    assert {(one.message_id, one.status) for one in sent} == {("gh-1", 204), ("gh-2", None)}
    assert [json.loads(answer)["message_id"] for answer in answers] == ["gh-1"]


@pytest.mark.parametrize("processed", [False, True])
async def test_a_failure_may_come_after_the_work_was_done(client: ClientSession, sink: Sink, processed: bool) -> None:
    sink.become("fail", fail_status=503, retry_after=7, process_before_fail=processed)
    response = await post(client, sink)
    assert (response.status, response.headers["retry-after"]) == (503, "7")
    assert sink.knows("gh-1") is processed
    assert (await get_status(client, sink)).status == (200 if processed else 404)


async def test_a_receiver_recovers_after_its_first_failures(client: ClientSession, sink: Sink) -> None:
    sink.become("fail", fail_first=2)
    assert [(await post(client, sink)).status for _ in range(4)] == [500, 500, 200, 200]
    sink.become("later", fail_first=1, fail_status=502)
    assert [(await post(client, sink)).status for _ in range(2)] == [502, 202]


async def test_a_share_of_posts_fails(client: ClientSession) -> None:
    samples = iter([0.1, 0.5, 0.29, 0.3])
    receiver = Sink(fail_rate=0.3, fail_status=504, chance=lambda: next(samples))
    async with started(receiver):
        assert [(await post(client, receiver)).status for _ in range(4)] == [504, 200, 504, 200]


async def test_reject_redirect_and_echo(client: ClientSession, sink: Sink) -> None:
    sink.become("reject")
    assert (await post(client, sink)).status == 422
    sink.become("redirect")
    response = await post(client, sink)
    assert response.status == 307
    assert sink.redirects_followed == 0
    async with client.post(response.headers["location"]) as followed:
        assert followed.status == 200
    assert sink.redirects_followed == 1
    sink.become("echo")
    response = await post(client, sink)
    assert await response.read() == BODY
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("processed", [False, True])
async def test_a_reset_leaves_the_sender_in_doubt(client: ClientSession, sink: Sink, processed: bool) -> None:
    sink.become("reset", process_before_fail=processed)
    with pytest.raises((ClientOSError, ServerDisconnectedError)):
        await post(client, sink)
    assert [arrival.status for arrival in sink.received] == [None]
    assert sink.knows("gh-1") is processed


async def test_a_hanging_post_is_recorded_and_ends_with_the_sink(client: ClientSession, sink: Sink) -> None:
    sink.become("hang")
    hanging = asyncio.create_task(post(client, sink))
    await sink.wait_for(1)
    assert not hanging.done()
    await sink.stop()
    with pytest.raises(ClientConnectionError):
        await hanging


async def test_a_delay_holds_the_answer_but_not_the_work(client: ClientSession, sink: Sink) -> None:
    sink.become(delay_s=3600)
    waiting = asyncio.create_task(post(client, sink))
    await sink.wait_for(1)
    assert sink.knows("gh-1")
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_answer_may_be_large_or_cut(client: ClientSession, sink: Sink) -> None:
    sink.become(answer_size=100_000)
    response = await post(client, sink)
    assert len(await response.read()) == 100_000
    assert (await response.json())["state"] == "success"
    sink.become(truncate=True)
    with pytest.raises(ClientPayloadError):
        await post(client, sink)


async def test_a_receiver_comes_back_on_its_port_and_remembers(client: ClientSession, sink: Sink) -> None:
    url = sink.url
    await post(client, sink)
    await sink.stop()
    await sink.stop()
    with pytest.raises(ClientConnectionError):
        await post(client, sink)
    await sink.start(port=int(url.split(":")[2].split("/")[0]))
    assert sink.url == url
    assert (await get_status(client, sink)).status == 200


async def test_it_is_looked_at_and_changed_over_http(client: ClientSession, sink: Sink) -> None:
    base = sink.url.removesuffix("/hooks")
    await post(client, sink)
    response = await client.patch(f"{base}/behaviour", json={"mode": "reject"})
    assert (response.status, (await response.json())["mode"]) == (200, "reject")
    await post(client, sink, relay_generation="1")
    told = await (await client.get(f"{base}/received")).json()
    assert (told["posts"], told["messages"]) == (2, 1)
    assert [(item["answered"], item["generation"], item["body"]) for item in told["items"]] == [
        (422, 1, BODY.decode()),
        (200, 0, BODY.decode()),
    ]
    assert await (await client.get(f"{base}/behaviour")).json() == asdict(sink.behaviour)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b"\xff", "malformed"),
        (b'{"mode": "shout"}', "mode"),
        (b'{"moood": "fail"}', "'moood' is none of"),
        (b'{"fail_status": 99}', "fail_status is 99"),
        (b'{"delay_s": "1"}', "delay_s"),
    ],
)
async def test_a_change_that_makes_no_sense_changes_nothing(
    client: ClientSession, sink: Sink, body: bytes, said: str
) -> None:
    base, before = sink.url.removesuffix("/hooks"), sink.behaviour
    headers = {"content-type": "application/json"}
    response = await client.patch(f"{base}/behaviour", data=body, headers=headers)
    assert response.status == 400
    assert said in (await response.json())["error"]
    assert (await client.patch(f"{base}/behaviour", data=b"{}", headers={"content-type": "text/plain"})).status == 415
    assert sink.behaviour == before


@pytest.mark.parametrize("form", ["cloudevents", "list"])
async def test_a_batch_is_taken_message_by_message(client: ClientSession, sink: Sink, form: BatchFormat) -> None:
    events = [_event(f"m-{n}", source, form) for n, source in enumerate(["a", "b", "a"])]
    headers = {"content-type": CONTENT_TYPES[form], "webhook-id": "batch_1", "relay-batch": "3"}
    async with client.post(sink.url, data=b"[%b]" % b",".join(events), headers=headers) as response:
        assert response.status == 200
    assert [(one.source_id, one.message_id, one.batch) for one in sink.received] == [
        ("a", "m-0", "batch_1"), ("b", "m-1", "batch_1"), ("a", "m-2", "batch_1"),
    ]  # fmt: skip
    assert {one.body for one in sink.received} == {b'{"n": 1}'}
    assert sink.knows("m-2")
    sink.become(verdicts=True, fail_first=1)
    async with client.post(sink.url, data=b"[%b]" % b",".join(events), headers=headers) as response:
        assert response.status == 207
        verdicts = await response.json()
    assert [each["status"] for each in verdicts] == [500, 200, 425], (
        "the last one is behind the first one, which failed"
    )
    async with client.post(sink.url, data=b"{", headers=headers) as response:
        assert response.status == 400


def _event(message_id: str, source: str, form: BatchFormat) -> bytes:
    hop = Hop(DeliveryId("r", source, message_id), event_type="push")
    return encoded_event(BatchEvent(hop, b'{"n": 1}', 1, None, False, None, None), form)


async def test_a_taken_port_is_the_users_mistake(sink: Sink) -> None:
    other = Sink()
    with pytest.raises(UserError, match="--port"):
        await other.start(port=int(sink.url.split(":")[2].split("/")[0]))


async def test_waiting_for_what_does_not_come_ends(sink: Sink) -> None:
    with pytest.raises(TimeoutError):
        await sink.wait_for(1, timeout_s=0.01)


async def test_whoever_watches_is_told(client: ClientSession) -> None:
    seen: list[ReceivedPost] = []
    receiver = Sink(on_arrival=seen.append)
    async with started(receiver):
        await post(client, receiver)
    assert seen == receiver.received


def test_every_knob_is_a_field_of_the_behaviour() -> None:
    assert set(Knobs.__annotations__) == set(Behaviour.__dataclass_fields__) - {"mode"}


def test_without_faults_nothing_fails_whatever_chance_says() -> None:
    assert {reaction(Behaviour(), nth=nth, chance=0.0) for nth in range(1, 100)} == {"answer"}


async def test_the_command_prints_a_line_per_arrival_and_a_summary(client: ClientSession) -> None:
    run = "from relay.cli.sink import sink; sink()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", run, "--port", "0", "--secret", SECRET, "--fail-first", "1", "--status", "503"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().split()[1]
        assert b"status_endpoint" in await process.stdout.readline()
        for attempt in ("1", "2"):
            signature = sign(
                SigningPolicy(secrets=(SECRET,)), webhook_id="msg_1", timestamp=int(time.time()), body=BODY
            )
            sent = {**headers("gh-1\x1b[31m"), **dict(signature), "relay-attempt": attempt}
            async with client.post(url, data=BODY, headers=sent):
                pass
        process.send_signal(signal.SIGTERM)
        rest, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert rest.decode().splitlines() == [
        "<- push gh-1\\x1b[31m attempt 1 503 verified",
        "<- push gh-1\\x1b[31m attempt 2 200 verified",
        "2 POSTs of 1 message: 1 x 200, 1 x 503; 0 status GETs",
    ]
    assert process.returncode == 0
