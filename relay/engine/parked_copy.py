"""The form of a record on `parked_messages`: the stage's own record, with where it came from in headers of its own."""

from dataclasses import dataclass

from relay.domain.errors import InvalidRecord
from relay.engine.work import W
from relay.log.port import Coordinate, NewRecord, Record
from relay.state.rows import RowKey

_PREFIX = "relay-parked-"
OWNER_HEADER = _PREFIX + "owner"
"""Whose it is: `r:<receiver>` or `s:<source_id>`."""
LIFE_KEY = b"life"
"""Key of the record which says that the state was once ready: an empty state is then a lost one, not a new one."""


@dataclass(frozen=True, slots=True)
class ParkedCopy:
    """What a parked record says: the original as it was read, and what a recovery pass needs to put it back.

    `at`, `key`: of the parked record itself. `attempts`: POSTs begun when it was parked. `due_ms`: Unix milliseconds.
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


def parked_key(stage: str, row: RowKey) -> bytes:
    """Delivery identity and stage: the key of a parked record, so that a newer copy replaces an older one."""
    return f"{stage}:{row.digest.hex()}".encode()


def wrap(topic: str, stage: str, work: W, row: RowKey, *, due_ms: int, poll: bool) -> NewRecord:
    """The parked copy of the record that `work` came from."""
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
    headers = tuple((_PREFIX + name, value.encode()) for name, value in own.items())
    return NewRecord(
        topic, parked_key(stage, row), record.value if record.value is not None else b"", record.headers + headers
    )


def unwrap(parked: Record) -> ParkedCopy:
    """The original record and its surroundings. Raises InvalidRecord where a header is missing or wrong."""
    try:
        own = {name[len(_PREFIX) :]: value.decode() for name, value in parked.headers if name.startswith(_PREFIX)}
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
            int(own["generation"]),
            int(own["attempts"]),
            bytes.fromhex(own["queue"]) or None,
            int(own["due"]),
            own["poll"] == "1",
        )
    except (KeyError, ValueError) as error:
        raise InvalidRecord("invalid", f"parked record at {parked.coordinate} is not one of ours: {error}") from error
