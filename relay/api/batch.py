"""POST of many messages of one source, as JSON lines or a CloudEvents batch: for high rates.

The costs of HTTP, of the log and of the state are shared by all items; each is judged for itself. Payloads are cut out,
never re-encoded."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Annotated, Final, TypeVar, assert_never

import msgspec
from aiohttp import web
from msgspec import Meta

from relay.api.access import INGEST
from relay.api.body import read_body
from relay.api.context import ApiContext
from relay.api.incoming import (
    IDEMPOTENCY_KEY,
    given_fields,
    is_structured,
    key_of,
    one_off_in,
    one_type,
    own_headers,
    receiver_names,
    receivers_in,
    trace_in,
)
from relay.api.intake import AcceptedMessage, Fate, IncomingMessage, Intake, Repeated
from relay.api.messages import RATE, RECEIVERS, TIMING, TRACE, TYPE
from relay.api.parameter import MessageIdText, Parameter
from relay.api.problem_details import document_of, problem_of
from relay.api.problems import OVER_QUOTA, TOO_LARGE, UNSUPPORTED, Problem, invalid, invalid_at
from relay.api.quotas import Quotas
from relay.api.reading import query_of, source_in_path
from relay.api.responses import JSON
from relay.api.route import UNAUDITED, Body, Example, route
from relay.domain.errors import InvalidRecord
from relay.domain.headers import Pairs, read_headers
from relay.domain.identity import MessageId, check_id
from relay.domain.json_pointer import NOT_JSON
from relay.domain.message import Message, is_json, message_headers, short_text
from relay.domain.one_off import OneOff
from relay.domain.recipients import receiver_name
from relay.domain.text import half_pair
from relay.domain.timing import FIELDS, Timing, fields_of, read_timing
from relay.domain.trace import fit_traceparent, fit_tracestate
from relay.schema.messages import BatchLine, BatchView, CloudEvent, ItemView

MAX_ITEMS: Final = 1_000
"""Maximum number of items: one call of log and state handles that many; more would delay all other requests."""

_LINE: Final = re.compile(rb"[^ \t\r\n][^\n]*")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for every item, from path, query and headers; `receivers` and `event_type` unless it says its own;
    `headers` are each message's own, beside those that it names. `timing`: unless it says any of its own.

    `max_payload_bytes`: of one item. `new_id`: for items without an id; `key`: these get ids made of it instead, the
    same for a repeated batch. `foreign`: the events were not made for this relay: they have an id and a source, which
    is no source_id, and who receives them is not theirs to say.
    """

    source_id: str
    receivers: tuple[str, ...] | None
    event_type: str | None
    traceparent: str | None
    max_payload_bytes: int
    new_id: Callable[[], str]
    key: str | None = None
    foreign: bool = False
    headers: Pairs = ()
    tracestate: str | None = None
    timing: Timing | None = None
    one_off: Callable[[Mapping[str, object], MessageId], OneOff | None] = lambda _given, _message: None


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejected item. `message_id`: None if it could not be read."""

    message_id: str | None
    problem: Problem


Item = IncomingMessage | Refused


_ABSENT: Final = msgspec.Raw()
# An array of fixed length: what goes beyond it is skipped. A list would first make an object of each of millions.
_Slots: Final = msgspec.defstruct(
    "_Slots", [(f"item{n}", msgspec.Raw, _ABSENT) for n in range(MAX_ITEMS + 1)], array_like=True
)
_decode_slots = msgspec.json.Decoder(_Slots).decode
_decode_line = msgspec.json.Decoder(BatchLine).decode
_decode_event = msgspec.json.Decoder(CloudEvent).decode
_decode_text = msgspec.json.Decoder(str).decode


def read_lines(body: bytes, defaults: Defaults) -> list[Item]:
    """An item for each line of JSON that is not empty. Raises a Problem when there are too many."""
    maker = _Maker(defaults)
    return [_item(_decode_line, line, maker.from_line) for line in _capped(m[0] for m in _LINE.finditer(body))]


def read_events(body: bytes, defaults: Defaults) -> list[Item]:
    """An item for each element of a JSON array. Raises a Problem if the body is not an array, or too long."""
    maker = _Maker(defaults)
    try:
        slots = msgspec.structs.astuple(_decode_slots(body))
    except NOT_JSON as error:
        raise invalid(f"the body is not a JSON array: {_reason(error, body)}") from error
    events = _capped(bytes(slot) for slot in slots if slot is not _ABSENT)
    return [_item(_decode_event, event, maker.from_event) for event in events]


def read_event(body: bytes, defaults: Defaults) -> Item:
    """The item that is the one CloudEvent (structured mode) in `body`."""
    return _item(_decode_event, body, _Maker(defaults).from_event)


def _capped(parts: Iterable[bytes]) -> Iterator[bytes]:
    for number, part in enumerate(parts):
        if number == MAX_ITEMS:
            raise Problem(TOO_LARGE, f"A batch may have at most {MAX_ITEMS} items.")
        yield part


def _item(decode: Callable[[bytes], T], text: bytes, make: Callable[[T], Item]) -> Item:
    try:
        return make(decode(text))
    except NOT_JSON as error:
        return Refused(None, invalid(f"the item cannot be read: {_reason(error, text)}"))


def _reason(error: Exception, text: bytes) -> str:
    match error:
        case RecursionError():
            return "it is nested too deeply"
        case UnicodeDecodeError():
            return "it is not valid UTF-8"
        case msgspec.ValidationError():
            return str(error)
        case _:
            return half_pair(text) or str(error)


class _Maker:
    """Makes messages of one batch. What its items have in common is checked once."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._numbers = count(1)

    def from_line(self, line: BatchLine) -> Item:
        if line.type and line.event_type and line.type != line.event_type:
            return Refused(line.message_id, invalid("type and event_type contradict each other"))
        return self._made(line, bytes(line.payload), line.content_type or JSON)

    def from_event(self, event: CloudEvent) -> Item:
        if event.specversion != "1.0":
            return Refused(event.id, invalid("specversion must be 1.0"))
        if event.data_base64 is not None and event.data is not msgspec.UNSET:
            return Refused(event.id, invalid("data and data_base64 exclude each other"))
        foreign = self._defaults.foreign
        if foreign and event.id is None:
            return Refused(None, invalid("id is missing, so it is not a CloudEvent"))
        line = BatchLine(
            _ABSENT,
            source_id=None if foreign else event.source,
            message_id=event.id,
            receiver=None if foreign else event.receiver,
            type=event.type,
            time=event.time,
        )
        content_type = event.datacontenttype or (None if event.data is msgspec.UNSET else JSON)
        return self._made(line, _data(event), content_type, (event.traceparent, event.tracestate))

    def _made(
        self,
        line: BatchLine,
        payload: bytes,
        content_type: str | None,
        trace: tuple[str | None, str | None] = (None, None),
    ) -> Item:
        defaults, given = self._defaults, line.receiver
        receivers = (given,) if isinstance(given, str) else None if given is None else tuple(given)
        traceparent, tracestate = trace if trace[0] else (defaults.traceparent, defaults.tracestate)
        try:
            if line.source_id is not None and line.source_id != defaults.source_id:
                raise InvalidRecord("invalid", "the source is another one than in the path")
            if len(payload) > defaults.max_payload_bytes:
                raise Problem(TOO_LARGE, f"A payload may have at most {defaults.max_payload_bytes:,} bytes.")
            if content_type is not JSON and content_type is not None and is_structured(content_type):
                raise Problem(UNSUPPORTED, "The payload of an item cannot be a CloudEvent with attributes of its own.")
            id = check_id(line.message_id, "the message id") if line.message_id is not None else self._new_id()
            endpoint = {"endpoint": line.endpoint, "signing_secret": line.signing_secret}
            own = defaults.one_off(endpoint, MessageId(defaults.source_id, id))
            if own is not None:
                if receivers is not None:
                    raise InvalidRecord("invalid", "receiver and endpoint exclude each other: give one of them")
                receivers = (receiver_name(own.url),)
            message = Message(
                source_id=defaults.source_id,
                message_id=id,
                receivers=defaults.receivers if receivers is None else self._receivers(receivers),
                event_type=short_text(line.event_type or line.type, "type") or defaults.event_type,
                time=short_text(line.time, "time"),
                content_type=short_text(content_type, "content type"),
                payload=payload,
                traceparent=fit_traceparent(traceparent),
                tracestate=fit_tracestate(tracestate),
                headers=read_headers(dict(defaults.headers) | line.headers) if line.headers else defaults.headers,
                timing=read_timing(fields_of(line)) or defaults.timing,
                one_off=own,
            )
        except (InvalidRecord, Problem) as error:
            return Refused(line.message_id, problem_of(error))
        fresh = line.message_id is None and defaults.key is None
        return IncomingMessage(message, message_headers(message), fresh=fresh)

    def _new_id(self) -> str:
        key = self._defaults.key
        if key is None:
            return self._defaults.new_id()
        return check_id(f"{key}.{next(self._numbers)}", f"the message id made of {IDEMPOTENCY_KEY}")

    def _receivers(self, given: tuple[str, ...]) -> tuple[str, ...]:
        names = self._names.get(given)
        if names is None:
            names = self._names[given] = receiver_names(given)
        return names


