"""POST of an answer: how a receiver that said 202 brings its answer later.

The token in the URL proves that the relay gave this delivery to the caller, so nothing else is required; not even a
row: after a loss of the state the answer still counts. Every step can be repeated, and the receiver gets an error for
each failure before the last step, so that it repeats the call.
"""

from typing import Annotated, Final, assert_never

from aiohttp import web
from msgspec import Meta

from relay.api.access import OPEN
from relay.api.body import read_body
from relay.api.context import ApiContext
from relay.api.parameter import Parameter
from relay.api.problems import ANSWER_CLOSED, NOT_FOUND, Problem, busy, invalid
from relay.api.reading import plain_header
from relay.api.route import UNAUDITED, Body, Example, route
from relay.api.status import StatusReader
from relay.domain.answer_token import TokenExpired, TokenInvalid, read
from relay.domain.errors import ExpressionError, StateUnavailable
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.jwe import opened
from relay.domain.message import MAX_TEXT_BYTES, Message
from relay.domain.receiver import BreakerPolicy, Source
from relay.domain.variables import kept_of
from relay.schema.messages import Recorded
from relay.state.attempts import Change, Settlement
from relay.state.replies import answered
from relay.state.rows import Mark, Result, Row, Stage, delivery_row
from workers.records import answer_record

_STATUS: Final = "relay-answer-status"


_ANY: Final = {"application/json": None, "application/octet-stream": None}


