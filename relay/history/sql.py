"""SQL that SQLite and PostgreSQL share: searches, and upserts that join rows. Pure: builds SQL texts.

A search is one or more selects, each ordered like the page, limited to its length, and served by one index; the page is
the merge of their first rows. An OR over receivers or sources would sort all their rows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from relay.domain.attempt import AttemptKind
from relay.domain.reasons import ON_PURPOSE
from relay.domain.state import Status, StoredState
from relay.domain.statistics import NUMBERS
from relay.history.folding import PROGRESS, SPAN_S
from relay.history.port import WITHOUT, AfterAttempt, AfterMessage, AttemptQuery, CountQuery, MessageQuery, Visible
from relay.history.select import Dialect, Select, SelectWriter, beginning, wanted

TABLES: Final = ("messages", "deliveries", "attempts", "counts", "positions")
MOST_BRANCHES: Final = 100
"""Maximum number of selects in a fetch; each takes a millisecond by its index. The rows of a longer IN list are sorted
as a whole, which took seconds for 150,000 deliveries of 30 receivers. So more receivers are queried in groups, unless
something else limits the rows: some ids, or one message."""
_ESCAPE: Final = b"\\"
"""The escape character of JSON: a text with it has to be decoded to be compared."""

MESSAGE: Final = (
    "m.source_id, m.message_id, m.at_topic, m.at_partition, m.at_offset, m.received_at, m.event_type, m.content_type,"
    " m.size, m.headers, m.body"
)
DELIVERY: Final = (
    "source_id, message_id, receiver, generation, progress, attempts, said_rank, said_number, said_partition,"
    " said_offset, last_status, reason, detail, updated_at, life"
)
STORED_DELIVERY: Final = f"{DELIVERY}, number"
ATTEMPT: Final = (
    "at_topic, at_partition, at_offset, started_at, kind, receiver, source_id, message_id, well, value, life"
)
NUMBER: Final = tuple(f"n{place}" for place in range(NUMBERS))
COUNT: Final = f"span, begins_at, receiver, source_id, life, {', '.join(NUMBER)}"


def _latest(column: str, *order: str) -> str:
    """Assigns a column the value of the greater of two rows by this order."""
    new, old = (", ".join(f"{row}.{name}" for name in order) for row in ("excluded", "deliveries"))
    return f"{column} = CASE WHEN ({new}) > ({old}) THEN excluded.{column} ELSE deliveries.{column} END"


_SAID: Final = ("said_rank", "said_number", "said_partition", "said_offset")
JOIN_DELIVERY: Final = "ON CONFLICT (source_id, message_id, receiver) DO UPDATE SET " + ", ".join(
    (
        "generation = CASE WHEN excluded.generation > deliveries.generation"
        " THEN excluded.generation ELSE deliveries.generation END",
        *(_latest(column, "generation", column) for column in ("progress", "attempts", "updated_at", "life")),
        *(_latest(column, "generation", *_SAID) for column in (*_SAID, "last_status", "reason", "detail")),
        "number = CASE WHEN excluded.number IS NULL OR deliveries.number > excluded.number THEN deliveries.number"
        " ELSE excluded.number END",
        "received_at = CASE WHEN deliveries.received_at IS NULL OR excluded.received_at < deliveries.received_at"
        " THEN excluded.received_at ELSE deliveries.received_at END",
    )
)
ADD_COUNT: Final = "ON CONFLICT (span, begins_at, receiver, source_id, life) DO UPDATE SET " + ", ".join(
    f"{name} = counts.{name} + excluded.{name}" for name in NUMBER
)


# messages


@dataclass(frozen=True, slots=True)
class MessageSearch:
    """A search for messages. `sparse`: keys of all messages whose ids have the prefix, if they are few. `dense_type`:
    messages with the type prefix are so many that a scan by time is faster. `body_bytes`: bytes of each body to fetch;
    None for all. `header_holds`, `body_holds`: headers and bodies are not fetched where these bytes cannot be in
    both."""

    dialect: Dialect
    query: MessageQuery
    after: AfterMessage | None
    limit: int
    sparse: Sequence[tuple[str, str]] | None = None
    dense_type: bool = False
    body_bytes: int | None = None
    header_holds: bytes | None = None
    body_holds: bytes | None = None

    def selects(self) -> Iterator[Select]:
        query, visible = self.query, self.query.visible
        of_delivery = (query.receiver, query.status, query.state, query.reason) != (None, None, None, None)
        unrouted = query.receiver is None and query.reason is None and {query.status, query.state} <= WITHOUT
        for source in _sources(visible):
            if of_delivery:
                yield self._by_delivery(source, query.receiver)
            if unrouted:
                yield self._by_message(source, new=of_delivery)
        for receivers in _chunks(visible.receivers or ()):
            if query.receiver is None or query.receiver in receivers:
                yield self._by_delivery("", query.receiver, receivers)

    def _by_message(self, source: str, *, new: bool) -> Select:
        writer = SelectWriter(self.dialect)
        if new:
            writer.where("m.routed = 0")
        self._narrow(writer, "m", source)
        return writer.select(self._columns(writer), f"{self._first}messages m", _order("m"), self.limit)

    def _by_delivery(self, source: str, receiver: str | None, receivers: Sequence[str] = ()) -> Select:
        writer = SelectWriter(self.dialect)
        writer.where("d.receiver = {}", receiver)
        if receivers and receiver is None:
            _where_receivers(writer, "d.receiver", receivers)
        if receivers:
            names = receivers if receiver is None else [receiver]
            _where_lives(writer, "d.life", self.query.visible, names, or_unknown=True)
        if self.query.status is not None:
            writer.where(f"d.progress = {_progress(self.query.status)}")
        _where_state(writer, self.query)
        writer.where("d.reason = {}", self.query.reason)
        same = [condition.replace("d.", "o.") for condition in writer.conditions]
        writer.where("m.source_id = d.source_id AND m.message_id = d.message_id")
        if receiver is None and len(receivers) != 1:  # select only the first of a message's deliveries
            own = "o.source_id = d.source_id AND o.message_id = d.message_id AND o.receiver < d.receiver"
            writer.conditions.append(f"NOT EXISTS (SELECT 1 FROM deliveries o WHERE {' AND '.join([own, *same])})")
        self._narrow(writer, "d", source)
        return writer.select(
            self._columns(writer), f"{self._first}deliveries d CROSS JOIN messages m", _order("d"), self.limit
        )

    def _narrow(self, writer: SelectWriter, timed: str, source: str) -> None:
        query = self.query
        writer.where(f"{timed}.source_id = {{}}", query.source_id)
        _where_source(writer, f"{timed}.source_id", source)
        writer.since(f"{timed}.received_at", query.since)
        writer.where(f"{timed}.received_at < {{}}", query.until)
        event_type = None if query.event_type == "*" else query.event_type
        if event_type is not None and event_type.endswith("*"):
            # a NULL type counts as an empty one, which has only the empty prefix
            column = "(m.event_type || '')" if self.dense_type else "m.event_type"
            writer.where(*beginning(column, event_type[:-1]))
        else:
            writer.where("m.event_type = {}", event_type)
        self._narrow_ids(writer, timed)
        if self.after is not None:
            writer.where(f"{timed}.received_at <= {{}}", self.after.received_at)
            # the sign prevents the use of an index: SQLite would use that of the status instead of the receiver's
            key = f"(+{timed}.received_at, {timed}.source_id, {timed}.message_id)"
            writer.where(f"{key} < ({{}}, {{}}, {{}})", *self.after)
        if self.dialect.is_first:
            writer.where(self.dialect.is_first)

    @property
    def _first(self) -> str:
        return "" if self.sparse is None else "wanted CROSS JOIN "

    def _narrow_ids(self, writer: SelectWriter, alias: str) -> None:
        prefix = self.query.id_prefix
        if prefix is None:
            return
        if self.sparse is not None:
            writer.head = wanted(writer, self.sparse)
            writer.where(f"{alias}.source_id = wanted.s AND {alias}.message_id = wanted.m")
            return
        # with many matches, a scan by time without an index on ids finds the newest soon
        one, *low = beginning("(m.message_id || '')", prefix)
        other, *high = beginning("(m.webhook_id || '')", prefix)
        writer.where(f"(({one}) OR ({other}))", *low, *high)

    def _columns(self, writer: SelectWriter) -> str:
        if self.body_bytes is not None:
            return f"{MESSAGE.removesuffix('m.body')}substr(m.body, 1, {self.body_bytes})"
        conditions = [
            f"({self.dialect.holds(column, writer.mark(held))} OR {self.dialect.holds(column, writer.mark(_ESCAPE))})"
            for column, held in (("m.headers", self.header_holds), ("m.body", self.body_holds))
            if held is not None
        ]
        if not conditions:
            return MESSAGE
        may, plain = " AND ".join(conditions), MESSAGE.removesuffix(", m.headers, m.body")
        return f"{plain}, CASE WHEN {may} THEN m.headers END, CASE WHEN {may} THEN m.body END"

    @property
    def is_of_many(self) -> bool:
        """Whether its receivers are queried in groups."""
        receivers = self.query.visible.receivers or ()
        return len(receivers) > MOST_BRANCHES and self.query.receiver is None and self.sparse is None

    def of_sources(self) -> "MessageSearch":
        """The part of the search for messages that are visible by their source."""
        return self._of(self.query.visible.sources or (), ())

    def of_receivers(self, receivers: Collection[str]) -> "MessageSearch":
        """The part of the search for messages that are visible by these receivers."""
        return self._of((), receivers)

    def _of(self, sources: Collection[str], receivers: Collection[str]) -> "MessageSearch":
        visible = replace(self.query.visible, sources=sources, receivers=receivers)
        return replace(self, query=replace(self.query, visible=visible))

    def heads(self) -> Select:
        """The arrival time of each receiver's newest message that may be on the page."""
        writer = SelectWriter(self.dialect)
        names = ", ".join(f"({writer.mark(name)})" for name in sorted(self.query.visible.receivers or ()))
        writer.where("receiver = wanted.r")
        writer.where("received_at >= {}", self.query.since)
        writer.where("received_at < {}", self.query.until)
        writer.where("received_at <= {}", None if self.after is None else self.after.received_at)
        newest = f"SELECT max(received_at) FROM deliveries WHERE {' AND '.join(writer.conditions)}"
        text = f"WITH wanted(r) AS (VALUES {names}) SELECT r, ({newest}) FROM wanted"
        return Select(text, tuple(writer.values))

    def candidates(self, header: bytes | None, body: bytes | None) -> "MessageSearch":
        """The same search, without fetching headers and bodies that cannot contain these bytes."""
        return replace(self, body_bytes=None, header_holds=header, body_holds=body)


