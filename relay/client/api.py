"""The methods of a client of the relay's API."""

# mypy: disable-error-code="empty-body"

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Unpack
from urllib.parse import quote

import msgspec

from relay.client.call import Asyncio, Iteration, Loop, M, Method, Resource, every, route
from relay.client.endpoints import RECONNECT_S, Receivers, Sources
from relay.client.errors import ApiError, ClientError, InvalidArgument, WaitTimeout, is_passing
from relay.client.http import JSON, Answer, ApiResponse, Http, Paging, answer_of, decoded, path
from relay.client.resources import EventTypes, Failed, Incidents, Keys, Messages, Replays, Sessions
from relay.client.sse import ServerSentEvent
from relay.domain.headers import FORWARDED
from relay.schema.access import NewLink
from relay.schema.attempts import AttemptItem
from relay.schema.incidents import LaneItem, LanePage, OverviewView
from relay.schema.messages import MessageView
from relay.schema.operation import (
    AuditPage,
    DoctorView,
    ErasurePage,
    ErasureView,
    NewErasureView,
    Readiness,
    ReencryptionPage,
    SettingsView,
    Version,
)
from relay.schema.statistics import CountsView

Time = str | float
Payload = bytes | str | Mapping[str, Any] | list[Any]
"""Bytes and text are sent as they are; everything else as JSON."""

_MESSAGES: Final = "/v1/sources/{}/messages"
_IN_A_HEADER: Final = "!#$&'()*+,/:;=?@[]~-._"
LONGEST_WAIT_S: Final = 20
"""Maximum seconds that one request waits: proxies end longer requests."""
_PAUSE_S: Final = 0.5
"""Pause after a response that came before the wait was over."""
_LATE_S: Final = 2.0
"""Seconds for a response that comes when the time is over: it says what the message waits for."""