class AnswersResource:
    """The answer URLs; without a secret for their tokens there are none."""

    noun = "answers"

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._context = context
        self._reader = reader

    @route(
        "POST",
        "/v1/answers/{token}",
        scope=OPEN,
        audit=UNAUDITED,
        reads_itself=True,
        parameters=(
            Parameter(
                "relay-answer-status",
                Annotated[int, Meta(ge=100, le=599)],
                "Status of the answer. Default: 200.",
                "header",
            ),
        ),
        body=Body(_ANY, required=False),
        answer="The answer is on its way to the sender, or an earlier one was accepted.",
        problems=(ANSWER_CLOSED,),
        example=Example(
            200, path={"token": "wC7uUWCB--mHirAVG3IKkzAAMTcwMDAwMDA2MABjaQBnaXRodWIAc2VudC0x"}, body={"passed": True}
        ),
    )
    async def answer_delivery(self, request: web.Request) -> Recorded:
        """Accept a receiver's later answer.

        The URL is the delivery's `relay-answer-url`; its token is the proof of who answers. The body is the answer.
        """
        delivery, generation = await self._delivery(request.match_info["token"])
        status, content_type = _answer_status(request), _content_type(request)
        body = await read_body(request, self._context.answer_body_cap)
        content_type, body = opened(self._context.answer_keys, content_type, body)
        duplicate = await self.take(delivery, generation, Result("answered", status, content_type, body))
        return Recorded("recorded", duplicate)

    async def take(self, delivery: DeliveryId, generation: int, result: Result) -> bool:
        """Store an answer and publish it; True: there was one already. Raises a Problem where it comes too late."""
        row = await self._settled(delivery, generation, result)
        if row.generation > generation:
            if not _waits_again(row):
                raise _closed()
            row = await self._settled(delivery, row.generation, result)
        match row.stage:
            case Stage.RESULT:
                await self._publish(delivery, row)
            case Stage.PUBLISHED | Stage.DONE:
                pass
            case Stage.FAILED:
                raise _closed()
            case Stage.NONE | Stage.ENQUEUED | Stage.SENDING | Stage.ACCEPTED | Stage.AWAITING:
                raise StateUnavailable(f"the answer was not stored: its row is at {row.stage.name}")
            case _:
                assert_never(row.stage)
        return row.stage is not Stage.RESULT or row.result != result

    async def _delivery(self, token: str) -> tuple[DeliveryId, int]:
        """A token that has expired counts while its delivery is unfinished: it may be of an earlier attempt, and
        `answer_deadline` may have grown."""
        context = self._context
        try:
            return read(context.answer_secrets, token, context.clock.time())
        except TokenExpired:
            delivery, generation = read(context.answer_secrets, token, 0.0)
            (row,) = await answered(context.state.peek([delivery_row(delivery)]))
            if row.generation < generation or not Stage.NONE < row.stage < Stage.PUBLISHED:
                raise _closed() from None
            return delivery, generation
        except TokenInvalid:
            raise Problem(NOT_FOUND, "There is no such answer URL.") from None

    async def _settled(self, delivery: DeliveryId, generation: int, result: Result) -> Row:
        receiver = self._context.directory.receiver(delivery.receiver)
        settlement = Settlement(
            delivery_row(delivery),
            generation,
            b"",
            Change.RESULT,
            last_status=result.status,
            result=result,
            up=True,
            breaker=receiver.post.breaker if receiver is not None else BreakerPolicy(),
        )
        row = (await answered(self._context.state.settle([settlement])))[0]
        if row is None:
            raise StateUnavailable("an answer was settled without a word of its row")
        return row

    async def _publish(self, delivery: DeliveryId, row: Row) -> None:
        """Append the answer that the row holds, ours or the one before it; a second copy is absorbed by ToSender."""
        context, result = self._context, row.result
        if result is None:
            raise StateUnavailable("a row with an outcome came without it")
        if result.outcome == "dead":
            raise _closed()  # the delivery was given up a moment ago
        hop = await self._hop(delivery, row.generation)
        attempts = max(1, row.attempts)  # the token went out with a POST, also where its row was lost
        at = (await context.log.append([answer_record(context.topics, hop, result, attempts)]))[0]
        place, awaited = (at.partition, at.offset), hop.wait_s > 0
        mark = Mark(delivery_row(delivery), row.generation, Stage.PUBLISHED, place, awaited=awaited)
        await answered(context.state.mark([mark]))
        self._count(hop)

    def _count(self, hop: Hop) -> None:
        now = self._context.clock.time()
        age_s = now - hop.accepted_ms / 1000 if hop.accepted_ms else None
        self._context.meter.answered(hop.delivery.receiver, "callback", age_s)

    async def _hop(self, delivery: DeliveryId, generation: int) -> Hop:
        """The delivery with what its message's first record says, where that is still there."""
        source = self._context.directory.source(delivery.source_id)
        find = self._reader.find if source.keep == {} else self._reader.find_restored
        known = await find(MessageId(delivery.source_id, delivery.message_id))
        if known is None:
            return Hop(delivery, generation=generation)
        message = known.message
        receiver = self._context.directory.receiver(delivery.receiver)
        return Hop(
            delivery,
            event_type=message.event_type,
            time=message.time,
            generation=generation,
            origin=known.at,
            accepted_ms=max(0, known.received_ms or 0),
            traceparent=message.traceparent,
            tracestate=message.tracestate,
            wait_s=message.wait_s,
            keep=_kept(source, message),
            life=receiver.life.id if receiver is not None and receiver.life.has("", known.at) else "",
        )


def _waits_again(row: Row) -> bool:
    """Whether it is of a replay that waits for the answer without a POST: the receiver has only the former URL."""
    return row.stage in (Stage.AWAITING, Stage.RESULT) and not row.attempts


def _kept(source: Source, message: Message) -> str | None:
    """What `source` keeps of the message, as it was when the message was routed; None if it now keeps what the message
    does not have."""
    if source.keep is None:
        raise busy("The settings of the message's source cannot be read here; repeat the request.")
    try:
        return kept_of(source, message)
    except ExpressionError:
        return None


def _answer_status(request: web.Request) -> int:
    text = ",".join(request.headers.getall(_STATUS, ["200"]))  # of two, neither is certain
    if not (text.isascii() and text.isdigit() and len(text) == 3 and 100 <= int(text) <= 599):
        raise invalid(f"{_STATUS} must be an HTTP status, 100 to 599", header=_STATUS)
    return int(text)


def _content_type(request: web.Request) -> str | None:
    content_type = plain_header(request, "Content-Type")
    if content_type is not None and len(content_type.encode()) > MAX_TEXT_BYTES:
        raise invalid(f"Content-Type is longer than {MAX_TEXT_BYTES} bytes", header="Content-Type")
    return content_type


def _closed() -> Problem:
    return Problem(ANSWER_CLOSED, "This delivery no longer accepts an answer.")
