"""Which worlds are the same: those that agree in everything that can still make a difference, with times as seconds
from now, and tokens by their first appearance. Fields that make no difference are named here; all others count, also
those that the engine gets one day."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Any, Final

from relay.engine.commands import Commands
from relay.engine.decision import Later
from relay.engine.lane import LaneSetup
from relay.engine.order import EndpointQueue, Order
from relay.engine.phases import Phase
from relay.engine.work import Work
from relay.log.port import NewRecord, Record
from relay.state.attempts import Settlement
from relay.state.rows import MessageRow, Stage
from tests.fakes.state_rows import StoredRow
from tests.faults.model.here import HERE, LANES, TOKEN, TOPICS
from tests.faults.model.world import VALUES, Asked, Owner, World

OLD_S: Final = 25.0
"""Times since a moment count up to this. Longer ones make no difference."""
_MOMENT: Final = 1e9
"""Larger numbers are moments, in seconds; those above a thousand times as much, in milliseconds."""

_NO_MATTER: Final = frozenset({
    *("numbers", "_tickets", "ticket"),  # counters
    *("intake_limit", "full_since", "congested_until", "relieved_at"),  # how full a lane is: here it never is
    *("to_append", "weight", "size", "memory", "_memory"),  # likewise
    "breaker",  # never opens for so few failures; what their times are is all the same
    *("attempts", "polls", "asked", "crashes", "last_failure"),  # there is no limit that they could reach
    *("failing_since", "may_arrive_until", "steps_aside"),  # patience does not end here
    "started_at",  # nothing is held here
    *("last_status", "reason", "detail", "code", "at", "expires", "slot"),  # only displayed; or far away
    *("setup", "worker", "policy", "bounds", "observer", "seats", "partition", "_tags", "role"),
    *("asked_at", "_wary_until"),  # see `_owner`; how long a lane is wary, which is harmless
    *("_ahead", "_reserved_at"),  # how many offsets the next reservation has
    "wake_at",  # follows from the rest
    *("window_s", "there_at", "counted_at", "before_until", "failed"),
    *("in_flight", "line", "begin_s", "opened_at"),  # more may be in flight than there are; none is paced
})  # fmt: skip
_OF_RECORDS: Final = frozenset({
    *("record", "row", "hop", "receiver", "rules", "queue", "endpoint_id", "message", "arrival", "source"),
    "delivery_key",
})  # fmt: skip
"""Fields of a work that come from its record, which its offset identifies."""


def sameness(world: World) -> int:
    """Equal for worlds that are the same (and, of very few, for others: it is a hash)."""
    seen = _Seen(world.now)
    parts: list[Any] = [world.faults, world.committed, world.owners, world.former, world.wire]
    parts += [world.seen, world.back, world.disordered, world.untimely, world.dead]
    known, seen.now = seen.all(parts), world.now + world.state.behind_s
    tags = seen.all([(tag, tag.ready) for tag in world.state.tags])
    seen.now = world.now
    parts = [known, tags, round(world.state.behind_s, 3)]
    parts += [world.state.owners_before, [world.log(role) for role in LANES if role in world.owners], _written(world)]
    return hash(seen.all(parts))


def _written(world: World) -> Hashable:
    """Records on logs that no worker reads here. Of answers, only their presence matters to the worker that returns
    them."""
    parked = world.broker.partitions_of(TOPICS.parked_messages) if world.state.has_parked else ()
    copies = tuple(record for at in parked for record in world.broker[at].table().values())
    if "to_receiver" in world.owners:
        return frozenset(world.log("to_sender")), copies
    return world.log("to_receiver"), world.beside, copies


class _Seen:
    """What was met so far in a world."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.tokens: dict[bytes, int] = {}
        self.old: dict[float, int] = {}
        self.objects: dict[type[Any], dict[int, int]] = defaultdict(dict)

    def all(self, values: Any) -> Hashable:
        return tuple([v if type(v) in _PLAIN else _FORMS.get(type(v), _found)(self, v) for v in values])

    def one(self, value: Any) -> Hashable:
        return _FORMS.get(type(value), _found)(self, value)

    def moment(self, at: float) -> Hashable:
        since = round(at - self.now, 3)
        return since if since > -OLD_S else ("old", self.old.setdefault(round(at, 3), len(self.old)))

    def known(self, value: object) -> int | None:
        """Its number where it was met before; else it is from now on."""
        of_kind = self.objects[type(value)]
        number = of_kind.get(id(value))
        if number is None:
            of_kind[id(value)] = len(of_kind)
        return number


