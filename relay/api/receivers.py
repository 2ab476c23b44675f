"""The health and verification of receivers, and the health of callbacks, with pause and resume; resume also ends a hold
after a 410."""

import asyncio
from collections.abc import Mapping
from math import isinf
from typing import Final, Literal, NamedTuple

from aiohttp import web

from relay.api.access import ADMIN, READ, RECEIVER
from relay.api.audit import has_changed, record_audit
from relay.api.context import ApiContext
from relay.api.problems import NOT_FOUND, TOO_MANY, Problem, busy
from relay.api.registrar import Written
from relay.api.registration import described
from relay.api.responses import Reply, view_as
from relay.api.route import Example, route
from relay.control.registry import Registry
from relay.domain.errors import LogUnavailable
from relay.domain.hold import hold
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.statistics import Measured, health_of, recent_of
from relay.domain.times import rfc3339
from relay.domain.topics import SHARED, lane_of
from relay.domain.verification import HandshakeResult, handshake_of, next_try
from relay.engine.holding import Holding
from relay.schema.receivers import (
    Condition,
    EndpointView,
    LaneView,
    ParkedView,
    ReceiverHealthView,
    ReceiverView,
    TriedView,
    VerificationView,
    Why,
)
from relay.schema.statistics import HealthView
from relay.state.lanes import in_lane
from relay.state.port import EndpointHealth
from relay.state.read_model import Statistics
from relay.state.replies import answered
from relay.telemetry.redaction import escape_control

AT_A_TIME: Final = 16
"""Handshakes of a process that requests wait for."""


class VerificationResource:
    """`POST /v1/receivers/{name}/verify`."""

    noun = "receivers"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._registry = context.registry
        self._in_progress = 0

    @route("POST", "/v1/receivers/{name}/verify", scope=RECEIVER, audit="receiver.verified", answer="The outcome.")
    async def verify_receiver(self, request: web.Request, name: str) -> TriedView:
        """Run the verification handshake of a receiver.

        It runs at once, of the kind in `verification` of the receiver. If one is in progress, its result is returned,
        or 429 if that takes too long. A receiver with `verification: none` needs none.
        """
        receiver = self._registry.receiver(name)
        if receiver is None or receiver.unusable is not None:
            raise Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r} that messages can be sent to.")
        result = None if receiver.verification == "none" else await self._tried(receiver)
        view: TriedView = {
            "name": name,
            "proved": result is not None and result.verified_at is not None,
            "detail": None if result is None else result.detail or None,
            "verification": verification_of(self._registry, self._registry.receiver(name) or receiver),
        }
        record_audit(request, proved=view["proved"])
        return view

    async def _tried(self, receiver: Receiver) -> HandshakeResult:
        if self._in_progress >= AT_A_TIME:
            raise busy("Too many handshakes are in progress.", TOO_MANY)
        self._in_progress += 1
        try:
            result = await self._context.verify(receiver)
        finally:
            self._in_progress -= 1
        if result is None:
            raise busy(f"A handshake with {receiver.name} is in progress.", TOO_MANY)
        return result


def verification_of(registry: Registry, receiver: Receiver) -> VerificationView:
    """The state that this process knows."""
    return verification_view(receiver, registry.verifications.newest(receiver.name))


def verification_view(receiver: Receiver, result: HandshakeResult | None) -> VerificationView:
    """`result`: of the newest handshake; one with another URL is ignored."""
    kind = receiver.verification
    if kind == "none" or (result is not None and result.of != handshake_of(kind, receiver.post.url)):
        result = None
    view: VerificationView = {
        "kind": kind,
        "state": "not_required" if kind == "none" else "pending",
        "verified_at": None,
        "tried_at": None if result is None else rfc3339(result.tried_at),
        "next_try_at": None,
        "detail": None if result is None else result.detail or None,
        "allowed_rate": None,
    }
    if result is None:
        return view
    if result.verified_at is None:
        return {**view, "state": "failed", "next_try_at": rfc3339(next_try(result))}
    verified_at = rfc3339(result.verified_at)
    return {**view, "state": "verified", "verified_at": verified_at, "allowed_rate": result.allowed_rate}


LANE_LOOK_S: Final = 2.0
"""Time limit for reading the lane: the health of an endpoint is known without the log, and a pause must not wait for
it."""
MOST_WORDS: Final = 4_096
"""Bytes of a body that says why."""


class FoundEndpoint(NamedTuple):
    """The endpoint of the receiver or callback in a path. `owner`: of the endpoint in the state. `endpoint`: its
    settings; None if all were refused. `refused`: why its newest settings are not in effect. `receiver`: that has it;
    None for a callback, and if all settings were refused."""

    owner: str
    endpoint: Endpoint | None
    refused: str | None = None
    receiver: Receiver | None = None


