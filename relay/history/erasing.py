"""SQL that erases payloads, for SQLite and PostgreSQL. Pure: builds SQL texts.

The rows of messages and deliveries stay, so that lists and statistics do; attempts are deleted, as responses may repeat
a payload.
"""

from collections.abc import Iterator

from relay.domain.erasure import Erasure
from relay.history.select import Dialect, Select, SelectWriter

ERASED_AT_ONCE = 1_000
"""Rows changed by one statement, so that writes can run in between."""
_HAS_PAYLOAD = "(headers IS NOT NULL OR body IS NOT NULL)"


def erasing(dialect: Dialect, erasure: Erasure) -> Iterator[Select]:
    """Statements, each to be repeated until it changes fewer than ERASED_AT_ONCE rows."""
    yield _messages(dialect, erasure)
    yield _attempts(dialect, erasure)


def _messages(dialect: Dialect, erasure: Erasure) -> Select:
    """Those of a receiver that other receivers got, too, keep their payload for these."""
    writer = SelectWriter(dialect)
    if erasure.receiver is None:
        _where_message(writer, erasure)
    else:
        same = "d.source_id = messages.source_id AND d.message_id = messages.message_id"
        other = f"SELECT 1 FROM deliveries d WHERE {same} AND d.receiver <> {{}}"
        own = "SELECT source_id, message_id FROM deliveries WHERE receiver = {}"
        writer.where(f"(source_id, message_id) IN ({own}) AND NOT EXISTS ({other})", *2 * [erasure.receiver])
    writer.where("received_at <= {}", erasure.made_at)
    where = " AND ".join((*writer.conditions, _HAS_PAYLOAD))
    keys = f"SELECT source_id, message_id FROM messages WHERE {where} LIMIT {ERASED_AT_ONCE}"
    until = writer.mark(erasure.made_at)
    text = f"UPDATE messages SET headers = NULL, body = NULL WHERE (source_id, message_id) IN ({keys})"
    return Select(f"{text} AND received_at <= {until}", tuple(writer.values))


def _attempts(dialect: Dialect, erasure: Erasure) -> Select:
    writer = SelectWriter(dialect)
    if erasure.receiver is None:
        _where_message(writer, erasure)
    else:
        writer.where("receiver = {} AND message_id <> ''", erasure.receiver)
    writer.where("started_at <= {}", erasure.made_at)
    key = "started_at, at_partition, at_offset"
    some = f"SELECT {key} FROM attempts WHERE {' AND '.join(writer.conditions)} LIMIT {ERASED_AT_ONCE}"
    return Select(f"DELETE FROM attempts WHERE ({key}) IN ({some})", tuple(writer.values))


def _where_message(writer: SelectWriter, erasure: Erasure) -> None:
    writer.where("source_id = {}", erasure.source_id)
    writer.where("message_id = {}", erasure.message_id)
