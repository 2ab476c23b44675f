"""The health of receivers and callbacks, with pause and resume; resume also ends a hold after a 410."""

import asyncio
from collections.abc import Mapping
from math import isinf
from typing import Final, Literal, NamedTuple

from aiohttp import web

from relay.api.access import ADMIN, READ, RECEIVER
from relay.api.audit import has_changed, record_audit
from relay.api.backlog import in_lane
from relay.api.context import ApiContext
from relay.api.entries import described
from relay.api.problems import NOT_FOUND, Problem, no_receiver
from relay.api.registrar import Written
from relay.api.responses import json_response
from relay.api.route import DocumentedResponse, Example, json_of, route
from relay.api.verification import verification_of
from relay.api.view import rfc3339
from relay.domain.errors import LogUnavailable
from relay.domain.health import Measured, health_of, recent_of
from relay.domain.hold import hold
from relay.domain.receiver import Endpoint
from relay.domain.topics import SHARED, lane_of
from relay.engine.holding import Holding
from relay.schema.receivers import (
    Condition,
    EndpointView,
    LaneView,
    ReceiverHealthView,
    ReceiverView,
    VerificationView,
    Why,
)
from relay.schema.statistics import HealthView
from relay.state.port import EndpointHealth
from relay.state.read_model import Statistics
from relay.state.replies import answered
from relay.telemetry.redaction import escape_control

LANE_LOOK_S: Final = 2.0
"""Time limit for reading the lane: the health of an endpoint is known without the log, and a pause must not wait for
it."""
MOST_WORDS: Final = 4_096
"""Bytes of a body that says why."""


class FoundEndpoint(NamedTuple):
    """`owner`: of the endpoint in the state. `endpoint`: its settings; None if all were refused. `refused`: why its
    newest settings are not in effect. `lane`: of a receiver's messages; None for a source. `declared`: its entry.
    `verification`: its state; None for a source."""

    owner: str
    endpoint: Endpoint | None
    refused: str | None = None
    lane: str | None = None
    declared: ReceiverView | None = None
    verification: VerificationView | None = None

    @property
    def is_verified(self) -> bool:
        return self.verification is None or self.verification["state"] in ("not_required", "verified")


class ReceiversResource:
    """`GET /v1/receivers/{name}`, and `POST` to its `/pause` and `/resume`.

    The same of a source's callback under `/v1/sources/{source_id}/callback`.
    """

    noun = "receivers"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._holding = Holding(context.log, context.state, context.topics.receiver_config)

    @route(
        "GET",
        "/v1/receivers/{name}",
        scope=RECEIVER,
        answers=(DocumentedResponse(200, "The current health.", json_of(ReceiverHealthView)),),
    )
    async def get_receiver(self, name: str) -> web.Response:
        """Get a receiver with its health."""
        return await self._health(self._receiver(name))

    @route(
        "POST",
        "/v1/receivers/{name}/pause",
        scope=RECEIVER,
        audit="receiver.paused",
        most_bytes=MOST_WORDS,
        answers=(DocumentedResponse(200, "The current health.", json_of(ReceiverHealthView)),),
        example=Example(200, body={"reason": "it is being moved"}),
    )
    async def pause_receiver(self, request: web.Request, name: str, body: Why) -> web.Response:
        """Pause a receiver.

        Nothing is sent until it is resumed. Its messages wait, and their `max_age` continues to count.
        """
        return await self._pause(request, self._receiver(name), body)

    @route(
        "POST",
        "/v1/receivers/{name}/resume",
        scope=RECEIVER,
        audit="receiver.resumed",
        answers=(DocumentedResponse(200, "The current health.", json_of(ReceiverHealthView)),),
    )
    async def resume_receiver(self, request: web.Request, name: str) -> web.Response:
        """Resume a receiver.

        Its pause or outage ends, and its breaker is closed.
        """
        return await self._resume(request, self._receiver(name))

    @route(
        "GET",
        "/v1/sources/{source_id}/callback",
        scope=READ,
        noun="callbacks",
        answers=(DocumentedResponse(200, "The current health.", json_of(EndpointView)),),
        example=Example(200, path={"source_id": "calls"}),
    )
    async def get_callback(self, source_id: str) -> web.Response:
        """Get the health of a callback."""
        return await self._health(self._callback(source_id))

    @route(
        "POST",
        "/v1/sources/{source_id}/callback/pause",
        scope=ADMIN,
        audit="callback.paused",
        noun="callbacks",
        most_bytes=MOST_WORDS,
        answers=(DocumentedResponse(200, "The current health.", json_of(EndpointView)),),
        example=Example(200, path={"source_id": "calls"}, body={"reason": "it is being moved"}),
    )
    async def pause_callback(self, request: web.Request, source_id: str, body: Why) -> web.Response:
        """Pause a callback.

        Nothing is sent until it is resumed. Its results wait, and their `max_age` continues to count.
        """
        return await self._pause(request, self._callback(source_id), body)

    @route(
        "POST",
        "/v1/sources/{source_id}/callback/resume",
        scope=ADMIN,
        audit="callback.resumed",
        noun="callbacks",
        answers=(DocumentedResponse(200, "The current health.", json_of(EndpointView)),),
        example=Example(200, path={"source_id": "calls"}),
    )
    async def resume_callback(self, request: web.Request, source_id: str) -> web.Response:
        """Resume a callback.

        Its pause or outage ends, and its breaker is closed.
        """
        return await self._resume(request, self._callback(source_id))

    async def _pause(self, request: web.Request, found: FoundEndpoint, body: Why) -> web.Response:
        why = escape_control(body.reason)  # it may be shown on a terminal
        await self._holding.hold(found.owner, hold("paused", self._context.clock.time(), why))
        record_audit(request, reason=why)
        has_changed(request)
        return await self._health(found)

    async def _resume(self, request: web.Request, found: FoundEndpoint) -> web.Response:
        await self._holding.resume(found.owner)
        has_changed(request)
        return await self._health(found)

    def _receiver(self, name: str) -> FoundEndpoint:
        receiver, refused = self._context.directory.receiver(name), self._context.directory.refusal(name)
        if receiver is None and refused is None:
            raise no_receiver(name)
        if receiver is None or receiver.unusable is not None:
            return FoundEndpoint(f"r:{name}", None, refused, None, self._declared(name))
        registry = self._context.registry
        seen = None if registry is None else verification_of(registry, receiver)
        return FoundEndpoint(f"r:{name}", receiver.post, refused, lane_of(receiver), self._declared(name), seen)

    def _declared(self, name: str) -> ReceiverView:
        registrar = self._context.registrar
        written = None if registrar is None else registrar.find(name)  # None: just removed
        return {**described(Written(name, b"")), "etag": ""} if written is None else described(written)

    def _callback(self, source_id: str) -> FoundEndpoint:
        return FoundEndpoint(f"s:{source_id}", callback_of(self._context, source_id))

    async def _health(self, found: FoundEndpoint) -> web.Response:
        state, now, owner = self._context.state, self._context.clock.time(), found.owner
        [health] = await state.endpoints([owner])
        [parked] = await answered(state.parked([owner]))
        [statistics] = await state.statistics([owner])
        oldest_s = waited_s(await state.waiting(), owner, now)
        held = health.hold
        now_sent = "refused" if found.endpoint is None else condition(health, found.endpoint, found.is_verified)
        body: EndpointView = {
            "name": name_of(owner),
            "condition": now_sent,
            "health": health_view(statistics, health, now_sent, oldest_s),
            "refused": found.refused,
            "failing_since": rfc3339(now - health.failing_for_s) if health.failing_for_s else None,
            "disabled_since": rfc3339(held.since) if held and held.reason == "disabled" else None,
            "paused": health.paused_for_s > 0,
            "paused_for_s": None if isinf(health.paused_for_s) else health.paused_for_s,
            "hold": None
            if held is None
            else {"reason": held.reason, "since": rfc3339(held.since), "detail": held.detail or None},
            "breaker": health.breaker,
            "failures": health.failures,
            "parked": {"retries": parked.retries, "polls": parked.polls},
            "in_lane": await self._in_lane(found),
        }
        if found.declared is None:
            return json_response(200, body)
        whole: ReceiverHealthView = {
            **body,
            **found.declared,
            "verification": found.verification,
            "hot_since": self._hot_since(name_of(owner)),
        }
        return json_response(200, whole, **({"ETag": f'"{whole["etag"]}"'} if whole["etag"] else {}))

    def _hot_since(self, name: str) -> str | None:
        registry = self._context.registry
        return None if registry is None or not registry.is_hot(name) else rfc3339(registry.hot()[name].since)

    async def _in_lane(self, found: FoundEndpoint) -> LaneView | None:
        """The unfinished records of its lane; None for a callback, and if it is not known at once."""
        if found.lane is None:
            return None
        try:
            async with asyncio.timeout(LANE_LOOK_S):
                count = await in_lane(self._context.log, self._context.topics, name_of(found.owner), found.lane)
        except (LogUnavailable, TimeoutError):
            return None
        return {"lane": "shared" if found.lane == SHARED else "dedicated", "unfinished": count}


