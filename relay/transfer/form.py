"""The lines of an export: one JSON object each, in the order in which they are imported. Pure.

`begin`, then entries, dead letters, rows of finished messages, unfinished records, and `end`. Bytes are base64. Names
of topics have no prefix, which the other relay need not share.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from relay.domain.coordinate import Headers
from relay.domain.errors import UserError
from relay.domain.times import END
from relay.state.rows import Stage

FORMAT: Final = 1
"""Raised with every change that an older reader would misunderstand."""

Moment = Annotated[float, Meta(ge=0, lt=END)]
"""Unix seconds."""
Kind = Literal["from_sender", "to_receiver", "pending", "to_sender", "failed_messages"]


class BeginLine(Struct, frozen=True, tag="begin", tag_field="line", forbid_unknown_fields=True):
    """The first line of an export. `id`: the same for every export of an unchanged relay."""

    format: int
    id: str
    made_at: Moment
    version: str


class EntryLine(Struct, frozen=True, tag="entry", tag_field="line", forbid_unknown_fields=True):
    """A record of `receiver_config`."""

    key: str
    value: str


class MessageLine(Struct, frozen=True, tag="message", tag_field="line", forbid_unknown_fields=True):
    """A message whose fan-out is finished."""

    source_id: str
    message_id: str
    digest: Annotated[bytes, Meta(min_length=6, max_length=6)]


class RowLine(Struct, frozen=True, tag="row", tag_field="line", forbid_unknown_fields=True):
    """A row of a delivery or callback. `stage`: as a number."""

    owner: str
    digest: Annotated[bytes, Meta(min_length=12, max_length=12)]
    generation: Annotated[int, Meta(ge=0, lt=2**53)]
    stage: Stage
    code: Annotated[int, Meta(ge=0, lt=2**8)]


class RecordLine(Struct, frozen=True, tag="record", tag_field="line", forbid_unknown_fields=True):
    """A record to append. `lane`: its lane, for records whose receiver cannot be read. `not_before`: until then
    an attempt in flight may still arrive. `declared`: its receiver was declared at export."""

    topic: Kind
    key: bytes | None
    value: bytes | None
    headers: Headers
    lane: str | None = None
    not_before: Moment = 0.0
    declared: bool = False


class EndLine(Struct, frozen=True, tag="end", tag_field="line", forbid_unknown_fields=True):
    """The last line of an export, without which it is incomplete. `lines`: before this one."""

    lines: int


Line = BeginLine | EntryLine | MessageLine | RowLine | RecordLine | EndLine

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """A line of the export, with its line break."""
    return _encoder.encode(line) + b"\n"


def decode_line(text: bytes, origin: str, number: int) -> Line:
    """Raises UserError unless `text` is a line of an export; `number`: 1-based."""
    try:
        line: Line = _decoder.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UserError(f"{origin}: line {number}: not a line of `relay export`: {error}") from error
    return line
