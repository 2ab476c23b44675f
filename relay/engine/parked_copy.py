"""Codec of the copies of records on `parked_messages`. Pure."""

from dataclasses import dataclass
from typing import Final

from relay.domain.errors import InvalidRecord, LogUnavailable
from relay.domain.text import counted
from relay.engine.work import W
from relay.log.port import Coordinate, Flaw, NewRecord, Record
from relay.state.rows import Due, Row, RowKey

_PREFIX = "relay-parked-"
OWNER_HEADER = _PREFIX + "owner"
"""The owner: `r:<receiver>` or `s:<source_id>`."""
_GENERATION: Final = _PREFIX + "generation"
_LIFE: Final = _PREFIX + "life"
FORM: Final = 1
"""Version of the headers of a parked copy, in `relay-parked-form`; a copy without that header has form 1."""
LIFE_KEY = b"life"
"""Key of the record that states that the state was ready once: an empty state is then a lost one, not a new one. Its
value is the edition of the state's memory."""


def decode_edition(value: bytes | None) -> int:
    """0 for the value of an older release."""
    return int(value) if value and value.isdigit() else 0


@dataclass(frozen=True, slots=True)
class ParkedCopy:
    """A decoded parked record: the original as it was read, and from the copy's own headers its origin, and the fields
    that a recovery pass needs to restore its reference.

    `at`, `key`: of the parked record itself. `attempts`: POSTs begun when it was parked. `due_ms`: Unix milliseconds.
    `failing_for_s`: from its first failure until it is due. `may_arrive_s`: how long after that a request of it may
    arrive. `steps_aside`, `out_of_order`: as of its work. `number`: of its delivery, if it has one.
    """

    at: Coordinate
    key: bytes
    record: Record
    row: RowKey
    generation: int
    attempts: int
    queue: bytes | None
    due_ms: int
    poll: bool
    failing_for_s: float = 0.0
    may_arrive_s: float = 0.0
    steps_aside: bool = False
    out_of_order: bool = False
    number: int | None = None

    @property
    def is_second(self) -> bool:
        """See `second_copy`."""
        return not self.key.endswith(self.row.digest.hex().encode())


def parked_key(stage: str, row: RowKey) -> bytes:
    """The key of a parked record: delivery identity and stage, so that a newer copy replaces an older one."""
    return f"{stage}:{row.digest.hex()}".encode()


def life_key(stage: str, row: RowKey, generation: int) -> bytes:
    """The key of a second copy, from the second life on: a tombstone of an earlier life never removes it, however late
    it is written. Processes of the last release only know the first copy."""
    return parked_key(stage, row) + b":%d" % generation if generation else parked_key(stage, row)


def wrap(topic: str, stage: str, work: W, row: RowKey, *, due_ms: int, poll: bool) -> NewRecord:
    """The parked copy of the record that `work` came from; see `second_copy`."""
    record = work.record
    own = {
        "from": f"{record.topic}/{record.partition}/{record.offset}",
        "at": str(record.timestamp_ms),
        "owner": row.owner,
        "row": row.digest.hex(),
        "generation": str(work.generation),
        "attempts": str(work.attempts),
        "queue": work.queue.hex() if work.queue is not None else "",
        "due": str(due_ms),
        "poll": "1" if poll else "0",
        "key": record.key.hex() if record.key is not None else "-",
    }
    if work.failing_since is not None:
        own["failing-for"] = f"{max(0.0, work.due - work.failing_since):.3f}"
    if work.may_arrive_until > work.due:
        own["may-arrive"] = f"{work.may_arrive_until - work.due:.3f}"
    if work.steps_aside:
        own["steps-aside"] = "1"
    if work.out_of_order:
        own["out-of-order"] = "1"
    if work.number is not None:
        own["number"] = str(work.number)
    headers = tuple((_PREFIX + name, value.encode()) for name, value in own.items())
    return NewRecord(
        topic, parked_key(stage, row), record.value if record.value is not None else b"", record.headers + headers
    )


def second_copy(copy: NewRecord, stage: str, row: RowKey, generation: int) -> NewRecord:
    """The same copy with a key of its own for its generation, which it has in another header. Processes of an earlier
    release do not know such keys and ignore it."""
    headers = tuple((_LIFE if name == _GENERATION else name, value) for name, value in copy.headers)
    return NewRecord(copy.topic, life_key(stage, row, generation), copy.value, headers)


def unwrap(parked: Record) -> ParkedCopy:
    """Decode a parked record. Raises InvalidRecord if a header is missing or wrong, and LogUnavailable if a newer
    release wrote it: it must be delivered, and waits for a process that can read it."""
    try:
        own = {name[len(_PREFIX) :]: value.decode() for name, value in parked.headers if name.startswith(_PREFIX)}
        if (form := int(own.get("form", FORM))) > FORM:
            raise LogUnavailable(
                f"the parked record at {parked.coordinate} has form {form}: a newer release wrote it, and this one"
                f" reads forms up to {FORM}; let processes of the newer release finish it (docs/upgrading.md)"
            )
        topic, partition, offset = own["from"].rsplit("/", 2)
        original = Record(
            topic,
            int(partition),
            int(offset),
            None if own["key"] == "-" else bytes.fromhex(own["key"]),
            parked.value,
            tuple(header for header in parked.headers if not header[0].startswith(_PREFIX)),
            int(own["at"]),
        )
        return ParkedCopy(
            parked.coordinate,
            parked.key or b"",
            original,
            RowKey(own["owner"], bytes.fromhex(own["row"])),
            int(own["generation" if "generation" in own else "life"]),
            int(own["attempts"]),
            bytes.fromhex(own["queue"]) or None,
            int(own["due"]),
            own["poll"] == "1",
            float(own.get("failing-for", 0)),
            float(own.get("may-arrive", 0)),
            own.get("steps-aside") == "1",
            own.get("out-of-order") == "1",
            int(own["number"]) if "number" in own else None,
        )
    except (KeyError, ValueError) as error:
        raise InvalidRecord("invalid", f"parked record at {parked.coordinate} is not one of ours: {error}") from error


def lost_copy(due: Due, key: bytes, row: Row) -> ParkedCopy:
    """A substitute for a copy that the log has lost: it becomes a dead letter with the facts from its row."""
    known = f"{counted(row.attempts, 'attempt')}, {counted(row.polls, 'status request')}"
    if row.last_status is not None:
        known += f", last status {row.last_status}"
    if row.result is not None:
        known += f", outcome {row.result.outcome} with status {row.result.status}"
    place = f"{due.at.topic}/{due.at.partition}/{due.at.offset}"
    detail = f"the log lost the record that waited at {place}; known of it: row {due.row.digest.hex()}, {known}"
    flaw = Flaw("lost", detail, omitted="value=0, headers=0")
    kind, _, name = due.row.owner.partition(":")
    whose = ("relay-receiver" if kind == "r" else "ce_source", name.encode())
    headers = (whose, ("relay-generation", b"%d" % due.generation))
    record = Record(*due.at, None, None, headers, 0, flaw)
    return ParkedCopy(due.at, key, record, due.row, due.generation, row.attempts, None, 0, poll=False)


def unwrap_ours(parked: Record) -> ParkedCopy | None:
    """As `unwrap`, but None if it is not a parked copy. Raises LogUnavailable as that does."""
    try:
        return unwrap(parked)
    except InvalidRecord:
        return None