class ReceiversResource:
    """`GET /v1/receivers/{name}`, and `POST` to its `/pause` and `/resume`.

    The same of a source's callback under `/v1/sources/{source_id}/callback`.
    """

    noun = "receivers"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._holding = Holding(context.log, context.state, context.topics.receiver_config)

    @route("GET", "/v1/receivers/{name}", scope=RECEIVER, answer="The current health.")
    async def get_receiver(self, name: str) -> Reply[ReceiverHealthView]:
        """Get a receiver with its health."""
        return await self._whole(self._receiver(name))

    @route(
        "POST",
        "/v1/receivers/{name}/pause",
        scope=RECEIVER,
        audit="receiver.paused",
        most_bytes=MOST_WORDS,
        answer="The current health.",
        example=Example(200, body={"reason": "it is being moved"}),
    )
    async def pause_receiver(self, request: web.Request, name: str, body: Why) -> Reply[ReceiverHealthView]:
        """Pause a receiver.

        Nothing is sent until it is resumed. Its messages wait, and their `max_age` continues to count.
        """
        found = self._receiver(name)
        await self._pause(request, found, body)
        return await self._whole(found)

    @route(
        "POST", "/v1/receivers/{name}/resume", scope=RECEIVER, audit="receiver.resumed", answer="The current health."
    )
    async def resume_receiver(self, request: web.Request, name: str) -> Reply[ReceiverHealthView]:
        """Resume a receiver.

        Its pause or outage ends, and its breaker is closed.
        """
        found = self._receiver(name)
        await self._resume(request, found)
        return await self._whole(found)

    @route(
        "GET",
        "/v1/sources/{source_id}/callback",
        scope=READ,
        noun="callbacks",
        answer="The current health.",
        example=Example(200, path={"source_id": "calls"}),
    )
    async def get_callback(self, source_id: str) -> EndpointView:
        """Get the health of a callback."""
        return await self._health(self._callback(source_id))

    @route(
        "POST",
        "/v1/sources/{source_id}/callback/pause",
        scope=ADMIN,
        audit="callback.paused",
        noun="callbacks",
        most_bytes=MOST_WORDS,
        answer="The current health.",
        example=Example(200, path={"source_id": "calls"}, body={"reason": "it is being moved"}),
    )
    async def pause_callback(self, request: web.Request, source_id: str, body: Why) -> EndpointView:
        """Pause a callback.

        Nothing is sent until it is resumed. Its results wait, and their `max_age` continues to count.
        """
        found = self._callback(source_id)
        await self._pause(request, found, body)
        return await self._health(found)

    @route(
        "POST",
        "/v1/sources/{source_id}/callback/resume",
        scope=ADMIN,
        audit="callback.resumed",
        noun="callbacks",
        answer="The current health.",
        example=Example(200, path={"source_id": "calls"}),
    )
    async def resume_callback(self, request: web.Request, source_id: str) -> EndpointView:
        """Resume a callback.

        Its pause or outage ends, and its breaker is closed.
        """
        found = self._callback(source_id)
        await self._resume(request, found)
        return await self._health(found)

    async def _pause(self, request: web.Request, found: FoundEndpoint, body: Why) -> None:
        why = escape_control(body.reason)  # it may be shown on a terminal
        await self._holding.hold(found.owner, hold("paused", self._context.clock.time(), why))
        record_audit(request, reason=why)
        has_changed(request)

    async def _resume(self, request: web.Request, found: FoundEndpoint) -> None:
        await self._holding.resume(found.owner)
        has_changed(request)

    def _receiver(self, name: str) -> FoundEndpoint:
        self._context.check_receiver(name)
        receiver, refused = self._context.directory.receiver(name), self._context.directory.refusal(name)
        if receiver is None or receiver.unusable is not None:
            return FoundEndpoint(f"r:{name}", None, refused)
        return FoundEndpoint(f"r:{name}", receiver.post, refused, receiver)

    def _declared(self, name: str) -> ReceiverView:
        written = self._context.registrar.find(name)  # None: just removed
        return {**described(Written(name, b"")), "etag": ""} if written is None else described(written)

    def _callback(self, source_id: str) -> FoundEndpoint:
        return FoundEndpoint(f"s:{source_id}", callback_of(self._context, source_id))

    async def _whole(self, found: FoundEndpoint) -> Reply[ReceiverHealthView]:
        name, receiver = name_of(found.owner), found.receiver
        whole: ReceiverHealthView = {
            **await self._health(found),
            **self._declared(name),
            "verification": None if receiver is None else verification_of(self._context.registry, receiver),
            "hot_since": self._hot_since(name),
        }
        return Reply(whole, {"ETag": f'"{whole["etag"]}"'} if whole["etag"] else {})

    async def _health(self, found: FoundEndpoint) -> EndpointView:
        state, now, owner = self._context.state, self._context.clock.time(), found.owner
        [health] = await state.endpoints([owner])
        [parked] = await answered(state.parked([owner]))
        [statistics] = await state.statistics([owner])
        oldest_s = waited_s(await state.waiting(), owner, now)
        held = health.hold
        is_verified = found.receiver is None or found.receiver.verified
        now_sent = "refused" if found.endpoint is None else condition(health, found.endpoint, is_verified)
        return {
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
            "parked": view_as(ParkedView, parked),
            "in_lane": await self._in_lane(found),
        }

    def _hot_since(self, name: str) -> str | None:
        registry = self._context.registry
        return rfc3339(registry.lanes.hot[name].since) if registry.is_hot(name) else None

    async def _in_lane(self, found: FoundEndpoint) -> LaneView | None:
        """The unfinished records of its lane; None for a callback, and if it is not known at once."""
        if found.receiver is None:
            return None
        lane = lane_of(found.receiver)
        try:
            async with asyncio.timeout(LANE_LOOK_S):
                count = await in_lane(self._context.log, self._context.topics, found.receiver.name, lane)
        except (LogUnavailable, TimeoutError):
            return None
        return {"lane": "shared" if lane == SHARED else "dedicated", "unfinished": count}


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
    failure = None if last is None else last.failure or (str(last.status) if (last.status or 0) >= 300 else None)
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


def condition_of(receiver: Receiver | None, health: EndpointHealth) -> Condition | Literal["refused"]:
    """The condition of a receiver; `refused` if its settings cannot be used here."""
    if receiver is None or receiver.unusable is not None:
        return "refused"
    return condition(health, receiver.post, receiver.verified)


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
