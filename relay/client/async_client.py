"""The client for asyncio programs."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote

import aiohttp
import msgspec

from relay.api.history.shapes import AttemptItem, MessageItem
from relay.api.receiver_list import ReceiverItem
from relay.api.receiver_view import NewReceiverView, ReceiverView
from relay.api.receivers import ReceiverHealthView
from relay.api.registration import RemovalView
from relay.api.replay_view import JobView, OneView, PreviewView
from relay.api.rotation import RotatedView
from relay.api.stats import StatsView
from relay.api.test_request import TrialView
from relay.api.verification import TriedView
from relay.api.view import MessageView
from relay.client.errors import ApiError, WaitTimeout
from relay.client.http import JSON, Http, Response, decoded, path
from relay.client.sse import ServerSentEvent
from relay.domain.forwarding import PREFIX

Payload = bytes | str | Mapping[str, Any] | list[Any]
"""Bytes and text are sent as they are; everything else as JSON."""

_MESSAGES: Final = "/v1/sources/{}/messages"
_MESSAGE: Final = "/v1/sources/{}/messages/{}"
_DELIVERY: Final = "/v1/sources/{}/messages/{}/deliveries/{}"
_RECEIVER: Final = "/v1/receivers/{}"
_IN_A_HEADER: Final = " !#$&'()*+,/:;=?@[]~-._"
_LONGEST_WAIT_S: Final = 20.0
"""For which one request waits: proxies end requests that take longer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The receiver's answer to a message. `outcome`: `answered`, or `delivered` if the receiver took it without an
    answer. `status`: the answer's HTTP status, or None if there is none. `truncated`: only its beginning was kept."""

    outcome: str
    status: int | None
    content_type: str | None
    body: bytes = field(repr=False)
    truncated: bool = False

    def json(self) -> Any:
        """The body, decoded. Raises ValueError if it is not JSON."""
        return msgspec.json.decode(self.body)