def ids_beginning(dialect: Dialect, prefix: str, most: int) -> Select:
    """Keys of messages whose ids, or webhook ids, have the prefix; at most `most` of each kind."""
    writer = SelectWriter(dialect)
    parts = []
    for column in ("message_id", "webhook_id"):
        text, *values = beginning(column, prefix)
        condition = text.format(*map(writer.mark, values))
        parts.append(f"SELECT * FROM (SELECT source_id, message_id FROM messages WHERE {condition} LIMIT {most}) p")
    return Select(" UNION ".join(parts), tuple(writer.values))


def deliveries_of(dialect: Dialect, keys: Sequence[tuple[str, str]]) -> Select:
    """All deliveries of these messages, at least one."""
    writer = SelectWriter(dialect)
    head = wanted(writer, keys)
    where = "deliveries.source_id = wanted.s AND deliveries.message_id = wanted.m"
    return Select(f"{head}SELECT {DELIVERY} FROM wanted CROSS JOIN deliveries WHERE {where}", tuple(writer.values))


def types_beginning(dialect: Dialect, prefix: str, most: int) -> Select:
    """A row for each message whose type has the prefix, at most `most`."""
    writer = SelectWriter(dialect)
    text, *values = beginning("event_type", prefix)
    condition = text.format(*map(writer.mark, values))
    return Select(f"SELECT 1 FROM messages WHERE {condition} LIMIT {most}", tuple(writer.values))


