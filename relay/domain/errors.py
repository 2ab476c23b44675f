"""One tree of errors. A class exists only where some caller acts differently on it."""

from collections.abc import Iterable, Mapping

from relay.domain.coordinate import Coordinate


class RelayError(Exception):
    """Base of every error that this project raises on purpose."""


class UserError(RelayError):
    """The user's mistake: the message says what is wrong, where, and what to do. Exit code 2, no traceback."""


class NotYet(RelayError):
    """What was asked for is right, but something has to end first: the message says what. Exit code 1."""


class Unavailable(RelayError):
    """A part of our own infrastructure did not answer. The effect of the call is unknown; every call is repeatable."""


class LogUnavailable(Unavailable):
    """The log (Kafka, or the embedded server) did not answer, or refused for now."""


class PartlyAppended(LogUnavailable):
    """An append failed, and some of its records are acknowledged: `places`, by their index. Only the others are to be
    appended again."""

    def __init__(self, message: str, places: Mapping[int, Coordinate]) -> None:
        super().__init__(message)
        self.places = places


class StateUnavailable(Unavailable):
    """The state (Redis) did not answer, refused for now, or is out of memory."""


class HistoryUnavailable(Unavailable):
    """The store of the history does not answer, or cannot take or give anything now."""


class HistoryMoved(RelayError):
    """The store of the history has less than it had: somebody cleared it, or put back a copy of before."""


class StateRecovering(Unavailable):
    """The state lost its memory, or may have; it answers again when a recovery pass has marked it ready.

    `tags`: the hash tags concerned.
    """

    def __init__(self, tags: frozenset[int]) -> None:
        super().__init__(f"state is recovering: {len(tags)} of 64 hash tags not ready")
        self.tags = tags


class PartitionLost(RelayError):
    """A rebalance gave the partition to another member of the consumer group."""


class RecordTooLarge(RelayError):
    """The log refuses a record of this size for good; no repeat can succeed."""


class ConsumerBroken(RelayError):
    """A consumer has stopped working without saying why; a new one in its place may do better."""


class ConsumerClosed(RelayError):
    """A consumer was asked for records after it was closed: there is nothing to wait for any more."""


class OffsetMissing(RelayError):
    """The log does not hold the offset to read next, or the group never committed one: an alarm. Never "latest".

    `partitions`: (topic, partition) of those concerned. `lost`: of those whose log has lost its end the offsets that
    were read and are gone: the first, and the one behind the last.
    """

    def __init__(
        self,
        message: str,
        partitions: Iterable[tuple[str, int]] = (),
        lost: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(message)
        self.partitions = frozenset(partitions)
        self.lost = dict(lost or {})


class InvalidRecord(RelayError):
    """A record or request that can never be processed. `reason` is one of `relay.domain.reasons.REASONS`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