def _data(event: CloudEvent) -> bytes:
    """The payload. JSON is used unchanged; a string with a `datacontenttype` other than JSON is decoded to its text
    (CloudEvents JSON format, 3.1)."""
    if event.data_base64 is not None:
        return event.data_base64
    if isinstance(event.data, msgspec.UnsetType):
        return b""
    data = bytes(event.data)
    if data.startswith(b'"') and event.datacontenttype and not is_json(event.datacontenttype):
        return _decode_text(data).encode()
    return data


MAX_BATCH_BYTES: Final = 16 * 1024**2
"""Maximum size of a body: 1,000 items of 16 kB. All of it is held in memory."""

_READERS: Final[Mapping[str, Callable[[bytes, Defaults], list[Item]]]] = {
    "application/x-ndjson": read_lines,
    "application/cloudevents-batch+json": read_events,
}
_ACCEPTED: Final = 202
_KEY: Final = Parameter(
    IDEMPOTENCY_KEY, MessageIdText, "Items without an id get `KEY.1`, `KEY.2` and so on. Default: random ids.", "header"
)


class BatchResource:
    """`POST /v1/sources/{source_id}/messages:batch`."""

    noun = "messages"

    def __init__(self, context: ApiContext, intake: Intake, quotas: Quotas) -> None:
        self._context = context
        self._intake = intake
        self._quotas = quotas
        self._body_cap = largest_body(context.max_payload_bytes)

    @route(
        "POST",
        "/v1/sources/{source_id}/messages:batch",
        scope=INGEST,
        audit=UNAUDITED,
        reads_itself=True,
        parameters=(RECEIVERS, TYPE, *TIMING, _KEY, *TRACE),
        body=Body(
            {
                "application/x-ndjson": str,
                "application/cloudevents-batch+json": Annotated[list[CloudEvent], Meta(max_length=MAX_ITEMS)],
            },
            items={"application/x-ndjson": BatchLine},
        ),
        answer="A result for each message.",
        headers=RATE,
        problems=(OVER_QUOTA,),
        example=Example(
            200,
            query={"receiver": "ci"},
            body='{"message_id": "b-1", "payload": {"n": 1}}\n{"message_id": "b-2", "payload": {"n": 2}}\n',
            content_type="application/x-ndjson",
        ),
    )
    async def send_messages(self, request: web.Request) -> BatchView:
        """Send up to 1000 messages.

        The body is JSON lines, or a CloudEvents batch. A 200 has a result for each item, in order, with the `status`
        that it would have got alone. Any other response is about the whole batch.
        """
        read = _READERS.get(request.content_type)
        if read is None:
            raise _unsupported()
        defaults = _defaults(request, self._context)
        items = read(await read_body(request, self._body_cap), defaults)
        readable = [item for item in items if isinstance(item, IncomingMessage)]
        await self._quotas.charge(request, defaults.source_id, len(readable))
        fates = await self._intake.take(defaults.source_id, readable)
        views = list(_views(items, fates, request))
        accepted = sum(view.status == _ACCEPTED for view in views)
        duplicates = sum(view.duplicate for view in views)
        return BatchView(views, accepted, len(views) - accepted, duplicates)


