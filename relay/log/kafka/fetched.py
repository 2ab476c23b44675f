"""Takes what the library's consumer has fetched. Its own getmany takes all partitions at once, and where one of them
cannot be parsed, it drops what it has taken of the others, for good, and does not say which one it was.

Uses private parts of aiokafka 0.14, as `membership` does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import FetchError
from aiokafka.errors import RecordTooLargeError
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.log.port import Record, TopicPartition

_SLICE: Final = 64
"""Records taken at a time: a batch is unpacked as a whole, but its records need not be copied out of it all at once."""

Read = Callable[[TopicPartition, Any], Record]
"""Makes a record of ours of one of the library's."""


class UnreadableError(Exception):
    """The library's parser cannot go on in this partition."""


class Trouble(NamedTuple):
    partition: TopicPartition
    error: Exception


class Taken(NamedTuple):
    """`trouble`: what one partition failed with, told by itself, once; UnreadableError is told until `go_on`."""

    records: dict[TopicPartition, list[Record]]
    trouble: Trouble | None = None


class Standing(NamedTuple):
    """Where a partition is to be read on, as long as `state` is that of its present assignment."""

    state: Any
    position: int


def take(consumer: AIOKafkaConsumer, partitions: frozenset[TopicPartition], max_records: int, read: Read) -> Taken:
    """What is there of `partitions`, at most `max_records` in all."""
    fetcher = consumer._fetcher
    taken: dict[TopicPartition, list[Record]] = {}
    for at in [TopicPartition(*at) for at in fetcher._records if at in partitions]:
        result = fetcher._records[at]
        if isinstance(result, FetchError):
            if not taken:
                return Taken({}, Trouble(at, _told(consumer, at, result)))
        elif max_records > 0 and (found := _drained(fetcher, at, result, max_records, read)):
            taken[at] = found
            max_records -= len(found)
    return Taken(taken)


def standing(consumer: AIOKafkaConsumer, partition: TopicPartition) -> Standing | None:
    """None where it is not assigned, or its position is not known."""
    subscription = consumer._subscription.subscription
    assignment = subscription and subscription.assignment
    if assignment is None or partition not in assignment.tps:
        return None
    state = assignment.state_value(KafkaPartition(*partition))
    return Standing(state, state.position) if state.has_valid_position else None


def go_on(consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> None:
    """Read `partition` from `offset` on, and forget what was fetched of it."""
    consumer.seek(KafkaPartition(*partition), offset)


def _drained(fetcher: Any, at: TopicPartition, result: Any, max_records: int, read: Read) -> list[Record]:
    found: list[Record] = []
    state = result._assignment.state_value(KafkaPartition(*at))
    while result.has_more() and len(found) < max_records:
        before = state.position
        try:
            raw = result.getall(min(_SLICE, max_records - len(found)))
            _check_order(raw, before, state.highwater)
        except Exception as error:  # noqa: BLE001  whatever its parser raises about what others wrote
            if result._assignment.active and state.has_valid_position:
                state.consumed_to(before)
            unreadable = UnreadableError(f"{type(error).__name__}: {error}")
            fetcher._records[at] = FetchError(error=unreadable, backoff=fetcher._prefetch_backoff)
            return found
        found += [read(at, each) for each in raw]
    if not result.has_more():
        del fetcher._records[at]
        fetcher._notify(fetcher._wait_consume_future)
    return found


def _check_order(raw: Sequence[Any], position: int, highwater: int) -> None:
    """The broker does not look at the offsets that a client wrote into its records."""
    before = position - 1
    for each in raw:
        if each.offset <= before:
            raise ValueError(f"offset {each.offset} behind {before}")
        before = each.offset
    if before >= highwater:
        raise ValueError(f"offset {before} is not there yet")


def _told(consumer: AIOKafkaConsumer, at: TopicPartition, result: Any) -> Exception:
    error: Exception = result._error
    if isinstance(error, UnreadableError):
        return error
    fetcher = consumer._fetcher
    if isinstance(error, RecordTooLargeError):  # a frame that ends nowhere: the library has passed over its offset
        if found := standing(consumer, at):
            found.state.consumed_to(found.position - 1)
        unreadable = UnreadableError(str(error))
        fetcher._records[at] = FetchError(error=unreadable, backoff=fetcher._prefetch_backoff)
        return unreadable
    del fetcher._records[at]
    fetcher._notify(fetcher._wait_consume_future)
    return error