def callback_of(context: ApiContext, source_id: str) -> Endpoint:
    """Raises a Problem if there is none."""
    callback = context.directory.source(source_id).callback
    if callback is None:
        raise Problem(NOT_FOUND, f"The source {source_id[:80]!r} has no callback.")
    return callback


def health_view(
    statistics: Statistics,
    endpoint: EndpointHealth,
    condition: Condition | Literal["refused"],
    oldest_s: float | None,
) -> HealthView:
    """The health of a receiver or a callback in this condition. `oldest_s`: how long its oldest message has waited."""
    recent, last = recent_of(statistics.hours), statistics.last
    is_offline = condition in ("offline", "disabled")
    failure = None if last is None else last.failure or (str(last.status) if (last.status or 0) >= 400 else None)
    return {
        "state": health_of(Measured(recent, endpoint.breaker, endpoint.failures, is_offline, oldest_s)),
        "success_rate": recent.success_rate,
        "attempts": recent.attempts,
        "last_error": failure,
        "oldest_waiting_s": None if oldest_s is None else round(oldest_s, 1),
    }


def name_of(owner: str) -> str:
    """The name of the receiver, or the id of the source, whose endpoint is `owner` (`r:NAME`, `s:ID`) in the state."""
    return owner[2:]


def waited_s(waiting: Mapping[str, float], owner: str, now: float) -> float | None:
    """How long the oldest message of an owner has waited. `waiting`: from the state."""
    return max(0.0, now - waiting[owner]) if owner in waiting else None


def condition(health: EndpointHealth, endpoint: Endpoint, verified: bool = True) -> Condition:
    """The endpoint's condition, which says what it is sent now. `backing_off`: nothing for the time that it asked for;
    `failing`: nothing while its breaker is open; `offline`: pings; `paused`: nothing until it is resumed; `unverified`:
    nothing until it is verified."""
    if health.hold is not None and health.hold.reason == "disabled":
        return "disabled"
    if isinf(health.paused_for_s):
        return "paused"
    if not verified:
        return "unverified"
    if health.breaker == "closed":
        return "backing_off" if health.paused_for_s > 0 else "up"
    return "offline" if health.failing_for_s >= endpoint.breaker.offline.after else "failing"