class RelayApi(Resource[M]):
    """The methods of `AsyncRelay` and `Relay`."""

    def __init__(self, http: Http, loop: Loop | None = None) -> None:
        super().__init__(http, loop)
        self.messages = Messages[M](http, loop)
        self.failed = Failed[M](http, loop)
        self.incidents = Incidents[M](http, loop)
        self.replays = Replays[M](http, loop)
        self.receivers = Receivers[M](http, loop)
        self.sources = Sources[M](http, loop)
        self.event_types = EventTypes[M](http, loop)
        self.keys = Keys[M](http, loop)
        self.sessions = Sessions[M](http, loop)

    def in_asyncio(self) -> "RelayApi[Asyncio]":
        return RelayApi(self._http)

    @property
    def url(self) -> str:
        return self._http.url

    def with_headers(self, headers: Mapping[str, str]) -> "RelayApi[M]":
        """The same relay, by the same connections, with these headers in each request."""
        return RelayApi(self._http.having(headers), self._loop)

    @Method
    async def call(self: "RelayApi[Asyncio]", method: str, target: str, *, body: object = None) -> ApiResponse:
        """Any request of the API. `target`: its path, percent-encoded. `body`: sent as JSON, unless it is None."""
        content = None if body is None else msgspec.json.encode(body)
        return await self._http.request(method, target, body=content)

    @Method
    async def send(
        self: "RelayApi[Asyncio]",
        source: str,
        payload: Payload,
        *,
        receivers: str | Iterable[str] = (),
        type: str | None = None,
        id: str | None = None,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: Time | None = None,
        delay: Time | None = None,
        deadline: Time | None = None,
        endpoint: str | None = None,
        signing_secret: str | None = None,
        supersede: str | None = None,
        coalesce: Mapping[str, Time] | None = None,
        awaited: bool = False,
    ) -> MessageView:
        """Send a message; return once the relay has stored it.

        `receivers`: a name or several, default those that subscribe to the source. `id`: unique in the source, default
        a random one; a message with the id of an earlier one is not delivered again (`duplicate`), so a repeat is safe.
        `content_type`: default `application/json`, for text `text/plain`. `headers`: sent to the receivers as
        `relay-header-NAME`. `deliver_at`, or `delay`: when it is sent, at most 30 days ahead. `deadline`: after it, no
        attempt starts. `supersede`: a key; it replaces older messages of the source with this key that were not sent.
        `coalesce`: a `key` and a `window`; of the messages with this key within the window only the newest is sent.
        Times are RFC 3339 or Unix seconds; a delay, or such a deadline, is seconds, or a text such as `10m`.
        `endpoint`: URL to send it to, in place of a receiver, if the relay allows its origin; signed with
        `signing_secret`. `awaited`: `wait` or `outcome` follows, and gets the answer at once, not up to a second later.
        """
        own = [("relay-wait", str(LONGEST_WAIT_S))] if awaited else []
        if signing_secret is not None:
            own.append(("relay-signing-secret", signing_secret))
        body, body_type = _encoded(payload, content_type)
        response = await self._http.request(
            "POST",
            path(_MESSAGES, source),
            query={
                "receiver": _names(receivers),
                "type": type,
                "deliver_at": deliver_at,
                "delay": delay,
                "deadline": deadline,
                "endpoint": endpoint,
                "supersede": supersede,
                "coalesce": None if coalesce is None else json.dumps(coalesce),
            },
            body=body,
            content_type=body_type,
            headers=[*_message_headers(id, headers), *own],
            safe=True,
        )
        return decoded(MessageView, response)

    @Method
    async def outcome(self: "RelayApi[Asyncio]", source: str, id: str, *, wait_s: int = 0) -> Answer | MessageView:
        """The receiver's answer; or the message's state, if it takes longer than `wait_s` (at most 20 s) or if there
        are several receivers. Raises DeliveryFailed if the relay gave up."""
        wait_s = max(0, min(wait_s, LONGEST_WAIT_S))
        headers = [("prefer", f"wait={wait_s}")]
        response = await self._http.request("GET", _message(source, id), headers=headers, safe=True, wait_s=wait_s)
        return answer_of(response) if "relay-outcome" in response.headers else decoded(MessageView, response)

    @Method
    async def wait(self: "RelayApi[Asyncio]", source: str, id: str, *, timeout_s: float = 60.0) -> Answer:
        """The receiver's answer to a message that goes to one receiver.

        Raises DeliveryFailed if the relay gave up, WaitTimeout if there is no answer after `timeout_s`, and ApiError
        if the message has several receivers: `messages.get` has the state of each. Goes on if the relay was away for a
        while since its first response.
        """
        end = asyncio.get_running_loop().time() + timeout_s
        return await self._answer_until(end, source, id, f"within {timeout_s:g} s")

    @Method
    async def send_and_wait(
        self: "RelayApi[Asyncio]",
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
        """Send a message to one receiver, and return its answer. Arguments and errors: as of `send` and `wait`.

        The request that sends it waits for 20 s at most. An answer that takes longer needs a key that may read it.
        """
        end = asyncio.get_running_loop().time() + timeout_s
        wait_s = _wait_s(timeout_s)
        body, body_type = _encoded(payload, content_type)
        response = await self._http.request(
            "POST",
            path(_MESSAGES, source),
            query={"receiver": receiver, "type": type, "wait": wait_s},
            body=body,
            content_type=body_type,
            headers=_message_headers(id, headers),
            safe=True,
            wait_s=wait_s,
        )
        if "relay-outcome" in response.headers:
            return answer_of(response)
        sent = decoded(MessageView, response)
        return await self._answer_until(end, source, sent.message_id, f"within {timeout_s:g} s", _state_of(sent))

    async def _answer_until(
        self: "RelayApi[Asyncio]", end: float, source: str, id: str, within: str, last: str = ""
    ) -> Answer:
        """As `wait`. `end`: on the loop's clock. `last`: the last known state, for the WaitTimeout."""
        clock = asyncio.get_running_loop().time
        while True:
            begun = clock()
            left_s = end - begun
            if left_s <= 0:
                raise WaitTimeout(f"no answer to {source}/{id} {within}{last}", source, id)
            wait_s = _wait_s(left_s)
            target, query = _message(source, id), {"wait": wait_s}
            try:
                async with asyncio.timeout(left_s + _LATE_S):
                    response = await self._http.request("GET", target, query=query, safe=True, wait_s=wait_s)
            except TimeoutError:
                last = "; the relay does not respond, or is busy"
                continue
            except ClientError as error:
                # a producer's message may not have been read yet
                if isinstance(error, ApiError) and error.status == 404:
                    last = f": {error.detail}"
                elif last and is_passing(error):
                    last = f": {error}"
                else:
                    raise
            else:
                if "relay-outcome" in response.headers:
                    return answer_of(response)
                last = _state_of(decoded(MessageView, response))
            if clock() - begun < wait_s:  # also if too many other requests wait there
                await asyncio.sleep(min(_PAUSE_S, max(0.0, end - clock())))

    @Iteration
    async def tail(
        self: "RelayApi[Asyncio]",
        *,
        sources: str | Iterable[str] = (),
        receivers: str | Iterable[str] = (),
        types: str | Iterable[str] = (),
        failed: bool = False,
        reconnect: Callable[[ClientError], None] | None = None,
    ) -> AsyncIterator[ServerSentEvent]:
        """Events as they happen: name and data, as in the API's `GET /v1/tail`.

        Ends when the API ends the stream, which it does after 15 minutes. With `reconnect` it connects again until it
        is closed, and after a connection that broke, for whose reason `reconnect` is called; events in between are
        lost.
        """
        query = {"source": _names(sources), "receiver": _names(receivers), "type": _names(types), "failed": failed}
        begun, clock = False, asyncio.get_running_loop().time
        while True:
            since = clock()
            try:
                async for event in self._http.events("/v1/tail", query):
                    begun = True
                    yield event
            except ClientError as error:
                if reconnect is None or not begun or not is_passing(error):
                    raise
                reconnect(error)
                since = clock()
            if reconnect is None:
                return
            await asyncio.sleep(since + RECONNECT_S - clock())  # a stream may end at once, each time

    @route("GET", "/v1/attempts/{partition}/{offset}")
    def attempt(self, partition: int, offset: int) -> AttemptItem:
        """One request of the relay, with its headers and body, from the history."""

    @route("GET", "/v1/stats")
    def stats(
        self,
        *,
        by: str | None = None,
        since: str | None = None,
        until: str | None = None,
        receiver: str | None = None,
        source: str | None = None,
        sums: bool = False,
    ) -> CountsView:
        """Attempts and their outcomes per `minute` or `hour` (`by`), from the history. `sums`: without `series`."""

    @route("GET", "/v1/overview")
    def overview(self) -> OverviewView:
        """The throughput of each stage, and what needs attention."""

    @route("GET", "/v1/lanes")
    def lanes_page(
        self,
        *,
        receiver: Iterable[str] = (),
        role: Iterable[str] = (),
        served: str | None = None,
        **paging: Unpack[Paging],
    ) -> LanePage:
        """The partitions of all lanes, and how far each is read: one page. `served`: `true` or `false`."""

    lanes = every(lanes_page, LaneItem)

    @route("GET", "/v1/settings")
    def settings(self) -> SettingsView:
        """The settings of the process that answers, secrets masked."""

    @route("GET", "/v1/audit")
    def audit(
        self,
        *,
        who: str | None = None,
        what: str | None = None,
        whom: str | None = None,
        **paging: Unpack[Paging],
    ) -> AuditPage:
        """Changes made over the API, the newest first: one page."""

    @route("POST", "/v1/erasures")
    def erase(
        self, *, source_id: str | None = None, message_id: str | None = None, receiver: str | None = None
    ) -> NewErasureView:
        """Erase the payloads of a source, a message or a receiver, of all messages received before."""

    @route("GET", "/v1/erasures")
    def erasures_page(self, **paging: Unpack[Paging]) -> ErasurePage:
        """The erasures in force, the newest first: one page."""

    erasures = every(erasures_page, ErasureView)

    @route("GET", "/v1/doctor")
    def doctor(self, *, receiver: str | None = None) -> DoctorView:
        """Checks of the relay and its dependencies, made now."""

    @route("POST", "/v1/secrets/reencrypt", in_query=True, safe=True)
    def reencrypt(self, *, dry_run: bool = False, **paging: Unpack[Paging]) -> ReencryptionPage:
        """Encrypt the secrets of receivers and sources with the newest key: a page of them."""

    @route("POST", "/v1/portal-links")
    def portal_link(self, owner: str, *, hours: float | None = None, receivers: Iterable[str] | None = None) -> NewLink:
        """A link into the portal of an owner."""

    @route("GET", "/version")
    def version(self) -> Version:
        """The version of the relay."""

    @route("GET", "/readyz", fixed={"format": "json"}, accepted=(503,))
    def readiness(self) -> Readiness:
        """Whether the processes that share the port are ready, with each of their parts."""


def _message(source: str, id: str) -> str:
    return path("/v1/sources/{}/messages/{}", source, id)


def _names(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _encoded(payload: Payload, content_type: str | None) -> tuple[bytes, str]:
    """The body, and its content type."""
    if isinstance(payload, bytes):
        return payload, content_type or JSON
    if isinstance(payload, str):
        return payload.encode(), content_type or "text/plain; charset=utf-8"
    return msgspec.json.encode(payload), content_type or JSON


def _message_headers(id: str | None, headers: Mapping[str, str] | None) -> list[tuple[str, str]]:
    if id == "":  # a random one would not be the same when the caller repeats it
        raise InvalidArgument("id: it is empty; omit it for a random one")
    ce_id = quote(id or secrets.token_hex(16), safe=_IN_A_HEADER, errors="surrogateescape")
    return [("ce-id", ce_id), *((FORWARDED + name, value) for name, value in (headers or {}).items())]


def _wait_s(left_s: float) -> int:
    return max(1, round(min(left_s, LONGEST_WAIT_S)))


def _state_of(message: MessageView) -> str:
    return f"; its state is {message.state!r}"
