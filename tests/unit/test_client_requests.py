"""When the client repeats a request, and which errors it raises: against an API that says what the test wants."""

import asyncio
import copy
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from relay.cli.send import Outgoing, sent
from relay.client import (
    Answer,
    ApiError,
    AsyncRelay,
    ClientError,
    DeliveryFailed,
    InvalidArgument,
    NotARelay,
    Relay,
    RelayUnreachable,
    WaitTimeout,
)
from relay.client.http import parameters, path
from relay.receiver import answer, answer_async
from relay.schema.messages import MessageView
from tests.contract.raw_server import replying

PROBLEM = {"type": "/problems/unavailable", "title": "Away", "status": 503, "detail": "later", "errors": []}
SENT: dict[str, object] = {
    "source_id": "app",
    "message_id": "m-1",
    "webhook_id": "msg_1",
    "type": None,
    "status": "arrived",
    "state": "retrying",
    "received_at": None,
    "at": None,
    "duplicate": False,
    "deliveries": [],
}


class Api:
    """Gives its `responses` in turn, the last one again and again. `hold_s`: before each."""

    def __init__(self) -> None:
        self.responses: list[web.Response] = []
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.hold_s = 0.0

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        self.bodies.append(await request.read())
        await asyncio.sleep(self.hold_s)
        found = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        return web.Response(status=found.status, body=found.body, headers=found.headers)

    def says(self, status: int, document: object = PROBLEM, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.responses.append(web.json_response(document, status=status, headers=named))

    def is_another_server(self, status: int = 200) -> None:
        self.responses.append(web.Response(status=status, text="<html>", content_type="text/html"))

    def streams(self, text: str = "event: listening\ndata: {}\n\n", **headers: str) -> None:
        self.responses.append(web.Response(text=text, content_type="text/event-stream", headers=headers))

    def headers(self, name: str) -> list[str | None]:
        """Of each request."""
        return [request.headers.get(name) for request in self.requests]

    @property
    def queries(self) -> list[str]:
        return [request.query_string for request in self.requests]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def relay(api: Api) -> AsyncIterator[AsyncRelay]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", api.handle)
    async with TestServer(app) as server, AsyncRelay(str(server.make_url("")), tries=3) as relay:
        yield relay


async def test_a_busy_relay_is_asked_again_after_its_retry_after(api: Api, relay: AsyncRelay) -> None:
    api.says(503, retry_after="0")
    api.says(429, retry_after="0")
    api.says(200, {"items": [], "cursor": None})
    assert [item async for item in relay.receivers.list()] == []
    assert len(api.requests) == 3


async def test_retry_after_may_be_a_date(api: Api, relay: AsyncRelay) -> None:
    api.says(503, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")
    api.says(200, {})
    await relay.call("POST", "/v1/replays")  # which is repeated only if the relay says when
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("given", "set_to", "words"),
    [
        ("wrong", None, "401 Away: later; the given key is not a valid key of the API at http"),
        ("wrong", "other", "; the given key is not a valid key of the API at http"),
        (None, "wrong", "; RELAY_API_KEY is not a valid key of the API at http"),
        (None, None, "; set RELAY_API_KEY to a key of the API"),
    ],
)
async def test_a_wrong_key_is_named_by_its_origin(
    api: Api, relay: AsyncRelay, monkeypatch: pytest.MonkeyPatch, given: str | None, set_to: str | None, words: str
) -> None:
    monkeypatch.delenv("RELAY_API_KEY", raising=False)
    if set_to is not None:
        monkeypatch.setenv("RELAY_API_KEY", set_to)
    api.says(401)
    async with AsyncRelay(relay.url, given, tries=1) as other:
        with pytest.raises(ApiError, match=words):
            await other.receivers.get("ci")


async def test_it_gives_up_with_the_last_error(api: Api, relay: AsyncRelay) -> None:
    api.says(503, retry_after="0")
    with pytest.raises(ApiError, match="503 Away: later") as raised:
        await relay.receivers.get("ci")
    assert (raised.value.status, raised.value.kind, len(api.requests)) == (503, "unavailable", 3)


async def test_a_message_keeps_its_id_when_it_is_sent_again(api: Api, relay: AsyncRelay) -> None:
    api.says(502)
    with pytest.raises(ApiError):
        await relay.send("app", {"n": 1})
    assert len(api.requests) == 3
    assert len(set(api.headers("ce-id"))) == 1


async def test_a_job_keeps_its_key_when_its_request_is_sent_again(api: Api, relay: AsyncRelay) -> None:
    api.says(503, retry_after="0")
    for _ in range(2):
        with pytest.raises(ApiError):
            await relay.replays.create(receiver="ci", only_failed=False)
    first, second = api.headers("idempotency-key")[:3], api.headers("idempotency-key")[3:]
    assert [len(set(keys)) for keys in (first, second, first + second)] == [1, 1, 2]
    assert None not in first + second


@pytest.mark.parametrize("given", [{}, {"receiver": None}, {"rate": 5, "only_failed": False}])
async def test_everything_is_replayed_or_ended_only_if_that_is_said(
    api: Api, relay: AsyncRelay, given: dict[str, Any]
) -> None:
    for call in (relay.replays.create, relay.replays.discard, relay.replays.cancel):
        with pytest.raises(InvalidArgument, match="everything=True"):
            await call(**given)
    assert not api.requests
    api.says(503)
    with pytest.raises(ApiError):
        await relay.replays.create(everything=True, **given)
    assert api.requests


async def test_what_may_have_been_done_is_not_done_twice(api: Api, relay: AsyncRelay) -> None:
    api.says(502)
    with pytest.raises(ApiError):
        await relay.replays.create(receiver="ci")
    assert len(api.requests) == 1


async def test_a_refusal_is_raised_at_once(api: Api, relay: AsyncRelay) -> None:
    api.says(400, PROBLEM | {"type": "/problems/invalid", "errors": [{"detail": "no", "pointer": "/a"}]})
    with pytest.raises(ApiError) as raised:
        await relay.receivers.create("ci", "nonsense")
    assert (raised.value.kind, len(raised.value.errors), len(api.requests)) == ("invalid", 1, 1)


async def test_a_delivery_that_failed_says_why(api: Api, relay: AsyncRelay) -> None:
    failed = PROBLEM | {"status": 502, "reason": "rejected", "attempts": 1, "last_status": 400, "dead_letter": "/v1/x"}
    api.says(502, failed, relay_outcome="failed")
    with pytest.raises(DeliveryFailed) as raised:
        await relay.wait("app", "m-1")
    assert (raised.value.reason, raised.value.last_status, len(api.requests)) == ("rejected", 400, 1)


async def test_something_else_that_answers_is_named(api: Api, relay: AsyncRelay) -> None:
    api.is_another_server()
    with pytest.raises(RelayUnreachable, match="not a relay"):
        await relay.receivers.get("ci")


async def test_an_answer_that_another_server_takes_is_not_stored(api: Api, relay: AsyncRelay) -> None:
    api.is_another_server()
    with pytest.raises(RelayUnreachable, match="not a relay"):
        await answer_async(f"{relay.url}/v1/answers/t", {})
    api.responses.clear()
    api.says(200, {"status": "recorded", "duplicate": False})
    await answer_async(f"{relay.url}/v1/answers/t", {})


@pytest.mark.parametrize("body", [b'"\xff"', b"[" * 100_000])
async def test_an_error_that_is_no_json_is_of_another_server(api: Api, relay: AsyncRelay, body: bytes) -> None:
    api.responses.append(web.Response(status=500, body=body))
    with pytest.raises(RelayUnreachable, match="not a relay"):
        await relay.receivers.get("ci")


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxy_that_does_not_reach_the_relay_is_no_other_server(
    api: Api, relay: AsyncRelay, status: int
) -> None:
    api.is_another_server(status)
    with pytest.raises(RelayUnreachable, match=f"^GET /v1/receivers/ci: {status} from {relay.url}$") as raised:
        await relay.receivers.get("ci")
    assert raised.value.busy, "a stream may be continued"
    assert not isinstance(raised.value, NotARelay)


async def test_the_tail_connects_again_after_a_stream_that_ended_or_broke(
    api: Api, relay: AsyncRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.api.RECONNECT_S", 0.0)
    api.streams()
    api.says(503)
    api.streams()
    reasons: list[str] = []
    events = relay.tail(reconnect=lambda error: reasons.append(str(error)))
    assert [(await anext(events)).name, (await anext(events)).name] == ["listening", "listening"]
    assert reasons == ["GET /v1/tail: 503 Away: later"]
    assert len(api.requests) == 3


async def test_the_tail_ends_with_its_stream_and_raises_what_it_began_with(api: Api, relay: AsyncRelay) -> None:
    api.streams()
    api.says(503)
    assert [event.name async for event in relay.tail()] == ["listening"]
    with pytest.raises(ApiError, match="503 Away"):
        await anext(relay.tail(reconnect=lambda _error: None))


async def test_nobody_answers() -> None:
    async with AsyncRelay("http://127.0.0.1:9", tries=1) as relay:
        with pytest.raises(RelayUnreachable, match="no relay answers at"):
            await relay.receivers.get("ci")


def test_what_goes_into_a_url() -> None:
    assert path("/v1/sources/{}/messages/{}", "a/b", "ü ?") == "/v1/sources/a%2Fb/messages/%C3%BC%20%3F"
    given = {"receiver": ["a", "b"], "type": None, "failed": True, "dry_run": False, "limit": 5, "id": ""}
    assert parameters(given) == [
        ("receiver", "a"),
        ("receiver", "b"),
        ("failed", "true"),
        ("limit", "5"),
        ("id", ""),
    ]


@pytest.mark.parametrize("url", ["foo", "127.0.0.1:8080", "ftp://x", "http://", "http://127.0.0.1:99999", "http://x\n"])
def test_an_invalid_url_is_refused_before_a_request(url: str) -> None:
    with pytest.raises(ClientError, match=r"^url: .* is not an http or https URL, such as http://127.0.0.1:8080$"):
        AsyncRelay(url)


def test_an_invalid_url_of_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_API_URL", "relay:8080")
    with pytest.raises(ClientError, match=r"^RELAY_API_URL: 'relay:8080' is not"):
        AsyncRelay()


def test_a_key_that_was_read_with_its_line_break_is_refused() -> None:
    with pytest.raises(ClientError, match=r"^the given key: it has a control character"):
        AsyncRelay(key="secret\n")


async def test_an_answer_needs_an_answer_url() -> None:
    with pytest.raises(ClientError, match=r"^answer URL: None is not"):
        await answer_async(None, {})  # type: ignore[arg-type]


async def test_an_error_does_not_show_the_token_of_an_answer_url(api: Api, relay: AsyncRelay) -> None:
    api.says(410, PROBLEM | {"status": 410})
    with pytest.raises(ApiError, match=r"^POST /v1/answers/\*{8}: 410 Away") as raised:
        await answer_async(f"{relay.url}/v1/answers/t0ken", {})
    assert "t0ken" not in str(raised.value) + raised.value.request


async def test_an_error_about_what_is_no_http_does_not_show_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.client.http._BACKOFF", lambda _state: 0.0)
    async with replying(b"no HTTP\r\n\r\n").running() as server:
        with pytest.raises(RelayUnreachable, match=r"^POST http://127.0.0.1:\d+: Bad status line$"):
            await answer_async(server.url("/v1/answers/t0ken"), {})


async def test_a_blocking_answer_in_a_coroutine_names_the_other_function() -> None:
    with pytest.raises(ClientError, match="use `await answer_async"):
        answer("http://127.0.0.1:9/v1/answers/x", {})


async def test_a_closed_client_makes_no_request(api: Api, relay: AsyncRelay) -> None:
    await relay.close()
    with pytest.raises(ClientError, match=r"^the client is closed$"):
        await relay.version()
    assert api.requests == []


def test_a_closed_blocking_client_makes_no_request() -> None:
    relay = Relay("http://127.0.0.1:9", tries=1)
    with pytest.raises(RelayUnreachable):
        relay.version()
    relay.close()
    relay.close()
    with pytest.raises(ClientError, match=r"^the client is closed$"):
        relay.version()


async def output_of(*arguments: str) -> tuple[bytes, int | None]:
    """Of a Python, with its errors; and its exit code."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output, process.returncode


async def test_a_blocking_client_that_is_not_closed_ends_with_its_program_in_silence(
    api: Api, relay: AsyncRelay
) -> None:
    api.says(200, {"name": "relay", "version": "1"})
    program = f"from relay.client import Relay; relay = Relay({relay.url!r}); print(relay.version().version)"
    assert await output_of("-W", "error", "-c", program) == (b"1\n", 0)


async def test_a_stream_that_is_left_in_the_middle_ends_with_its_loop_in_silence(api: Api, relay: AsyncRelay) -> None:
    api.streams(**{"content-length": "99"})
    program = f"""
import asyncio
from relay.client import AsyncRelay
async def main():
    async with AsyncRelay({relay.url!r}) as relay:
        events = relay.tail()
        async for event in events:
            raise SystemExit(event.name)
asyncio.run(main())
"""
    assert await output_of("-c", program) == (b"listening\n", 1)


async def test_a_text_is_one_receiver(api: Api, relay: AsyncRelay) -> None:
    api.says(202, SENT)
    await relay.send("app", {}, receivers="demo")
    assert api.queries == ["receiver=demo"]


async def test_any_iterable_of_names_is_a_list_of_them_on_every_page(api: Api, relay: AsyncRelay) -> None:
    letter = {"items": [], "cursor": "next"}
    api.says(200, letter)
    api.says(200, letter | {"cursor": None})
    names = (name for name in ("a", "b"))
    assert [item async for item in relay.failed.list(receiver=names, reason={"gone": 1}.keys())] == []
    assert api.queries == ["receiver=a&receiver=b&reason=gone", "receiver=a&receiver=b&reason=gone&cursor=next"]
    api.responses = []
    api.says(202, SENT)
    await relay.messages.copy("app", "m-1", receivers={"a"})
    assert api.bodies[-1] == b'{"receivers": ["a"]}'


async def test_an_empty_id_is_refused_and_not_replaced(api: Api, relay: AsyncRelay) -> None:
    with pytest.raises(InvalidArgument, match=r"^id: it is empty"):
        await relay.send("app", {}, id="")
    assert api.requests == []


async def test_an_id_keeps_its_spaces(api: Api, relay: AsyncRelay) -> None:
    api.says(202, SENT)
    await relay.send("app", {}, id=" m 1 ")
    assert api.headers("ce-id") == ["%20m%201%20"]


async def test_a_header_that_cannot_be_sent_is_refused_at_once(api: Api, relay: AsyncRelay) -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"^POST /v1/sources/app/messages: its path or a header cannot be sent: .*control character",
    ):
        await relay.send("app", {}, headers={"x-team": "a\nb"})
    with pytest.raises(InvalidArgument, match=r"^GET v1/receivers: its path or a header cannot be sent: .*URL"):
        await relay.call("GET", "v1/receivers")  # without its first slash
    assert api.requests == []


async def test_a_refused_field_is_named(api: Api, relay: AsyncRelay) -> None:
    api.says(400, PROBLEM | {"detail": "Expected `array`", "errors": [{"detail": "x", "pointer": "/scopes"}]})
    with pytest.raises(ApiError, match=r"^POST /v1/keys: 400 Away: /scopes: Expected `array`$"):
        await relay.keys.create("admin")


async def test_a_response_that_broke_off_is_said_in_plain_words(relay: AsyncRelay) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncRelay(url, tries=1) as broken:
            with pytest.raises(RelayUnreachable, match=rf"^the response of {url} broke off$") as raised:
                await broken.version()
    assert raised.value.lost


async def test_a_wait_for_an_unknown_message_says_so(api: Api, relay: AsyncRelay) -> None:
    api.says(404, PROBLEM | {"status": 404, "detail": "No such message is known."})
    with pytest.raises(WaitTimeout, match=r"^no answer to app/m-1 within 0.01 s: No such message is known.$"):
        await relay.wait("app", "m-1", timeout_s=0.01)


async def test_a_wait_that_was_too_short_names_the_state_of_the_message(api: Api, relay: AsyncRelay) -> None:
    api.says(200, SENT)
    with pytest.raises(WaitTimeout, match=r"^no answer to app/m-1 within 0.01 s; its state is 'retrying'$"):
        await relay.wait("app", "m-1", timeout_s=0.01)


async def test_a_wait_may_be_longer_than_the_timeout_of_a_request(api: Api, relay: AsyncRelay) -> None:
    api.hold_s = 0.3
    api.says(200, {"ok": True}, relay_outcome="answered")
    async with AsyncRelay(relay.url, timeout_s=0.1, tries=1) as hasty:
        assert (await hasty.wait("app", "m-1", timeout_s=5.0)).json() == {"ok": True}
        assert not isinstance(await hasty.outcome("app", "m-1", wait_s=5), MessageView)
        with pytest.raises(RelayUnreachable, match="timeout"):
            await hasty.outcome("app", "m-1")


@pytest.mark.parametrize("key", ["rk_1", ""])
async def test_a_netrc_does_not_replace_the_key(
    api: Api, relay: AsyncRelay, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    api.says(200, {"name": "relay", "version": "1.0"})
    async with AsyncRelay(relay.url, key) as other:
        await other.version()
    assert api.headers("authorization") == [f"Bearer {key}" if key else None]


async def test_the_proxy_of_the_environment_is_used(
    api: Api, relay: AsyncRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", relay.url.replace("://", "://user:word@"))
    monkeypatch.setenv("no_proxy", "direct.example")
    api.says(200, {"name": "relay", "version": "1.0"})
    async with AsyncRelay("http://relay.example", "rk_1") as other:
        await other.version()
    assert api.headers("authorization") == ["Bearer rk_1"]
    assert api.headers("proxy-authorization") == ["Basic dXNlcjp3b3Jk"]


@pytest.mark.thorough
async def test_waiting_ends_in_time_if_the_relay_does_not_respond(api: Api, relay: AsyncRelay) -> None:
    api.hold_s = 20.0
    api.says(200)
    with pytest.raises(WaitTimeout, match="the relay does not respond"):
        async with asyncio.timeout(10):
            await relay.wait("app", "m-1", timeout_s=0.1)


@pytest.mark.thorough
async def test_waiting_ends_in_time_if_the_relay_is_busy_for_longer(api: Api, relay: AsyncRelay) -> None:
    api.says(503, Retry_After="30")
    with pytest.raises(WaitTimeout):
        async with asyncio.timeout(10):
            await relay.wait("app", "m-1", timeout_s=0.1)


async def test_waiting_pauses_where_the_relay_has_no_place_for_another_request_that_waits(
    api: Api, relay: AsyncRelay
) -> None:
    api.says(202, SENT, retry_after="1")
    with pytest.raises(WaitTimeout):
        await relay.wait("app", "m-1", timeout_s=0.1)
    assert len(api.requests) == 1


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_message_says_that_its_answer_is_waited_for(api: Api, relay: AsyncRelay, awaited: bool) -> None:
    api.says(202, SENT)
    await relay.send("app", {}, receivers="ci", awaited=awaited)
    assert api.headers("relay-wait") == ["20" if awaited else None]


async def test_the_request_that_sends_a_message_waits_first(api: Api, relay: AsyncRelay) -> None:
    """A key that may send, and not read the source, gets the answer from no other request."""
    api.says(200, {"ok": True}, relay_outcome="answered", relay_answer_status="201")
    found = await relay.send_and_wait("app", {}, receiver="ci", timeout_s=90)
    assert (found.status, found.json(), api.queries) == (201, {"ok": True}, ["receiver=ci&wait=20"])


async def test_a_longer_wait_goes_on_with_other_requests(api: Api, relay: AsyncRelay) -> None:
    api.says(202, SENT)
    api.says(200, {"ok": True}, relay_outcome="answered")
    assert (await relay.send_and_wait("app", {}, receiver="ci")).json() == {"ok": True}
    assert [request.method for request in api.requests] == ["POST", "GET"]
    api.says(202, SENT)
    api.responses.pop(0)
    with pytest.raises(WaitTimeout, match=r"^no answer to app/m-1 within 0.01 s; its state is 'retrying'$") as raised:
        await relay.send_and_wait("app", {}, receiver="ci", timeout_s=0.01)
    assert (raised.value.source_id, raised.value.message_id) == ("app", "m-1"), "it can be waited for again"


async def test_a_wait_that_has_begun_goes_on_when_the_relay_is_back(
    api: Api, relay: AsyncRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.api._PAUSE_S", 0.0)
    api.says(202, SENT)
    api.says(503)
    api.is_another_server(502)
    api.says(200, {"ok": True}, relay_outcome="answered")
    async with AsyncRelay(relay.url, tries=1) as hasty:
        assert (await hasty.send_and_wait("app", {}, receiver="ci")).json() == {"ok": True}
        api.responses[:] = []
        api.says(503)
        with pytest.raises(ApiError, match="503 Away"):
            await hasty.wait("app", "m-1")


async def test_a_command_that_waits_goes_on_when_the_relay_is_back(
    api: Api, relay: AsyncRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.says(202, SENT)
    api.says(200, {}, relay_outcome="answered")
    api.says(200, SENT | {"status": "done", "state": "delivered"})
    outcome, failures = relay.outcome, [RelayUnreachable("it is restarted", lost=True)]

    async def away_at_first(source: str, id: str, *, wait_s: int) -> Answer | MessageView:
        if failures:
            raise failures.pop()
        return await outcome(source, id, wait_s=wait_s)

    monkeypatch.setattr(relay, "outcome", away_at_first)
    waited = await sent(relay, Outgoing("app", b"{}", "m-1", wait_s=10))
    assert (waited.state.status, failures) == ("done", [])


async def test_a_tail_that_ends_at_once_is_not_asked_for_without_a_pause(api: Api, relay: AsyncRelay) -> None:
    api.streams("")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(relay.tail(reconnect=lambda _error: None))
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        ApiError(404, PROBLEM, "GET /x", "; a hint"),
        DeliveryFailed(502, PROBLEM | {"reason": "gone"}),
        RelayUnreachable("away", lost=True),
        WaitTimeout("late", "app", "m-1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_passed_to_another_process(error: ClientError) -> None:
    found = copy.deepcopy(error)  # as pickle does it
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("errors", [["too long"], {"name": ["too long"]}, "too long"])
async def test_errors_of_another_server_in_front_have_another_form(api: Api, relay: AsyncRelay, errors: object) -> None:
    api.says(400, {"title": "Bad", "status": 400, "errors": errors})
    with pytest.raises(ApiError, match="400 Bad") as raised:
        await relay.version()
    assert raised.value.errors == ()