def _progress(status: Status) -> int:
    """Index of a status in PROGRESS."""
    return PROGRESS.index("response_received_from_receiver" if status == "done" else status)


_ENDED: Final = ", ".join(f"'{reason}'" for reason in sorted(ON_PURPOSE))
_OF_STATE: Final[Mapping[StoredState, tuple[Status, str]]] = {
    "queued": ("arrived", "d.attempts = 0"),
    "retrying": ("arrived", "d.said_rank > 0"),  # a POST has ended, counted or not
    "awaiting_answer": ("delivered_to_receiver", ""),
    "returning": ("response_received_from_receiver", ""),
    "delivered": ("response_received_from_receiver", ""),
    "returned": ("response_delivered_to_sender", ""),
    "failed": ("failed", f"(d.reason IS NULL OR d.reason NOT IN ({_ENDED}))"),
    "discarded": ("failed", f"d.reason IN ({_ENDED})"),
}
"""The status of deliveries in a state, and what else they have in common."""


def _where_state(writer: SelectWriter, query: MessageQuery) -> None:
    if query.state is None:
        return
    status, condition = _OF_STATE[query.state]
    writer.where(f"d.progress = {_progress(status)}")
    if condition:
        writer.where(condition)
    if status == "response_received_from_receiver":
        names, excluded = query.answered_by.names, query.answered_by.excluded
        if names:
            writer.where(f"d.source_id {'NOT ' if excluded else ''}IN ({_marks(names)})", *names)
        elif not excluded:
            writer.where("FALSE")


def _order(alias: str) -> str:
    return f"{alias}.received_at DESC, {alias}.source_id DESC, {alias}.message_id DESC"


# visibility: a select for each source pattern, and for each receiver


def _sources(visible: Visible) -> Sequence[str]:
    """Visible source patterns; `*` for all."""
    return ("*",) if visible == Visible() else tuple(visible.sources or ())