def largest_body(max_payload_bytes: int) -> int:
    """Maximum bytes of a body: a single message of the maximum size fits in, in any encoding (base64 adds a third)."""
    return max(MAX_BATCH_BYTES, 2 * max_payload_bytes)


def _unsupported() -> Problem:
    types = ", ".join(_READERS)
    problem = invalid(f"A batch has to be one of: {types}", kind=UNSUPPORTED, header="Content-Type")
    problem.headers["Accept-Post"] = types
    return problem


def _defaults(request: web.Request, context: ApiContext) -> Defaults:
    query = query_of(request, "receiver", "type", *FIELDS)
    traceparent, tracestate = trace_in(request)
    return Defaults(
        source_id=source_in_path(request),
        receivers=receivers_in(query),
        event_type=_type_in(query),
        traceparent=traceparent,
        tracestate=tracestate,
        max_payload_bytes=context.max_payload_bytes,
        new_id=context.new_id,
        key=key_of(request),
        headers=own_headers(request),
        timing=read_timing(given_fields(request, query)),
        one_off=partial(one_off_in, context),
    )


def _type_in(query: Mapping[str, Sequence[str]]) -> str | None:
    with invalid_at(parameter="type"):
        return short_text(one_type(query.get("type", ())), "type")


def _views(items: Sequence[Item], fates: Sequence[Fate], request: web.Request) -> Iterator[ItemView]:
    following = iter(fates)
    for index, item in enumerate(items):
        if isinstance(item, Refused):
            yield _view(index, item.message_id, item.problem, request)
        else:
            yield _view(index, item.message.message_id, next(following), request)


def _view(index: int, message_id: str | None, fate: Fate, request: web.Request) -> ItemView:
    match fate:
        case AcceptedMessage(warning=warning):
            warnings = msgspec.UNSET if warning is None else (warning,)
            return ItemView(index, message_id, _ACCEPTED, duplicate=False, warnings=warnings)
        case Repeated():
            return ItemView(index, message_id, _ACCEPTED, duplicate=True)
        case Problem():
            return ItemView(index, message_id, fate.kind.status, duplicate=False, problem=document_of(fate, request))
        case _:
            assert_never(fate)