class AsyncRelay:
    """A relay, by its HTTP API.

    `url`: default RELAY_API_URL, or http://127.0.0.1:8080. `key`: default RELAY_API_KEY. `timeout_s`: of each try of a
    request; `tries`: how many there are in all. `session`: an aiohttp session to use, which stays open.

    Every method raises ApiError for what the API refuses, and RelayUnreachable if no relay answers.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout_s: float = 30.0,
        tries: int = 5,
        session: aiohttp.ClientSession | None = None,
    ) -> None:
        self._http = Http(url, key, tries=tries, timeout_s=timeout_s, session=session)
        self.messages = AsyncMessages(self._http)
        self.receivers = AsyncReceivers(self._http)
        self.replays = AsyncReplays(self._http)

    async def __aenter__(self) -> "AsyncRelay":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. A session that was given stays open."""
        await self._http.close()

    async def send(
        self,
        source: str,
        payload: Payload,
        *,
        receivers: Iterable[str] = (),
        type: str | None = None,
        id: str | None = None,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> MessageView:
        """Send a message; return once the relay has stored it.

        `receivers`: default those that subscribe to the source. `id`: unique in the source, default a random one; a
        message with the id of an earlier one is not delivered again (`duplicate`), so a repeat is safe. `content_type`:
        default `application/json`, for text `text/plain`. `headers`: sent to the receivers as `relay-header-NAME`.
        """
        body, usual_type = _encoded(payload)
        sent = [("ce-id", quote(id or secrets.token_hex(16), safe=_IN_A_HEADER))]
        sent += [(PREFIX + name, value) for name, value in (headers or {}).items()]
        response = await self._http.request(
            "POST",
            path(_MESSAGES, source),
            query={"receiver": list(receivers), "type": type},
            body=body,
            content_type=content_type or usual_type,
            headers=sent,
            safe=True,
        )
        return decoded(MessageView, response)

    async def wait(self, source: str, id: str, *, timeout_s: float = 60.0) -> Answer:
        """The receiver's answer to a message that goes to one receiver.

        Raises DeliveryFailed if the relay gave up, WaitTimeout if there is no answer after `timeout_s`, and ApiError
        if the message has several receivers: `messages.get` has the state of each.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + timeout_s
        while True:
            left_s = end - clock()
            if left_s <= 0:
                raise WaitTimeout(f"no answer to {source}/{id} within {timeout_s:g} s")
            query = {"wait": max(1, round(min(left_s, _LONGEST_WAIT_S)))}
            try:
                response = await self._http.request("GET", path(_MESSAGE, source, id), query=query, safe=True)
            except ApiError as error:
                if error.status != 404:
                    raise
                await asyncio.sleep(min(0.5, max(0.0, left_s)))  # a producer's message may not have been read yet
                continue
            if "relay-outcome" in response.headers:
                return _answer(response)

    async def send_and_wait(
        self,
        source: str,
        payload: Payload,
        *,
        receiver: str | None = None,
        type: str | None = None,
        id: str | None = None,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Answer:
        """Send a message to one receiver, and return its answer. Arguments and errors: as of `send` and `wait`."""
        sent = await self.send(
            source,
            payload,
            receivers=() if receiver is None else (receiver,),
            type=type,
            id=id,
            content_type=content_type,
            headers=headers,
        )
        return await self.wait(source, sent.message_id, timeout_s=timeout_s)

    async def replay(self, source: str, id: str, receiver: str, *, only_failed: bool = True) -> OneView:
        """Send a delivery that failed to its receiver again. `only_failed=False`: also one that was delivered."""
        return await self._http.post(
            OneView, path(_DELIVERY + "/replay", source, id, receiver), {"only_failed": only_failed}
        )

    async def tail(
        self,
        *,
        sources: Iterable[str] = (),
        receivers: Iterable[str] = (),
        types: Iterable[str] = (),
        failed: bool = False,
    ) -> AsyncIterator[ServerSentEvent]:
        """Events as they happen: name and data, as in the API's `GET /v1/tail`. Ends when the API ends
        the stream, for example as it stops."""
        query = {"source": list(sources), "receiver": list(receivers), "type": list(types), "failed": failed}
        async for event in self._http.events("/v1/tail", query):
            yield event


class AsyncMessages:
    """The messages of the relay: `AsyncRelay.messages`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def get(self, source: str, id: str, *, receiver: str | None = None) -> MessageView:
        """The state of a message and its deliveries. Raises ApiError with status 404 if it is not known."""
        return await self._http.get(MessageView, path(_MESSAGE, source, id), {"receiver": receiver})

    async def list(
        self,
        *,
        source: str | None = None,
        receiver: str | None = None,
        status: Iterable[str] = (),
        reason: Iterable[str] = (),
        type: str | None = None,
        since: str | None = None,
        until: str | None = None,
        payload: str | None = None,
    ) -> AsyncIterator[MessageItem]:
        """Messages from the history, the newest first. `since`, `until`: RFC 3339, or how long ago (`90m`)."""
        query = {
            "source": source,
            "receiver": receiver,
            "status": list_of(status),
            "reason": list_of(reason),
            "type": type,
            "since": since,
            "until": until,
            "payload": payload,
        }
        async for item in self._http.pages(MessageItem, "/v1/messages", query):
            yield item

    async def attempts(self, source: str, id: str, *, receiver: str | None = None) -> AsyncIterator[AttemptItem]:
        """Each request that the relay made for a message, the newest first, from the history."""
        async for item in self._http.pages(
            AttemptItem, path(_MESSAGE + "/attempts", source, id), {"receiver": receiver}
        ):
            yield item

    async def payload(self, source: str, id: str) -> bytes:
        """The payload, as the sender gave it."""
        return (await self._http.request("GET", path(_MESSAGE + "/payload", source, id), safe=True)).body


class AsyncReceivers:
    """The receivers of the relay: `AsyncRelay.receivers`. Their fields are those of receivers.yaml."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def get(self, name: str) -> ReceiverHealthView:
        """Settings and health of a receiver."""
        return await self._http.get(ReceiverHealthView, path(_RECEIVER, name))

    async def list(
        self,
        *,
        owner: str | None = None,
        label: Iterable[str] = (),
        state: Iterable[str] = (),
        declared_by: Literal["file", "api"] | None = None,
        prefix: str | None = None,
    ) -> AsyncIterator[ReceiverItem]:
        """All receivers, in the order of their names. `label`: `name` or `name=value`; all of several."""
        query = {
            "owner": owner,
            "label": list_of(label),
            "state": list_of(state),
            "declared_by": declared_by,
            "prefix": prefix,
        }
        async for item in self._http.pages(ReceiverItem, "/v1/receivers", query):
            yield item

    async def create(self, /, name: str, post_endpoint: str, **fields: Any) -> NewReceiverView:
        """Register a receiver. Without a `secret`, one is made: it is in this response only."""
        return await self._http.post(
            NewReceiverView, "/v1/receivers", {"name": name, "post_endpoint": post_endpoint, **fields}
        )

    async def update(self, name: str, changes: Mapping[str, Any], *, etag: str | None = None) -> ReceiverView:
        """Change some fields: a JSON merge patch, in which None restores the default. `etag`: only if the receiver is
        still that version; otherwise ApiError with status 412."""
        response = await self._http.request(
            "PATCH",
            path(_RECEIVER, name),
            body=msgspec.json.encode(changes),
            content_type="application/merge-patch+json",
            headers=_if_match(etag),
        )
        return decoded(ReceiverView, response)

    async def delete(self, name: str, *, etag: str | None = None, dry_run: bool = False) -> RemovalView:
        """Remove a receiver; returns what becomes of its messages. `dry_run`: only that."""
        response = await self._http.request(
            "DELETE", path(_RECEIVER, name), query={"dry_run": dry_run}, headers=_if_match(etag)
        )
        return decoded(RemovalView, response)

    async def pause(self, name: str, reason: str = "") -> ReceiverHealthView:
        """Send the receiver nothing until it is resumed; its messages wait."""
        return await self._http.post(
            ReceiverHealthView, path(_RECEIVER + "/pause", name), {"reason": reason}, safe=True
        )

    async def resume(self, name: str) -> ReceiverHealthView:
        """Send to the receiver again; its breaker is closed."""
        return await self._http.post(ReceiverHealthView, path(_RECEIVER + "/resume", name), safe=True)

    async def test(self, name: str) -> TrialView:
        """Send the receiver one signed ping; returns the request and the response."""
        return await self._http.post(TrialView, path(_RECEIVER + "/test", name))

    async def verify(self, name: str) -> TriedView:
        """Have the receiver's URL prove now that it wants to get messages."""
        return await self._http.post(TriedView, path(_RECEIVER + "/verify", name))

    async def rotate(self, name: str, *, secret: str | None = None, grace: str | float | None = None) -> RotatedView:
        """Give the receiver a new signing secret, by default a random one. `grace`: how long the old one signs along,
        in seconds or as `1d`."""
        given = {"secret": secret, "grace": grace}
        body = {field: value for field, value in given.items() if value is not None}
        return await self._http.post(RotatedView, path(_RECEIVER + "/rotate", name), body)

    async def stats(self, name: str) -> StatsView:
        """Outcomes and durations of the attempts of the last 24 hours."""
        return await self._http.get(StatsView, path(_RECEIVER + "/stats", name))

    async def attempts(self, name: str, *, failed: bool = False) -> AsyncIterator[AttemptItem]:
        """Each request that the relay made to a receiver, the newest first, from the history."""
        async for item in self._http.pages(AttemptItem, path(_RECEIVER + "/attempts", name), {"failed": failed}):
            yield item


class AsyncReplays:
    """Jobs that replay or discard many dead letters: `AsyncRelay.replays`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(self, /, **selection: Any) -> JobView:
        """Send many again. `selection`: `receiver`, `source`, `reason`, `status`, `stage`, `ids`, `since`, `until`,
        `rate` (a second), `only_failed`; as in the API's `POST /v1/replays`."""
        return await self._http.post(JobView, "/v1/replays", selection)

    async def discard(self, /, **selection: Any) -> JobView:
        """Discard many, with the same selection."""
        return await self._http.post(JobView, "/v1/discards", selection)

    async def preview(self, /, **selection: Any) -> PreviewView:
        """What `create` would do."""
        return await self._http.post(PreviewView, "/v1/replays", {**selection, "dry_run": True}, safe=True)

    async def get(self, id: str) -> JobView:
        """How far a job is."""
        return await self._http.get(JobView, path("/v1/replays/{}", id))

    async def list(self) -> AsyncIterator[JobView]:
        """All jobs, the newest first."""
        async for item in self._http.pages(JobView, "/v1/replays", {}):
            yield item

    async def stop(self, id: str) -> JobView:
        """Stop a job. What it has sent stays sent."""
        return await self._http.post(JobView, path("/v1/replays/{}/stop", id), safe=True)


list_of = list
"""The built-in, for classes with a method `list`."""


def _encoded(payload: Payload) -> tuple[bytes, str]:
    if isinstance(payload, bytes):
        return payload, JSON
    if isinstance(payload, str):
        return payload.encode(), "text/plain; charset=utf-8"
    return msgspec.json.encode(payload), JSON


def _answer(response: Response) -> Answer:
    status = response.headers.get("relay-answer-status")
    return Answer(
        response.headers["relay-outcome"],
        None if status is None else int(status),
        response.headers.get("Content-Type"),
        response.body,
        response.headers.get("relay-answer-truncated") == "true",
    )


def _if_match(etag: str | None) -> list[tuple[str, str]]:
    return [] if etag is None else [("if-match", f'"{etag}"')]
