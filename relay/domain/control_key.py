"""Records on `receiver_config`: all kinds of records that the topic has, and how keys and values are written."""

import json
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeVar, get_args

import msgspec

from relay.domain.errors import InvalidRecord
from relay.domain.json_pointer import NOT_JSON

T = TypeVar("T")

Kind = Literal[
    "receiver",  # the entry of a receiver; its name has no colon
    "source",  # the entry of a source
    "route",  # a receiver's lane, and its move to another: `route.py`
    "cut",  # id: `<partition>:<receiver>`; where in a partition of `from_sender` a move takes effect
    "removed",  # the last entry of a removed receiver, in the form of its own record
    "hot",  # a receiver that has a lane of its own while it is hot: `hot_receivers.py`
    "hold",  # id: `r:<receiver>`, or `s:<source_id>` for the callback of a source; `hold.py`
    "verification",  # the result of a receiver's handshake: `verification.py`
    "replay",  # the order of a replay job, by its id: `replay_job.py`
    "replay-progress",
    "replay-stop",  # the request to stop a job
    "key",  # an API key, by its id: `api_key.py`
    "key-secret",  # a further secret of an API key, from a rotation; id: `<key id>:<secret number>`
    "keys-closed",  # without id; the first key was created, so that the API is closed
    "session-end",  # a session that was ended early: `session.py`
    "event-type",  # an event type of the catalogue, by its name: `event_type.py`
    "erasure",  # payloads that were erased on request, by the id of the request: `erasure.py`
]
PREFIXES: Final[Mapping[Kind, str]] = {
    **{kind: f"{kind}:" for kind in get_args(Kind)},
    "receiver": "",
    "keys-closed": "keys:closed",
}
ENTRIES: Final[frozenset[Kind]] = frozenset({"receiver", "source"})
ROUTES: Final[frozenset[Kind]] = frozenset({"route", "cut", "removed", "hot"})
JOBS: Final[frozenset[Kind]] = frozenset({"replay", "replay-progress", "replay-stop"})
KEYS: Final[frozenset[Kind]] = frozenset({"key", "key-secret", "keys-closed", "session-end"})
_KINDS: Final = {prefix: kind for kind, prefix in PREFIXES.items()}


class ControlKey(NamedTuple):
    """The key of a record. `id`: of the resource; what it is depends on the kind."""

    kind: Kind
    id: str

    @property
    def text(self) -> str:
        return PREFIXES[self.kind] + self.id

    def encode(self) -> bytes:
        return self.text.encode()


def control_key(text: str) -> ControlKey:
    """The reverse of `ControlKey.text`. A key with an unknown prefix, which a newer version wrote, is one of a receiver
    with an invalid name."""
    prefix, colon, _ = text.partition(":")
    if not colon:  # of a million receivers, which a process reads when it starts
        return ControlKey("receiver", text)
    kind = _KINDS.get(prefix + colon) or _KINDS.get(text)
    return ControlKey("receiver", text) if kind is None else ControlKey(kind, text.removeprefix(PREFIXES[kind]))


def decode_key(raw: bytes | None) -> ControlKey | None:
    """The reverse of `ControlKey.encode`; None if no entry can have such a key. Others count even if they are not
    UTF-8: an unreadable API key closes the API."""
    if not raw:
        return None
    try:
        return control_key(raw.decode())
    except UnicodeDecodeError:
        key = control_key(raw.decode(errors="replace"))
        return None if key.kind in ENTRIES else key


def encode_value(known: object) -> bytes:
    """The value of a record: the fields of a dataclass or struct as JSON, by name; those of a named tuple as a list."""
    return json.dumps(msgspec.to_builtins(known, order="sorted"), sort_keys=True).encode()


def decode_value(kind: type[T], value: bytes) -> T:
    """The reverse of `encode_value`; unknown fields, of a newer version, are ignored. Raises InvalidRecord."""
    try:
        return msgspec.json.decode(value, type=kind)
    except NOT_JSON as error:
        raise InvalidRecord("invalid", f"not a valid record: {error}") from error
