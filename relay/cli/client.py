"""The HTTP API as the commands use it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from relay import __version__
from relay.config.own_address import own_url
from relay.config.settings import Settings
from relay.domain.errors import RelayError

T = TypeVar("T")


class ApiFailed(RelayError):
    """The API did not do what it was asked to; the message says what it answered."""


class ApiBusy(ApiFailed):
    """The API cannot do it right now: a part of the relay is away or recovering."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API answered; `body` is its JSON."""

    status: int
    body: Any


class Client:
    """Talks to the API. Raises ApiFailed when nobody answers at that address, and for what it refuses."""

    def __init__(self, base: str, key: str | None, session: aiohttp.ClientSession) -> None:
        self._base = base.rstrip("/")
        self._headers = {"user-agent": f"relay-cli/{__version__}"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._session = session

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: list[tuple[str, str]] | None = None,
        missing_ok: bool = False,
    ) -> Answer | None:
        """None where the API says 404 and `missing_ok`."""
        sent = self._headers | dict(headers or {})
        try:
            async with self._session.request(
                method, self._base + path, data=body, headers=sent, params=params
            ) as response:
                text = await response.text()
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise ApiFailed(f"no relay answers at {self._base}: is `relay dev` or `relay run` up? ({error})") from error
        if response.status == 404 and missing_ok:
            return None
        if response.status >= 400:
            failure = ApiBusy if response.status == 503 else ApiFailed
            raise failure(f"{method} {path}: {response.status} {_problem(text)}")
        return Answer(response.status, json.loads(text))

    async def message(self, source_id: str, message_id: str) -> Any:
        """The message's state; None while nobody knows it."""
        path = f"/v1/sources/{quote(source_id, safe='')}/messages/{quote(message_id, safe='')}"
        answer = await self.call("GET", path, missing_ok=True)
        return answer.body if answer else None

    async def failed(self, *, receiver: str | None = None, limit: int = 50) -> Any:
        """The newest dead letters, of one receiver or of all."""
        params = [("limit", str(limit))] + ([("receiver", receiver)] if receiver else [])
        answer = await self.call("GET", "/v1/failed", params=params)
        return answer.body["items"] if answer else []

    async def failed_at(self, partition: int, offset: int) -> Any:
        """One dead letter, with its headers and payload."""
        answer = await self.call("GET", f"/v1/failed/{partition}/{offset}")
        return answer.body if answer else None

    async def endpoint(
        self, name: str, action: str | None = None, said: dict[str, str] | None = None, *, callback: bool = False
    ) -> Any:
        """A receiver's health, or that of a source's callback; `action`: `pause` or `resume` it first, with `said`."""
        quoted = quote(name, safe="")
        path = f"/v1/sources/{quoted}/callback" if callback else f"/v1/receivers/{quoted}"
        if action is None:
            answer = await self.call("GET", path)
        else:
            body, headers = json.dumps(said or {}).encode(), {"content-type": "application/json"}
            answer = await self.call("POST", f"{path}/{action}", body=body, headers=headers)
        return answer.body if answer else None

    async def send(
        self,
        source_id: str,
        payload: bytes,
        *,
        receivers: tuple[str, ...] = (),
        message_id: str | None = None,
        event_type: str | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """Post a message; returns its state."""
        headers = {"content-type": content_type}
        if message_id is not None:
            headers["ce-id"] = quote(message_id, safe=" !#$&'()*+,/:;=?@[]~-._")
        params = [("receiver", name) for name in receivers] + ([("type", event_type)] if event_type else [])
        path = f"/v1/sources/{quote(source_id, safe='')}/messages"
        answer = await self.call("POST", path, body=payload, headers=headers, params=params)
        return answer.body if answer else None


def with_client(settings: Settings, api: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work(client)` against the API at `api`, or where the settings say it is."""
    base = api or settings.public_url or own_url(settings.api_host, settings.api_port)
    key = settings.api_key.get_secret_value() if settings.api_key else None

    async def main() -> T:
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            return await work(Client(base, key, session))

    return asyncio.run(main())


def _problem(text: str) -> str:
    try:
        problem = json.loads(text)
        return f"{problem.get('title', '')}: {problem.get('detail', '')}".strip(": ")
    except (ValueError, AttributeError):
        return text[:200]
