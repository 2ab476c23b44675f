"""Corrects statuses of the history by the state, for answers that a callback has taken.

The record of a callback's attempt is in memory for a moment: if the process is killed then, the history never has it.
The delivery's row in the state has a mark once the callback has taken the answer, so the rows of listed deliveries
without that mark are read. If the state is unavailable or has no row any more, the history's status stays.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import structs

from relay.api.view import status_of
from relay.domain.errors import Unavailable
from relay.domain.identity import DeliveryId
from relay.domain.progress import Status
from relay.history.port import DeliveryFound, MessageFound, MessageQuery
from relay.state.port import State
from relay.state.rows import Row, delivery_row

IN_QUESTION: Final[Status] = "response_received_from_receiver"
"""The status of a delivery without a recorded callback."""
_TAKEN: Final[Status] = "response_delivered_to_sender"


async def brought_up(state: State, found: Sequence[MessageFound], query: MessageQuery) -> list[MessageFound]:
    """The messages with the statuses of the state. A query for a status drops those that no longer have it."""
    wanted = [each for message in found for each in _in_question(message)]
    try:
        seen = await state.watch([delivery_row(each) for each in wanted]) if wanted else []
    except Unavailable:
        return list(found)
    rows = {delivery: one.row for delivery, one in zip(wanted, seen, strict=True)}
    raised = [_raised(message, rows) for message in found]
    return [each for each in raised if _is_wanted(each, query)] if query.status == IN_QUESTION else raised


def _in_question(message: MessageFound) -> list[DeliveryId]:
    ids = message.arrival.message
    return [DeliveryId(each.receiver, *ids) for each in message.deliveries if each.status == IN_QUESTION]


def _raised(message: MessageFound, rows: Mapping[DeliveryId, Row]) -> MessageFound:
    ids = message.arrival.message
    deliveries = [_delivery(each, rows.get(DeliveryId(each.receiver, *ids))) for each in message.deliveries]
    return structs.replace(message, deliveries=tuple(deliveries))


def _delivery(found: DeliveryFound, row: Row | None) -> DeliveryFound:
    is_taken = row is not None and row.generation == found.generation and status_of(row) == _TAKEN
    return structs.replace(found, status=_TAKEN) if is_taken and found.status == IN_QUESTION else found


def _is_wanted(message: MessageFound, query: MessageQuery) -> bool:
    return any(each.status == query.status and query.receiver in (None, each.receiver) for each in message.deliveries)