Form = Callable[[_Seen, Any], Hashable]


def _as_it_is(seen: _Seen, value: Any) -> Hashable:
    return value  # type: ignore[no-any-return]


def _number(seen: _Seen, value: int) -> Hashable:
    return value if value < 1000 * _MOMENT else seen.moment(value / 1000)


def _moment(seen: _Seen, value: float) -> Hashable:
    return seen.moment(value) if _MOMENT < value < 10 * _MOMENT else value


def _bytes(seen: _Seen, value: bytes) -> Hashable:
    return seen.tokens.setdefault(value, len(seen.tokens)) if value.startswith(TOKEN) else value


def _mapping(seen: _Seen, value: Mapping[Any, Any]) -> Hashable:
    if not value:
        return ()
    keys = sorted(value) if len(value) > 1 and not isinstance(next(iter(value)), Enum) else value
    return tuple([(seen.one(key), seen.one(value[key])) for key in keys])


def _set(seen: _Seen, value: Any) -> Hashable:
    return frozenset(map(seen.one, value))


def _name(seen: _Seen, value: object) -> Hashable:
    return type(value).__name__


def _record(seen: _Seen, value: Record) -> Hashable:
    return value.topic, value.partition, value.offset, value.key


def _new_record(seen: _Seen, value: NewRecord) -> Hashable:
    return value.topic, value.key


def _work(seen: _Seen, work: Work) -> Hashable:
    number = seen.known(work)
    if number is not None:
        return "work", number
    attempting = work.phase in (Phase.BEGINNING, Phase.DELAYED, Phase.RUNNING, Phase.PINGING)
    begun = seen.moment(work.start_by) if attempting and work.start_by else None
    due = seen.moment(work.due) if work.due > seen.now else None
    doubt = seen.one(work.doubt) if work.in_doubt else None
    kind = type(work)
    if kind not in _rest_of:
        _rest_of[kind] = tuple(sorted(set(_names(kind)) - _OF_RECORDS - {"start_by", "due", "doubt"}))
    rest = seen.all([getattr(work, name) for name in _rest_of[kind]])
    return kind.__name__, work.record.offset, begun, due, doubt, rest


_rest_of: dict[type[Work], tuple[str, ...]] = {}


def _order(seen: _Seen, order: Order[Any]) -> Hashable:
    """Entries that were withdrawn are gone."""
    held = [(seen.moment(at), seen.one(item)) for at, ticket, item in sorted(order.timed, key=lambda e: e[:2])
            if isinstance(item, EndpointQueue) or item.ticket == ticket]  # fmt: skip
    unseen = [seen.one(work) for ticket, work in order.unseen if work.ticket == ticket]
    return seen.one(order.lines.by_key), seen.one(order._endpoints), tuple(order.open), tuple(held), tuple(unseen)


def _endpoint_queue(seen: _Seen, queue: EndpointQueue[Any]) -> Hashable:
    ready = [seen.one(work) for ticket, work in queue.ready if work.ticket == ticket]
    return queue.in_flight, seen.moment(queue.closed_until) if queue.closed_until > seen.now else 0, tuple(ready)


def _asks(seen: _Seen, asks: Commands) -> Hashable:
    if seen.known(asks) is not None:
        return "asks"
    busy = [(ask, queue) for ask, queue in asks._queues.items() if queue.waiting or queue.in_flight]
    parts = [(ask, seen.all(queue.waiting), seen.all(queue.in_flight), queue.alone) for ask, queue in busy]
    return tuple(parts), frozenset(asks.ready)


