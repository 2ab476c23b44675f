"""A dead letter as a replay reads it: the stage that gave up, the delivery and its life. Pure."""

from dataclasses import dataclass
from typing import Final

from relay.domain.coordinate import coordinate_text
from relay.domain.dead_letter import DeadLetter, identity_of, original_headers, parse_dead_letter, without_payload
from relay.domain.erasure import Erasures, received_at
from relay.domain.hop import NO_RECEIVER, Hop, hop_of
from relay.domain.identity import DeliveryId
from relay.domain.reasons import is_of_callback
from relay.domain.replay_job import LetterFacts, Stage
from relay.domain.topics import Topics
from relay.log.port import Coordinate, Headers, Record
from relay.state.port import FailedEntry
from workers.failed_messages import generation_of, life_of, number_of

NO_SOURCE: Final = "\x01"
"""Stands for a missing source: no id has a control character."""


@dataclass(frozen=True, slots=True)
class Letter:
    """`stage` None: its topic is read by no step. `hop`: of a readable record behind `from_sender`. `generation`:
    the life that failed."""

    record: Record
    dead: DeadLetter
    facts: LetterFacts
    stage: Stage | None
    hop: Hop | None
    generation: int

    @property
    def reason(self) -> str:
        """Why it failed, even if it was discarded since."""
        return self.dead.former_reason or self.dead.reason

    @property
    def at(self) -> Coordinate:
        return self.record.coordinate

    @property
    def place(self) -> tuple[int, int]:
        return self.record.partition, self.record.offset

    @property
    def life(self) -> str:
        """The life of its receiver's name."""
        return self.facts.life

    @property
    def is_of_sender(self) -> bool:
        """Whether it was on its way back to the sender."""
        return self.stage == "to_sender" or is_of_callback(self.reason)

    @property
    def headers(self) -> Headers:
        """The headers of the record that was given up."""
        return original_headers(self.record.headers)

    @property
    def delivery(self) -> DeliveryId:
        """The delivery whose life it ended, or a stand-in with a row that records the replay or discard. A message
        that was never routed has the receiver `-`, like its notice; a record without a delivery is named by its
        place."""
        if self.hop is not None:
            return self.hop.delivery
        receiver, source_id, message_id, *_ = self.facts
        if not source_id or not message_id or self.stage != "from_sender" or self.reason == "id_conflict":
            # it has no row of its own: two messages with one id share the row of the first
            return DeliveryId(NO_RECEIVER, NO_SOURCE, coordinate_text(self.at))
        named = receiver if is_named(self.record.headers) else None
        return DeliveryId(named or NO_RECEIVER, source_id, message_id)

    @property
    def entry(self) -> FailedEntry:
        """The letter's entry in the index."""
        receiver, source_id, message_id, *_ = self.facts
        return FailedEntry(
            receiver or NO_RECEIVER,
            self.at,
            self.dead.first_failed_ms / 1000,
            self.dead.reason,
            source_id or "",
            message_id or "",
            self.facts.number,
        )


def read_dead_letter(record: Record, topics: Topics) -> Letter:
    """Parses a record of `failed_messages`. Never raises."""
    dead = parse_dead_letter(record.headers)
    receiver, source_id, message_id = identity_of(record.value, record.headers)
    stage = stage_of(dead.stage, topics)
    facts = LetterFacts(
        receiver,
        source_id,
        message_id,
        dead.reason,
        dead.last_status,
        stage,
        dead.first_failed_ms or record.timestamp_ms,
        life_of(record),
        number_of(record, dead),
    )
    hop = None if stage in (None, "from_sender") else hop_of(original_headers(record.headers))
    generation = hop.generation if hop is not None else generation_of(record)
    return Letter(record, dead, facts, stage, hop, generation)


def is_erased(letter: Letter, erasures: Erasures) -> bool:
    """Whether its payload was erased. The answers on the way back to a sender are not erased."""
    receiver, source_id, message_id, *_ = letter.facts
    if letter.stage == "to_sender" or source_id is None or message_id is None:
        return False
    moment = received_at(letter.headers, letter.facts.failed_ms)
    return erasures.has_delivery(receiver, source_id, message_id, moment)


def kept(letter: Letter, erasures: Erasures, topics: Topics) -> Letter:
    """The letter without its payload, if that was erased."""
    record = letter.record
    if not record.value or not is_erased(letter, erasures):
        return letter
    _, value, headers = without_payload(record.key, record.value, record.headers)
    return read_dead_letter(record.changed(value=value, headers=headers), topics)


def stage_of(topic: str, topics: Topics) -> Stage | None:
    """The stage that reads `topic`."""
    if topic == topics.from_sender:
        return "from_sender"
    if topic == topics.to_sender:
        return "to_sender"
    if topic.startswith(topics.to_receiver("")):
        return "to_receiver"
    return "pending" if topic.startswith(topics.pending("")) else None


def is_named(headers: Headers) -> bool:
    """Whether a dead letter of `from_sender` belongs to one receiver of its message, not to the message. The step
    adds that header itself: a sender's is removed."""
    return any(name == "relay-receiver" for name, _ in headers)
