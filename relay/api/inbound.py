"""POST of a webhook as others send it: GitHub, Stripe, Slack, Standard Webhooks, CloudEvents, or a generic
HMAC. Once its signature is verified, it is a message like any other.

The proof is in the request, so there is no API key; and the request may have been captured and replayed. Therefore the
response has the state of the message, and never a receiver's answer. Signatures without a timestamp can be replayed by
anyone who captured a request, so a webhook with the id of an earlier one by default sends only
failed deliveries again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from msgspec import structs

from relay.api.access import OPEN
from relay.api.batch import Defaults, Item, Refused, largest_body, read_events
from relay.api.batch import read_event as read_structured
from relay.api.body import read_body
from relay.api.context import ApiContext
from relay.api.incoming import as_incoming, content_type_of
from relay.api.intake import INTAKE_PROBLEMS, AcceptedMessage, IncomingMessage, Intake, Repeated
from relay.api.messages import MessagesResource
from relay.api.origin_check import Refusals
from relay.api.parameter import Parameter
from relay.api.problems import (
    BAD_SIGNATURE,
    ID_CONFLICT,
    NO_RECEIVER,
    NOT_FAILED,
    NOT_FOUND,
    OVER_QUOTA,
    UNSUPPORTED,
    Problem,
    busy,
    invalid,
)
from relay.api.quotas import Quotas
from relay.api.reading import attributes, message_location, query_of, source_in_path
from relay.api.replay_one import ReplayResource
from relay.api.responses import foreign_response, json_response
from relay.api.route import UNAUDITED, Body, DocumentedResponse, Example, json_of, route
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.inbound import FORM, Challenge, InboundEvent, Refusal, read_event, verify
from relay.domain.message import Message
from relay.domain.reasons import ON_PURPOSE
from relay.domain.receiver import Inbound, Quota
from relay.schema.messages import BatchTaken, DeliveryState, MessageView, Probed, WebhookView


async def _redelivered(replays: ReplayResource, policy: Inbound, first: MessageView) -> Mapping[str, int]:
    """The generations that begin now, by receiver. Deliveries in progress, or just replayed by another process, are
    left alone."""
    begun: dict[str, int] = {}
    if policy.redelivery == "never":
        return begun
    always = policy.redelivery == "always"
    for one in first.deliveries:
        if always or (one.status == "failed" and one.reason not in ON_PURPOSE):  # what was ended stays so
            delivery = DeliveryId(one.receiver, first.source_id, first.message_id)
            generation = await _begun_again(replays, delivery, only_failed=not always)
            if generation is not None:
                begun[one.receiver] = generation
    return begun


async def _begun_again(replays: ReplayResource, delivery: DeliveryId, *, only_failed: bool) -> int | None:
    try:
        plan = await replays.again(delivery, only_failed=only_failed)
    except Problem as problem:
        if problem.kind in (NOT_FAILED, NOT_FOUND):
            return None
        raise
    return plan.out[0].generation if plan.skip is None else None


_NO_FORM: Final = "This source reads fields of the payload: set the content type of the webhook to application/json."
_STRUCTURED: Final = "application/cloudevents+json"
_BATCH: Final = "application/cloudevents-batch+json"
_WHY: Final[Mapping[Refusal, str]] = {
    "missing": "The header with the signature or token is missing.",
    "wrong": "The signature is not one of this body with the secret of this source.",
    "old": "The signature is right, but its time is too far from now.",
}
_ARRIVED: Final = "arrived"
_CHALLENGE: Final = {"WWW-Authenticate": 'Webhook realm="relay"'}
_BEARER: Final = {"WWW-Authenticate": 'Bearer realm="relay"'}


_ANY: Final = {"application/json": None, "application/octet-stream": None}
_OF_GITHUB: Final = (
    Parameter("x-github-event", str, "For `github`: the event type.", "header"),
    Parameter("x-github-delivery", str, "For `github`: the id of the message.", "header"),
    Parameter("x-hub-signature-256", str, "For `github`: the signature.", "header"),
)


@dataclass(eq=False, repr=False)
class InboundResource:
    """`/v1/in/{source_id}`, for sources that have `inbound`."""

    noun = "webhooks in"
    _context: ApiContext
    _messages: MessagesResource
    _intake: Intake
    _refusals: Refusals
    _quotas: Quotas
    _replays: ReplayResource

    @route(
        "POST",
        "/v1/in/{source_id}",
        scope=OPEN,
        audit=UNAUDITED,
        reads_itself=True,
        parameters=_OF_GITHUB,
        body=Body(_ANY, required=False),
        answers=(
            DocumentedResponse(
                202,
                "The message was accepted.",
                json_of((WebhookView, BatchTaken)),
                {"Location": "The path of the message."},
            ),
            DocumentedResponse(
                200,
                "The response to a challenge or probe of the sender, which is not a message.",
                Body({"text/plain": str, "application/json": Probed}),
            ),
        ),
        problems=(*INTAKE_PROBLEMS, BAD_SIGNATURE, ID_CONFLICT, OVER_QUOTA),
        example=Example(
            202,
            path={"source_id": "hooks"},
            headers={
                "x-github-event": "push",
                "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
                "x-hub-signature-256": "sha256=7ea048cd006906cc692d743d203bc2ad000ce28dd3c5fa27d28cd05af5e4e1ab",
            },
            body='{"zen": "Keep it logically awesome."}',
        ),
    )
    async def take_webhook(self, request: web.Request) -> web.Response:
        """Accept a webhook of another service.

        For sources with `inbound`: GitHub, Stripe, Slack, Standard Webhooks, CloudEvents, or a generic HMAC. The
        signature is verified before anything else, in the headers of that kind.
        """
        source_id = source_in_path(request)
        policy = self._policy(source_id)
        body = await read_body(request, self._body_cap(policy, request))
        refusal = verify(policy, request.headers, body, self._context.clock.wall())
        if refusal is not None:
            raise self._refused(request, policy, refusal)
        query_of(request)
        if request.content_type == FORM and self._context.directory.source(source_id).keep:
            # its receivers' filters and requests read JSON as well: the event would be discarded after a 202
            raise invalid(_NO_FORM, kind=UNSUPPORTED, header="Content-Type")
        if policy.kind == "cloudevents":
            return await self._cloudevents(request, source_id, policy, body)
        event = read_event(policy, request.headers, body)
        if isinstance(event, Challenge):
            return foreign_response(event.text.encode(), "text/plain; charset=utf-8", {})
        return await self._event(request, source_id, policy, event, body)

    @route(
        "OPTIONS",
        "/v1/in/{source_id}",
        scope=OPEN,
        reads_itself=True,
        parameters=(
            Parameter("WebHook-Request-Origin", str, "Origin of the sender that asks to send events.", "header"),
        ),
        answers=(
            DocumentedResponse(
                200,
                "What the sender may send, if the source accepts CloudEvents.",
                None,
                {
                    "Allow": "The methods of this resource.",
                    "WebHook-Allowed-Origin": "The origin that asked.",
                    "WebHook-Allowed-Rate": "Requests per minute; `*` for any number.",
                },
            ),
        ),
        example=Example(200, path={"source_id": "hooks"}, headers={"WebHook-Request-Origin": "events.example"}),
    )
    async def ask_to_send_webhooks(self, request: web.Request) -> web.Response:
        """Answer the handshake of CloudEvents."""
        source_id = source_in_path(request)
        policy = self._policy(source_id)
        headers = {"Allow": "OPTIONS, POST"}
        origin = request.headers.get("WebHook-Request-Origin")
        if policy.kind == "cloudevents" and origin is not None and origin.isascii():
            headers |= {
                "WebHook-Allowed-Origin": origin,
                "WebHook-Allowed-Rate": _per_minute(self._quotas.of_source(source_id)),
            }
        return web.Response(headers=headers)

    def _policy(self, source_id: str) -> Inbound:
        source = self._context.directory.source(source_id)
        policy = source.inbound
        if policy is None and source.unusable is not None:
            raise busy("This process cannot use the settings of this source, perhaps for want of a secret: try again.")
        if policy is None:
            raise Problem(NOT_FOUND, "No source with this id accepts webhooks; set `inbound` of the source.")
        return policy

    def _body_cap(self, policy: Inbound, request: web.Request) -> int:
        cap = self._context.max_payload_bytes
        if policy.kind != "cloudevents":
            return cap
        if request.content_type == _BATCH:
            return largest_body(cap)
        # whatever its encoding adds (base64: a third); the payload itself is judged by `cap` later
        return 2 * cap if request.content_type == _STRUCTURED else cap

    def _refused(self, request: web.Request, policy: Inbound, why: Refusal) -> Problem:
        self._context.meter.refused(policy.kind, why)
        self._refusals.log("signature", request, kind=policy.kind, why=why)
        by_token = policy.kind == "cloudevents" and policy.header is None
        return Problem(BAD_SIGNATURE, _WHY[why], headers=_BEARER if by_token else _CHALLENGE)

    async def _event(
        self, request: web.Request, source_id: str, policy: Inbound, event: InboundEvent, body: bytes
    ) -> web.Response:
        id = MessageId(source_id, event.message_id or self._context.new_id())
        message = _message(request, policy, id, event.event_type, body)
        try:
            return await self._taken(request, policy, as_incoming(message, fresh=event.message_id is None))
        except Problem as problem:
            if event.is_probe and problem.kind is NO_RECEIVER:
                return json_response(200, Probed("no receiver subscribes to this probe"))
            raise

    async def _taken(self, request: web.Request, policy: Inbound, incoming: IncomingMessage) -> web.Response:
        await self._quotas.charge(request, incoming.message.source_id)
        view = await self._messages.accept(incoming)
        again = await _redelivered(self._replays, policy, view) if view.duplicate else {}
        return json_response(202, _webhook_view(view, again), Location=message_location(incoming.message.id))

    # CloudEvents

    async def _cloudevents(self, request: web.Request, source_id: str, policy: Inbound, body: bytes) -> web.Response:
        context = self._context
        defaults = Defaults(
            source_id=source_id,
            receivers=policy.receivers,
            event_type=None,
            traceparent=None,
            max_payload_bytes=context.max_payload_bytes,
            new_id=context.new_id,
            foreign=True,
        )
        if request.content_type == _BATCH:
            return await self._batch(request, source_id, read_events(body, defaults))
        if request.content_type == _STRUCTURED:
            return await self._taken(request, policy, _readable(read_structured(body, defaults)))
        return await self._taken(request, policy, _binary(request, source_id, policy, body))

    async def _batch(self, request: web.Request, source_id: str, items: list[Item]) -> web.Response:
        """All or a problem: senders of webhooks look at the status alone, so it must not hide an event that was not
        taken. They repeat the batch; what was taken is known by its id."""
        events = [_readable(item) for item in items]
        await self._quotas.charge(request, source_id, len(events))
        duplicates = 0
        for fate in await self._intake.take(source_id, events):
            match fate:
                case Problem():
                    raise fate
                case Repeated():
                    duplicates += 1
                case AcceptedMessage():
                    pass
        return json_response(202, BatchTaken(len(events), duplicates))


def _per_minute(quota: Quota | None) -> str:
    """As WebHook-Allowed-Rate has it: 1 at least, or any."""
    return "*" if quota is None else str(max(1, quota.messages * 60 // quota.window_s))


def _readable(item: Item) -> IncomingMessage:
    if isinstance(item, Refused):
        raise item.problem
    return item


def _binary(request: web.Request, source_id: str, policy: Inbound, body: bytes) -> IncomingMessage:
    """Attributes as headers. `ce-source` says where in the sender's world it happened: not our source_id."""
    names = ("ce-specversion", "ce-id", "ce-type", "ce-time")
    found = {name: next(iter(attributes(request, name)), None) for name in names}
    if found["ce-specversion"] != "1.0":
        raise invalid("ce-specversion must be 1.0", header="ce-specversion")
    if not found["ce-id"]:
        raise invalid("ce-id is missing, so it is not a CloudEvent", header="ce-id")
    message = _message(request, policy, MessageId(source_id, found["ce-id"]), found["ce-type"], body)
    return as_incoming(structs.replace(message, time=found["ce-time"]), fresh=False)


def _message(request: web.Request, policy: Inbound, id: MessageId, event_type: str | None, body: bytes) -> Message:
    return Message(*id, policy.receivers, event_type, content_type=content_type_of(request), payload=body)


def _webhook_view(view: MessageView, again: Mapping[str, int]) -> WebhookView:
    """`again`: the lives that this repeat has begun, by receiver."""
    deliveries = [
        DeliveryState(one.receiver, _ARRIVED, again[one.receiver], None)
        if one.receiver in again
        else DeliveryState(one.receiver, one.status, one.generation, one.reason)
        for one in view.deliveries
    ]
    status = _ARRIVED if again else view.status
    return WebhookView(view.source_id, view.message_id, status, view.duplicate, _detail(view, again), deliveries)


def _detail(view: MessageView, again: Mapping[str, int]) -> str | None:
    if again:
        return "It came before, and is sent once more to: " + ", ".join(again)
    has_failed = view.duplicate and any(one.status == "failed" for one in view.deliveries)
    return "It came before and has failed; this repeat does not send it again." if has_failed else None
