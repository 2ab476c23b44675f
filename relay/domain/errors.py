"""The exceptions of this project, in one tree. A class exists only where a caller handles it differently."""

from collections.abc import Iterable, Mapping

from relay.domain.coordinate import Coordinate


class RelayError(Exception):
    """Base of every error that this project raises on purpose."""


class UserError(RelayError):
    """The user's mistake: the message names the mistake, the place, and the remedy. Exit code 2, no traceback."""


class NotYet(RelayError):
    """The request is valid, but something has to end first; the message says what. Exit code 1."""


class Unavailable(RelayError):
    """A part of our own infrastructure did not answer. The effect of the call is unknown; every call is repeatable."""


class LogUnavailable(Unavailable):
    """The log (Kafka, or the embedded server) did not answer, or refused for now."""


class SettingsHidden(LogUnavailable):
    """This user may not see the settings of topics. It may still read and write records."""


class PartlyAppended(LogUnavailable):
    """An append failed after some of its records were acknowledged: `places`, by their index. Only the others are to be
    appended again."""

    def __init__(self, message: str, places: Mapping[int, Coordinate]) -> None:
        super().__init__(message)
        self.places = places


class StateUnavailable(Unavailable):
    """The state (Redis) did not answer, refused for now, or is out of memory."""


class HistoryUnavailable(Unavailable):
    """The history store does not answer, or can neither store nor return anything now."""


class HistoryMoved(RelayError):
    """The history store has fewer rows than before: it was cleared, or restored from an older backup."""


class StateRecovering(Unavailable):
    """The state lost its data, or may have. It is available again once a recovery pass has marked it ready.

    `tags`: the hash tags of the call that are not ready. Others may not be ready, either.
    """

    def __init__(self, tags: frozenset[int]) -> None:
        super().__init__("state is recovering: the relay restores it from the log first")
        self.tags = tags


class PartitionLost(RelayError):
    """A rebalance gave the partition to another member of the consumer group."""


class RecordTooLarge(RelayError):
    """The log refuses records of their size for good; no repeat can succeed. `rejected`: indexes of such records among
    those of the append; there may be more."""

    def __init__(self, message: str, rejected: Iterable[int]) -> None:
        super().__init__(message)
        self.rejected = frozenset(rejected)


class ConsumerBroken(RelayError):
    """A consumer has stopped working for an unknown reason; replacing it may help."""


class ConsumerClosed(RelayError):
    """A caller polled a consumer after it was closed."""


class OffsetMissing(RelayError):
    """The log does not hold the offset to read next, or the group never committed one: an alarm, never "latest".

    `partitions`: (topic, partition) of those concerned. `lost`: for partitions that lost their end, the offsets that
    were read and no longer exist: the first, and the one after the last.
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


class ExpressionError(RelayError):
    """An expression could not be evaluated: the message names the expression and the cause, without any value."""
