"""Dead letters: the record that failed, its stage and the reason."""

from relay.clock import Clock
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import Hop
from relay.domain.topics import Topics
from relay.engine.work import Dead
from relay.log.port import Headers, NewRecord, Record


class Letters:
    """Writes dead letters to `failed_messages`."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock

    def bury(
        self, record: Record, dead: Dead, hop: Hop | None = None, *, attempts: int = 0, extra: Headers = ()
    ) -> NewRecord:
        """The dead letter of `record`. `extra` headers replace those of the same name."""
        letter = DeadLetter(
            reason=dead.reason,
            detail=dead.detail,
            stage=record.topic,
            origin=hop.origin if hop is not None and hop.origin is not None else record.coordinate,
            attempts=attempts,
            first_failed_ms=int(self._clock.time() * 1000),
            last_status=dead.last_status,
            omitted=record.flaw.omitted if record.flaw is not None else None,
        )
        replaced = {name for name, _ in extra}
        headers = tuple(pair for pair in record.headers if pair[0] not in replaced) + extra
        return NewRecord(self._topics.failed_messages, record.key, record.value, dead_letter_headers(headers, letter))
