"""Tests of requests with an OAuth 2 access token: the lean transport, a token endpoint and a receiver."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from ipaddress import ip_network

import pytest
from msgspec import structs

from relay.delivery import oauth2 as tokens_module
from relay.delivery.guard import AddressGuard
from relay.delivery.lean_transport import LeanTransport
from relay.domain.egress import Egress, OAuth2
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from tests.contract.raw_server import Server, failure, not_accepting, replying
from tests.contract.transport_rig import LOOPBACK, LOOPS, post, running
from tests.expecting import expect


def response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class World:
    """A token endpoint that gives t1, t2 ..., and a receiver that takes those that are `good`, and repeats them."""

    def __init__(self) -> None:
        self.good: set[bytes] = set()
        self.issued = 0
        self.refuses_all = False
        self.endpoint = Server(self._issue)
        self.receiver = Server(self._receive)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[LeanTransport]:
        async with running(LeanTransport(LOOPBACK)) as transport, self.endpoint.running(), self.receiver.running():
            yield transport

    async def _issue(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self.endpoint.read_request(reader)
            self.issued += 1
            token = f"t{self.issued}-secret"
            self.good = {token.encode()}
            writer.write(response(200, json.dumps({"access_token": token, "expires_in": 3600}).encode()))

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await self.receiver.read_request(reader)
            token = request.partition(b"authorization: Bearer ")[2].partition(b"\r\n")[0]
            good = token in self.good and not self.refuses_all
            writer.write(response(200 if good else 401, b"seen " + token))

    def request(self) -> Request:
        oauth2 = OAuth2(self.endpoint.url("/token"), "relay", "hunter2")
        return structs.replace(post(self.receiver.url()), egress=Egress(oauth2=oauth2))


async def sent(transport: LeanTransport, request: Request) -> Exchange:
    """The result of one request."""
    outcome: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
    transport.send(request, outcome.set_result)
    return await outcome


class TestOAuth2:
    loops = LOOPS

    @pytest.fixture
    def world(self) -> World:
        return World()

    async def test_a_token_is_fetched_once_and_never_shown(self, world: World) -> None:
        async with world.running() as transport:
            exchanges = [await sent(transport, world.request()) for _ in range(3)]
            together = await asyncio.gather(*(sent(transport, world.request()) for _ in range(3)))
        assert world.issued == 1
        for exchange in (*exchanges, *together):
            assert isinstance(exchange, Response)
            assert (exchange.status, exchange.body) == (200, b"seen ********")
        assert b"authorization: Basic " in world.endpoint.requests[0]

    async def test_a_request_that_is_authorized_already_gets_no_token(self, world: World) -> None:
        """By a header of the endpoint's own form of requests; a second one would make it malformed."""
        world.good = {b"of-the-form"}
        async with world.running() as transport:
            request = structs.replace(world.request(), headers=(("authorization", "Bearer of-the-form"),))
            assert isinstance(await sent(transport, request), Response)
        assert world.issued == 0
        assert world.receiver.requests[0].count(b"authorization") == 1

    async def test_a_token_that_has_ended_is_replaced_and_the_request_is_made_once_more(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tokens_module, "_YOUNG_S", 0.0)
        async with world.running() as transport:
            await sent(transport, world.request())
            world.good.clear()
            assert failure(await sent(transport, world.request())) == ("unauthorized", False)
            assert isinstance(await sent(transport, world.request()), Response)
            world.good.clear()
            waited_for = expect(Response, await transport.exchange(world.request()))
            assert waited_for.status == 200
        assert world.issued == 3

    async def test_what_may_not_wait_for_a_token_leaves_it_to_the_next(self, world: World) -> None:
        async with world.running() as transport:
            request = structs.replace(world.request(), start_within_s=0.0)
            waited = await sent(transport, request)
            assert waited == NoResponse("late", "it had to wait for an access token", sent=False)
            assert isinstance(await sent(transport, structs.replace(request, start_within_s=5.0)), Response)
        assert (world.issued, len(world.receiver.requests)) == (1, 1)

    async def test_a_receiver_that_refuses_a_new_token_has_answered(self, world: World) -> None:
        world.refuses_all = True
        async with world.running() as transport:
            exchange = expect(Response, await sent(transport, world.request()))
            assert (exchange.status, exchange.body) == (401, b"seen ********")
        assert (world.issued, len(world.receiver.requests)) == (1, 1)

    async def test_without_a_token_nothing_is_sent(self, world: World) -> None:
        refusing = replying(response(400, b'{"error": "invalid_scope"}'))
        async with refusing.running() as endpoint, world.running() as transport:
            egress = Egress(oauth2=OAuth2(endpoint.url("/token"), "relay", "hunter2"))
            exchange = await sent(transport, structs.replace(world.request(), egress=egress))
        assert exchange == NoResponse(
            "no_token", f"the token endpoint {endpoint.url('/token')} answered 400 invalid_scope", sent=False
        )
        assert world.receiver.accepted == 0

    async def test_the_guard_and_the_time_of_the_attempt_hold_for_the_token_endpoint(self, world: World) -> None:
        async with world.running() as transport:
            with not_accepting() as url:
                egress = Egress(oauth2=OAuth2(url, "relay", "hunter2"))
                late = await sent(transport, structs.replace(world.request(), egress=egress, timeout_s=0.05))
            egress = Egress(oauth2=OAuth2("https://10.1.2.3/", "relay", "hunter2"))
            blocked = await sent(transport, structs.replace(world.request(), egress=egress))
        assert late == NoResponse("timeout", "the token endpoint gave no answer within 0.05 s", sent=False)
        assert isinstance(blocked, NoResponse)
        assert blocked.kind == "no_token"
        assert "10.1.2.3 is not a public address" in blocked.detail

    async def test_closing_leaves_nobody_waiting(self) -> None:
        with not_accepting() as url:
            transport = LeanTransport(AddressGuard([ip_network("127.0.0.0/8")]))
            await transport.start()
            egress = Egress(oauth2=OAuth2(url, "relay", "hunter2"))
            waiting = asyncio.ensure_future(sent(transport, structs.replace(post(url), egress=egress)))
            await asyncio.sleep(0)
            await transport.close()
            exchange = await waiting
        assert isinstance(exchange, NoResponse)
        assert exchange.kind == "disconnected"
