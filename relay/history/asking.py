"""Questions in texts as they are kept. Pure."""

from dataclasses import replace

from relay.domain.identity import MessageId
from relay.history.port import AttemptQuery, MessageQuery, Visible
from relay.history.text import clean


def kept_message(message: MessageId) -> MessageId:
    return MessageId(clean(message.source_id), clean(message.message_id))


def kept_visible(visible: Visible) -> Visible:
    if visible == Visible():
        return visible
    sources, receivers = sorted(map(clean, visible.sources or ())), sorted(map(clean, visible.receivers or ()))
    return Visible(sources, receivers, visible.lives)


def kept_query(query: MessageQuery) -> MessageQuery:
    return replace(
        query,
        visible=kept_visible(query.visible),
        source_id=_kept(query.source_id),
        receiver=_kept(query.receiver),
        reason=_kept(query.reason),
        event_type=_kept(query.event_type),
        id_prefix=_kept(query.id_prefix),
        header=None if query.header is None else (clean(query.header[0]), clean(query.header[1])),
    )


def kept_attempt_query(query: AttemptQuery) -> AttemptQuery:
    message = None if query.message is None else kept_message(query.message)
    return replace(query, visible=kept_visible(query.visible), message=message, receiver=_kept(query.receiver))


def _kept(text: str | None) -> str | None:
    return None if text is None else clean(text)
