"""Tests of the test route of a receiver: it sends one signed ping, and returns any response to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from click.testing import Result

from relay.api.server import ApiServer
from relay.api.shares import LEAST_BETWEEN_S, Turns
from relay.cli.receivers import receivers
from relay.config.receivers_file import parse_receivers_file
from relay.delivery.guard import AddressGuard
from relay.delivery.lean_transport import LeanTransport
from relay.domain.exchange import NoResponse, Response
from relay.domain.hold import Hold
from relay.domain.receiver import Endpoint, Receiver, SigningPolicy, Source
from relay.domain.signing import verify_standard
from relay.sink import Sink
from relay.state.attempts import Change
from tests.contract.state_contract import outcome, row
from tests.contract.transport_rig import LOOPBACK
from tests.integration.api_rig import NOW, Rig, document, problem, run_command, running_api
from tests.servers.http import started

SECRET = "whsec_Y2FuYXJ5LTQ3MTEtY2FuYXJ5LTQ3MTEtY2FuYXJ5ISE="
TOKEN = "canary-token-4711"
CI = Endpoint(
    "https://receiver.example/hooks",
    signing=SigningPolicy(secrets=(SECRET,)),
    headers=(("authorization", f"Bearer {TOKEN}"),),
    timeout=7,
    secrets=(SECRET, TOKEN),
)
PATH = "/v1/receivers/ci/test"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api() as running:
        running.directory.receivers["ci"] = Receiver("ci", CI)
        yield running


async def test_what_was_sent_is_a_signed_ping_and_is_shown_with_what_came_back(rig: Rig) -> None:
    rig.transport.reply = Response(201, {"x-by": "ci"}, f"hello {TOKEN}".encode())
    rig.transport.seconds = 0.25
    reply = await rig.request("POST", PATH)
    told = document(reply)
    [sent] = rig.transport.requests
    assert verify_standard([SECRET], dict(sent.headers), sent.body, NOW)
    assert json.loads(sent.body) == {"type": "relay.ping", "test": True, "receiver": "ci"}
    assert (sent.method, sent.url, sent.timeout_s) == ("POST", CI.url, 7)
    assert ("authorization", f"Bearer {TOKEN}") in sent.headers
    assert (told["name"], told["failure"], told["duration_ms"]) == ("ci", None, 250.0)
    assert told["response"] == {"status": 201, "headers": {"x-by": "ci"}, "body": "hello ********", "truncated": False}
    assert (told["request"]["url"], told["request"]["body"]) == (CI.url, sent.body.decode())
    assert told["request"]["headers"] == dict(sent.headers) | {"authorization": "********"}
    assert TOKEN not in reply.text
    assert SECRET not in reply.text


@pytest.mark.parametrize(
    "reply", [Response(410, {}, b"gone"), Response(500, {}, b""), NoResponse("refused", "nobody there", sent=False)]
)
async def test_what_comes_of_it_counts_for_nothing(rig: Rig, reply: Response | NoResponse) -> None:
    rig.transport.reply = reply
    before = document(await rig.get("/v1/receivers/ci"))
    for _ in range(12):
        rig.clock.now += LEAST_BETWEEN_S
        told = document(await rig.request("POST", PATH))
        assert (told["response"] is None) is isinstance(reply, NoResponse)
        assert (told["failure"] is None) is isinstance(reply, Response)
    assert document(await rig.get("/v1/receivers/ci")) == before


def own_request(entry: str) -> Receiver:
    file = parse_receivers_file(f"receivers: {{ci: {{post_endpoint: 'https://ci.example/jobs', request: {entry}}}}}")
    return file.resolve({"TOKEN": TOKEN})[0]["ci"]


async def test_a_receiver_with_requests_of_its_own_gets_a_sample_message_in_its_form(rig: Rig) -> None:
    rig.directory.receivers["ci"] = own_request(
        "{method: PUT, query: {t: '${TOKEN}'},"
        " json: {ref: '${{ payload.ref }}', by: '${{ message.type }}', t: '${TOKEN}'}}"
    )
    sample = {"payload": {"ref": "main"}, "type": "push"}
    reply = await rig.request("POST", PATH, json.dumps(sample).encode(), {"content-type": "application/json"})
    shown = document(reply)["request"]
    [sent] = rig.transport.requests
    assert (sent.method, sent.url) == ("PUT", f"https://ci.example/jobs?t={TOKEN}")
    assert json.loads(sent.body) == {"ref": "main", "by": "push", "t": TOKEN}
    assert (shown["method"], shown["url"]) == ("PUT", "https://ci.example/jobs?t=********")
    assert TOKEN not in reply.text


@pytest.mark.parametrize(
    ("body", "detail"),
    [(b"", "give a `payload`"), (b'{"payload": {}}', "request.json.ref: `payload.ref`: there is no field 'ref'")],
)
async def test_nothing_is_sent_if_its_request_cannot_be_made(rig: Rig, body: bytes, detail: str) -> None:
    rig.directory.receivers["ci"] = own_request("{json: {ref: '${{ payload.ref }}'}}")
    reply = await rig.request("POST", PATH, body, {"content-type": "application/json"})
    assert detail in problem(reply, 400, "invalid-request")["detail"]
    assert rig.transport.requests == []


async def test_any_receiver_can_get_a_sample_message(rig: Rig) -> None:
    reply = await rig.request("POST", PATH, b'{"payload": [1]}', {"content-type": "application/json"})
    assert document(reply)["request"]["body"] == "[1]"
    assert rig.transport.requests[0].method == "POST"


async def test_one_that_is_paused_is_tested_as_well(rig: Rig) -> None:
    await rig.state.hold("r:ci", Hold("paused", NOW, ""))
    assert document(await rig.request("POST", PATH))["response"]["status"] == 204


async def test_one_at_a_time_and_one_a_second(rig: Rig) -> None:
    rig.transport.reply = None
    first = asyncio.create_task(rig.request("POST", PATH))
    await rig.transport.asked.wait()
    refused = await rig.request("POST", PATH)
    problem(refused, 429, "too-many-requests")
    assert refused.headers["Retry-After"] == "1"
    [done] = rig.transport.waiting
    done(Response(204, {}, b""))
    assert (await first).status == 200
    rig.transport.reply = Response(204, {}, b"")
    assert (await rig.request("POST", PATH)).status == 429
    assert (await rig.request("POST", "/v1/receivers/cd/test")).status == 200
    rig.clock.now += LEAST_BETWEEN_S
    assert (await rig.request("POST", PATH)).status == 200


async def test_a_callback_gets_one_signed_ping(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    name, test = 'a/"b', "/v1/sources/a%2F%22b/callback/test"
    callbacks = {
        name: replace(CI, url="https://sender.example/results"),
        "own": own_request("{json: {state: '${{ delivery.outcome }}'}}").post,
    }
    source_of = rig.directory.source

    def own(source_id: str) -> Source:
        return replace(source_of(source_id), callback=callbacks.get(source_id))

    monkeypatch.setattr(rig.directory, "source", own)
    rig.transport.reply = Response(422, {}, f"no {TOKEN}".encode())
    told = document(await rig.request("POST", test))
    [sent] = rig.transport.requests
    assert verify_standard([SECRET], dict(sent.headers), sent.body, NOW)
    assert json.loads(sent.body) == {"type": "relay.ping", "test": True, "source": name}
    assert (told["name"], told["response"]["status"], told["failure"]) == (name, 422, None)
    assert told["request"]["url"] == "https://sender.example/results"
    assert TOKEN not in json.dumps(told)
    assert (await rig.request("POST", test)).status == 429
    assert (await rig.request("POST", PATH)).status == 200
    problem(await rig.request("POST", "/v1/sources/none/callback/test"), 404, "not-found")
    found = problem(await rig.request("POST", "/v1/sources/own/callback/test"), 400, "invalid-request")
    assert "no ping can fill in: replay a result" in found["detail"]


def test_a_receiver_is_tested_once_at_a_time_and_those_that_are_over_are_forgotten() -> None:
    turns = Turns()
    assert [turns.take(name, 0) for name in ("r-0", "r-1", "r-0")] == [0.0, 0.0, LEAST_BETWEEN_S]
    turns.end("r-0", 5)
    assert (turns.take("r-0", 5.25), turns.take("r-1", 99)) == (0.75, LEAST_BETWEEN_S)
    turns.end("r-1", 6)
    assert turns.take("r-0", 6) == 0


async def test_who_cannot_be_tested(rig: Rig) -> None:
    rig.directory.refused["bad"] = "the environment variable X is not set"
    problem(await rig.request("POST", "/v1/receivers/nobody/test"), 404, "not-found")
    found = problem(await rig.request("POST", "/v1/receivers/bad/test"), 422, "invalid-receiver")
    assert "variable X is not set" in found["detail"]
    problem(await rig.request("POST", f"{PATH}?x=1"), 400, "invalid-request")
    assert rig.transport.requests == []


@asynccontextmanager
async def through(rig: Rig, guard: AddressGuard) -> AsyncIterator[str]:
    """The URL of an API that sends by the transport of deliveries."""
    transport = LeanTransport(guard)
    await transport.start()
    server = ApiServer(replace(rig.context, transport=transport))
    try:
        yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    finally:
        await server.stop()
        await transport.close()


async def test_it_goes_the_way_of_deliveries_not_to_private_networks_and_after_no_redirect(rig: Rig) -> None:
    sink = Sink("redirect")
    async with started(sink):
        rig.directory.receivers |= {"ci": Receiver("ci", Endpoint(sink.url))}
        async with through(rig, LOOPBACK) as url, rig.client.post(url + PATH) as reply:
            told = await reply.json()
        assert (told["response"]["status"], told["failure"], sink.redirects_followed) == (307, None, 0)
        async with through(rig, AddressGuard([])) as url, rig.client.post(url + PATH) as reply:
            told = await reply.json()
        assert (told["response"], told["failure"]["kind"], told["failure"]["sent"]) == (None, "blocked", False)
        assert "127.0.0.1" in told["failure"]["detail"]
        assert len(sink.received) == 1


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (Response(200, {"x-by": "ci"}, b"fine\x1b[2J"), 0, ["< 200 in 0 ms", "< x-by: ci", "fine\\x1b[2J"]),
        (Response(422, {}, b""), 1, ["< 422 in 0 ms"]),
        (Response(302, {}, b"", truncated=True), 1, ["< 302 in 0 ms", "(there is more)"]),
        (NoResponse("refused", "nobody there", sent=False), 1, ["no response in 0 ms: POST https://", "nobody there"]),
    ],
)
async def test_the_command_shows_both_and_ends_with_1_unless_it_is_a_2xx(
    rig: Rig, reply: Response | NoResponse, code: int, words: list[str]
) -> None:
    rig.transport.reply = reply
    result = await command(rig, "test", "ci")
    assert result.exit_code == code, result.output
    for word in ("> POST https://receiver.example/hooks", "> authorization: ********", "relay.ping", *words):
        assert word in result.output
    assert TOKEN not in result.output
    rig.clock.now += LEAST_BETWEEN_S
    result = await command(rig, "test", "ci", "-o", "json")
    assert (result.exit_code, set(json.loads(result.output))) == (
        code,
        {"name", "request", "response", "failure", "duration_ms"},
    )


async def command(rig: Rig, *words: str) -> Result:
    return await run_command(rig.url, receivers, *words)


@pytest.mark.parametrize(("status", "probe_in_s"), [(204, 0.0), (500, 30.0)])
async def test_one_that_takes_a_test_is_not_called_offline_for_long(rig: Rig, status: int, probe_in_s: float) -> None:
    for number in range(3):
        await rig.state.settle([outcome(row(number), Change.RETRY, b"", healthy=False)])
    assert (await rig.state.openings(["r:ci"]))[0].probe_in_s == 30.0
    rig.transport.reply = Response(status, {}, b"")
    await rig.request("POST", PATH)
    assert (await rig.state.openings(["r:ci"]))[0].probe_in_s == probe_in_s