def _row(seen: _Seen, row: StoredRow) -> Hashable:
    """A settled attempt may be settled again, as long as a process still can."""
    sending = row.stage is Stage.SENDING
    began = seen.moment(row.began) if sending else None
    token = None if row.token is None else seen.tokens.get(row.token, "of nobody")
    before = (row.before[0], seen.moment(row.before[1])) if sending and row.before[1] else row.before[0]
    settled = frozenset(seen.tokens[token] for token in row.settled if token in seen.tokens)
    due = seen.moment(row.due_at) if row.due_at > seen.now else None
    unheard = seen.moment(row.unheard) if row.unheard else None
    outcome = row.result is not None
    return row.generation, row.stage, outcome, token, began, unheard, before, due, settled, row.poll_token


def _owner(seen: _Seen, owner: Owner) -> Hashable:
    number = seen.known(owner)
    if number is not None:
        return "owner", number
    return _owner_once(seen, owner)


def _owner_once(seen: _Seen, owner: Owner) -> Hashable:
    """When it asked for an attempt matters until it hears whether it may make it."""
    asked_at = seen.moment(owner.core.asked_at) if owner.verdicts else None
    if not HERE.world.state.has_parked:
        seen.known(owner.core.due_index)  # looking at an empty index leaves no trace
    return seen.all((owner.core, owner.read, owner.under_way, owner.verdicts, owner.asked, asked_at))


def _asked(seen: _Seen, asked: Asked) -> Hashable:
    return seen.one(asked.work)


def _found(seen: _Seen, value: Any) -> Hashable:
    """Of a type that was not met before."""
    kind = type(value)
    _FORMS[kind] = form = _form_of(kind)
    return form(seen, value)


def _form_of(kind: type[Any]) -> Form:
    if issubclass(kind, Work):
        return _work
    if issubclass(kind, Enum):
        return _as_it_is
    if issubclass(kind, tuple):
        return lambda seen, value: (kind.__name__, seen.all(value))
    if issubclass(kind, Mapping | dict):
        return _mapping
    slots = _names(kind)
    names: dict[int, tuple[str, ...]] = {}
    """By how many attributes an object has that are no slots."""

    def form(seen: _Seen, value: Any) -> Hashable:
        number = seen.known(value)
        if number is not None:
            return kind.__name__, number
        return kind.__name__, seen.all([getattr(value, name) for name in names_of(value)])

    def names_of(value: Any) -> tuple[str, ...]:
        own = getattr(value, "__dict__", None)
        if own is None:
            return slots
        if len(own) not in names:
            names[len(own)] = (*slots, *sorted(own.keys() - _NO_MATTER))
        return names[len(own)]

    return form


def _names(kind: type[Any]) -> tuple[str, ...]:
    """The slots that matter."""
    slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
    return tuple(sorted(set(slots) - _NO_MATTER - {"__dict__", "__weakref__"}))


_PLAIN: Final = frozenset({str, bool, type(None), Phase, Stage})
_FORMS: Final[dict[type[Any], Form]] = {
    **dict.fromkeys((str, bool, type(None)), _as_it_is),
    **dict.fromkeys((list, tuple), _Seen.all),
    **dict.fromkeys((set, frozenset), _set),
    **{kind: _as_it_is if issubclass(kind, Enum) else _name for kind in VALUES},
    int: _number,
    float: _moment,
    bytes: _bytes,
    dict: _mapping,
    Asked: _asked,
    EndpointQueue: _endpoint_queue,
    NewRecord: _new_record,
    Order: _order,
    Owner: _owner,
    Record: _record,
    Later: lambda seen, value: ("later", value.due_in_s),
    MessageRow: lambda seen, value: value.stage,
    LaneSetup: lambda seen, value: value.lane.epoch,
    Settlement: lambda seen, value: (seen.one(value.token), value.change, value.due_in_s, value.result is not None),
    StoredRow: _row,
    Commands: _asks,
}