def _where_source(writer: SelectWriter, column: str, pattern: str) -> None:
    if pattern.endswith("*"):
        if pattern != "*":
            writer.where(*beginning(column, pattern[:-1]))
    elif pattern:
        writer.where(f"{column} = {{}}", pattern)


def _chunks(receivers: Collection[str]) -> list[list[str]]:
    """One receiver per chunk if they are few, else all in one."""
    if len(receivers) <= MOST_BRANCHES:
        return [[receiver] for receiver in receivers]
    return [list(receivers)]


def _where_receivers(writer: SelectWriter, column: str, receivers: Sequence[str]) -> None:
    """Without IN for a single receiver: SQLite would use the index of the status, and scan all its rows."""
    one_of = "= {}" if len(receivers) == 1 else f"IN ({_marks(receivers)})"
    writer.where(f"{column} {one_of}", *receivers)


def _where_lives(
    writer: SelectWriter, column: str, visible: Visible, receivers: Sequence[str], *, or_unknown: bool = False
) -> None:
    """Condition that the row has the life of one of these names, or none if the name has none; exact for a single name.
    `or_unknown`: also rows whose life is not known yet."""
    ids = {visible.life(name).id for name in receivers} | ({""} if or_unknown else set())
    writer.where(f"{column} IN ({_marks(ids)})", *sorted(ids))


def _marks(values: Collection[object]) -> str:
    return ", ".join(["{}"] * len(values))


# attempts and counts


def numbered_select(dialect: Dialect, receiver: str, visible: Visible, after: int, limit: int) -> Select:
    writer = SelectWriter(dialect)
    writer.where("receiver = {} AND number > 0 AND number > {}", receiver, after)  # the index has only those above 0
    _where_lives(writer, "life", visible, [receiver], or_unknown=True)
    return writer.select("number, source_id, message_id", "deliveries", "number", limit)


def attempt_selects(dialect: Dialect, query: AttemptQuery, after: AfterAttempt | None, limit: int) -> Iterator[Select]:
    for source in _sources(query.visible):
        writer = SelectWriter(dialect)
        _where_source(writer, "source_id", source)
        yield _attempts(writer, query, after, limit)
    for receivers in _chunks(query.visible.receivers or ()):
        writer = SelectWriter(dialect)
        writer.where("kind NOT IN ('callback', 'progress')")
        _where_receivers(writer, "receiver", receivers)
        _where_lives(writer, "life", query.visible, receivers)
        yield _attempts(writer, query, after, limit)


def _attempts(writer: SelectWriter, query: AttemptQuery, after: AfterAttempt | None, limit: int) -> Select:
    if query.message is not None:
        writer.where("source_id = {} AND message_id = {}", *query.message)
    writer.where("receiver = {}", query.receiver)
    if query.kinds is not None:
        kinds: list[AttemptKind] = sorted(query.kinds)
        writer.where(f"kind IN ({_marks(kinds)})" if kinds else "FALSE", *kinds)
    if query.failed is not None:
        writer.where(f"well = {0 if query.failed else 1}")
    writer.since("started_at", query.since)
    writer.where("started_at < {}", query.until)
    if query.at is not None:
        writer.where("at_partition = {} AND at_offset = {}", *query.at)
    if query.behind is not None:
        writer.where("NOT (at_partition = {} AND at_offset <= {})", *query.behind)
    if after is not None:
        writer.where("started_at <= {}", after.started_at)
        writer.where("(started_at, at_partition, at_offset) < ({}, {}, {})", *after)
    order = "started_at DESC, at_partition DESC, at_offset DESC"
    return writer.select("at_topic, at_partition, at_offset, started_at, value", "attempts", order, limit)


def count_select(dialect: Dialect, query: CountQuery, most: int) -> Select:
    writer, visible = SelectWriter(dialect), query.visible
    writer.where(f"span = {SPAN_S[query.by]}")
    writer.where("begins_at >= {} AND begins_at < {}", query.since, query.until)
    writer.where("receiver = {}", query.receiver)
    writer.where("source_id = {}", query.source_id)
    if visible != Visible():
        each = SelectWriter(dialect)
        each.values = writer.values
        for source in visible.sources or ():
            _where_source(each, "source_id", source)
        if visible.receivers:
            each.where(f"receiver IN ({_marks(visible.receivers)})", *visible.receivers)
            of_receivers = each.conditions.pop()
            _where_lives(each, "life", visible, list(visible.receivers))
            each.conditions[-1] = f"({of_receivers} AND {each.conditions[-1]})"
        if "*" not in (visible.sources or ()):
            writer.where(f"({' OR '.join(each.conditions) or 'FALSE'})")
    return writer.select(COUNT, "counts", "begins_at, receiver, source_id", most)
