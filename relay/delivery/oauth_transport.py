"""Sends requests with OAuth 2 access tokens, and waits for a token if none is cached."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from msgspec import structs

from relay.delivery.tokens import NoToken, Tokens
from relay.domain.egress import Egress
from relay.domain.exchange import LATE, UNAUTHORIZED, Exchange, NoResponse, Request, Response
from relay.domain.secrecy import MASK

Done = Callable[[Exchange], None]


class Authorized:
    """`send`: sends a request unchanged. If a response repeats the token, it is masked."""

    def __init__(self, send: Callable[[Request, Done], None], tokens: Tokens) -> None:
        self._send = send
        self._tokens = tokens
        self._waiting: set[asyncio.Task[None]] = set()

    def send(self, request: Request, egress: Egress, done: Done) -> None:
        """As `Transport.send`. `egress`: of the request, with OAuth 2."""
        token = self._tokens.cached(egress)
        if token is not None:
            self._go(request, egress, token, done)
            return
        task = asyncio.get_running_loop().create_task(self._when_fetched(request, egress, done))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def close(self) -> None:
        await self._tokens.close()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _when_fetched(self, request: Request, egress: Egress, done: Done) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(request.timeout_s):
                token = await self._tokens.fetched(egress)
        except TimeoutError:
            detail = f"the token endpoint gave no answer within {request.timeout_s:g} s"
            loop.call_soon(done, NoResponse("no_token", detail, sent=False))
        except NoToken as error:
            loop.call_soon(done, NoResponse(error.kind, str(error), sent=False))
        except Exception as error:
            loop.call_soon(done, NoResponse("failed", f"{type(error).__name__}: {error}", sent=False))
            raise
        else:
            waited_s = loop.time() - begun
            if waited_s > request.start_within_s:
                loop.call_soon(done, NoResponse(LATE, "it had to wait for an access token", sent=False))
                return
            rest_s = max(request.timeout_s - waited_s, 0.001)
            within_s = request.start_within_s - waited_s
            self._go(structs.replace(request, timeout_s=rest_s, start_within_s=within_s), egress, token, done)

    def _go(self, request: Request, egress: Egress, token: str, done: Done) -> None:
        headers = (*request.headers, ("authorization", f"Bearer {token}"))
        bare = structs.replace(request, headers=headers, egress=replace(egress, oauth2=None))
        self._send(bare, partial(self._heard, egress, token, done))

    def _heard(self, egress: Egress, token: str, done: Done, exchange: Exchange) -> None:
        if isinstance(exchange, Response):
            if exchange.status == 401 and self._tokens.refused(egress, token):
                done(NoResponse(UNAUTHORIZED, "it answered 401 to its access token; a new one is fetched", sent=False))
                return
            exchange = _without(token, exchange)
        done(exchange)


def _without(token: str, response: Response) -> Response:
    raw = token.encode()
    if raw in response.body:
        response = structs.replace(response, body=response.body.replace(raw, MASK.encode()))
    if any(token in value for value in response.headers.values()):
        headers = {name: value.replace(token, MASK) for name, value in response.headers.items()}
        response = structs.replace(response, headers=headers)
    return response
