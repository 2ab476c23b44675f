"""Dead letters: the record whose processing failed, plus headers with the reason, the stage and the attempts.

One that is too large for the log loses its least important parts first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec

from relay.domain.coordinate import Coordinate, Headers, coordinate_text, parse_coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.headers import FORWARDED
from relay.domain.identity import check_id, is_receiver_name
from relay.domain.json_pointer import NOT_JSON
from relay.domain.reasons import reason_class
from relay.domain.text import whole_number

_T = TypeVar("_T")

MAX_DETAIL_BYTES: Final = 8_192

OMITTED: Final = "relay-omitted"
"""Lists what was left out of a dead letter that would have been too large for the log: "value=62914560, headers=1"."""
CUT: Final = "cut="
"""Precedes the names of truncated headers."""

MOVED: Final = ("relay-moved", b"true")
"""Header of a dead letter that was already published before it was moved here: it is listed, but not published
again."""

OURS: Final = frozenset(
    {
        OMITTED,
        "relay-reason",
        "relay-reason-class",
        "relay-detail",
        "relay-stage",
        "relay-origin",
        "relay-attempts",
        "relay-first-failed",
        "relay-last-status",
        "relay-former-reason",
        MOVED[0],
    }
)
# A failure notice that could not be delivered has a relay-reason of its own, and any hop record its relay-origin.
# They are kept under these names, so that a replay can restore the original record.
_KEPT: Final = {"relay-reason": "relay-original-reason", "relay-origin": "relay-original-origin"}
_RESTORED: Final = {kept: name for name, kept in _KEPT.items()}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a record was given up. `reason`: one of `relay.domain.reasons.REASONS`; `detail`: for people.

    `stage`: the topic whose step failed. `origin`: the message's first record. `attempts`: the number of attempts.
    `first_failed_ms`: when it was first given up (Unix ms, 0 if not known); rows keep no times of earlier attempts.
    `last_status`: of the last HTTP response, if any. `omitted`: the parts of the record that the dead letter lacks (see
    OMITTED); None if it is complete and can be replayed. `former_reason`: why a discarded delivery had failed before.
    """

    reason: str
    detail: str
    stage: str
    origin: Coordinate | None
    attempts: int
    first_failed_ms: int
    last_status: int | None
    omitted: str | None = None
    former_reason: str | None = None


def dead_letter_headers(original: Headers, letter: DeadLetter) -> Headers:
    """Headers of the dead letter: those of the failed record, byte for byte, and `letter`'s.

    A header of `original` that has the name of one of ours is renamed or dropped; `original_headers` undoes it. When a
    dead letter fails again, the first failure's headers are replaced, except for the list of omitted parts.
    """
    ours = [
        ("relay-reason", _bytes(letter.reason)),
        ("relay-reason-class", _bytes(reason_class(letter.reason))),
        ("relay-detail", _cut(_bytes(letter.detail), MAX_DETAIL_BYTES)),
        ("relay-stage", _bytes(letter.stage)),
        ("relay-attempts", b"%d" % letter.attempts),
        ("relay-first-failed", b"%d" % letter.first_failed_ms),
    ]
    if letter.origin is not None:
        ours.append(("relay-origin", _bytes(coordinate_text(letter.origin))))
    if letter.last_status is not None:
        ours.append(("relay-last-status", b"%d" % letter.last_status))
    if letter.former_reason is not None:
        ours.append(("relay-former-reason", _bytes(letter.former_reason)))
    if omitted := letter.omitted or _omitted_before(original):
        ours.append((OMITTED, _bytes(omitted)))
    return (*_set_aside(original_headers(original)), *ours)


def original_headers(headers: Headers) -> Headers:
    """The headers of the failed record, from those of its dead letter; a replay sends them again.

    Headers of a record that is not a dead letter are returned unchanged.
    """
    if not is_letter(headers):
        return headers
    return tuple((_RESTORED.get(name, name), value) for name, value in headers if name not in OURS)


def parse_dead_letter(headers: Headers) -> DeadLetter:
    """The dead letter in `headers`. Never raises: a missing or invalid header becomes `poison`, empty, 0 or None."""
    named = dict(headers)
    return DeadLetter(
        reason=_text(named, "relay-reason") or "poison",
        detail=_text(named, "relay-detail") or "",
        stage=_text(named, "relay-stage") or "",
        origin=_origin(named),
        attempts=_number(named, "relay-attempts") or 0,
        first_failed_ms=_number(named, "relay-first-failed") or 0,
        last_status=_number(named, "relay-last-status"),
        omitted=_text(named, OMITTED) or None,
        former_reason=_text(named, "relay-former-reason") or None,
    )


def identity_of(value: bytes | None, headers: Headers) -> tuple[str | None, str | None, str | None]:
    """(receiver, source_id, message_id) of a record that may be invalid; None for parts that are missing or invalid.

    Never raises. The receiver is also None if the message has several or goes to subscribers.
    """
    named = _whole(headers)
    if any(name.startswith("ce_") for name in named):
        source_id, message_id, receiver = (_strict(named, name) for name in ("ce_source", "ce_id", "ce_receiver"))
    else:
        source_id, message_id, receiver = _envelope_identity(value or b"")
    receiver = _strict(named, "relay-receiver") or receiver
    return _if_name(receiver), _if_id(source_id), _if_id(message_id)


def _omitted_before(headers: Headers) -> str | None:
    """The parts that a dead letter lacked before it failed again. In other records the header is not trusted."""
    return _text(dict(headers), OMITTED) if is_letter(headers) else None


def is_letter(headers: Headers) -> bool:
    """Whether a record with these headers is a dead letter."""
    return any(name == "relay-stage" for name, _ in headers)


def _whole(headers: Headers) -> dict[str, bytes]:
    """Headers by name, without truncated ones: a truncated id may be the id of another message."""
    named = dict(headers)
    for part in (_text(named, OMITTED) or "").split(", "):
        if part.startswith(CUT):
            for name in part[len(CUT) :].split("+"):
                named.pop(name, None)
    return named


def _set_aside(headers: Headers) -> Headers:
    return tuple((_KEPT.get(name, name), value) for name, value in headers if name in _KEPT or name not in OURS)


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # a lone surrogate must not stop a dead letter


def _text(named: Mapping[str, bytes], name: str) -> str | None:
    value = named.get(name)
    return None if value is None else value.decode(errors="replace")


def _strict(named: Mapping[str, bytes], name: str) -> str | None:
    try:
        return named[name].decode() if name in named else None
    except UnicodeDecodeError:
        return None  # with replaced bytes it would be the id of another message


def _number(named: Mapping[str, bytes], name: str) -> int | None:
    return whole_number(named.get(name, b""))


def _origin(named: Mapping[str, bytes]) -> Coordinate | None:
    try:
        return parse_coordinate(_text(named, "relay-origin") or "")
    except ValueError:
        return None


def _envelope_identity(value: bytes) -> tuple[str | None, str | None, str | None]:
    try:
        fields = _decode_fields(value)
    except NOT_JSON:
        return None, None, None
    receiver = _field(fields, "receiver", str) or ",".join(_field(fields, "receiver", list[str]) or ())
    return _field(fields, "source_id", str), _field(fields, "message_id", str), receiver


def _field(fields: Mapping[str, msgspec.Raw], name: str, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(fields[name], type=kind) if name in fields else None
    except NOT_JSON:
        return None


def _if_name(text: str | None) -> str | None:
    """The text if it is a receiver's name; None otherwise, also for a list, which contains a comma."""
    return text if text is not None and is_receiver_name(text) else None


def _if_id(text: str | None) -> str | None:
    try:
        return check_id(text or "", "id")
    except InvalidRecord:
        return None


_ID_BYTES: Final = 256
"""Maximum bytes of a key or id in a dead letter: no valid one is longer."""
_BOUNDED: Final = ((_ID_BYTES, 1_024), (_ID_BYTES, 128), (32, 0))
"""(Bytes of a key or id, bytes of the detail) of successive forms."""
_ESSENTIAL: Final = ("ce_id", "ce_source", "ce_receiver")
_BARE: Final = ("relay-reason", "relay-origin")


class Form(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


def reduced_forms(key: bytes | None, value: bytes | None, headers: Headers) -> Iterator[Form]:
    """Successively smaller forms of a dead letter; `relay-omitted` lists the parts that each leaves out.

    The first lacks the value, which the origin keeps for a while. The next also lacks the failed record's headers,
    except for the message's ids; the following ones shorten these and the detail. However large the record was, the
    forms after the first are smaller than 4 KiB, 3 KiB, 2 KiB and 500 bytes, even with the longest topic name.
    """
    omitted = [text.decode(errors="replace")[:_ID_BYTES] for name, text in headers if name == OMITTED]
    original = tuple(pair for pair in headers if pair[0] not in OURS)
    ours = tuple(pair for pair in headers if pair[0] in OURS and pair[0] != OMITTED)
    if value:
        omitted.append(f"value={len(value)}")
        original += _ids_in(value, original)
        yield Form(key, None, (*original, *ours, *_omitted(omitted)))
    essential = _essential(original)
    left_out = len(original) - len({name for name, _ in original}.intersection(_ESSENTIAL))
    without = [*omitted, f"headers={left_out}"] if left_out else omitted
    for id_bytes, detail_bytes in _BOUNDED:
        yield _bounded(key, essential, ours, without, id_bytes, detail_bytes)
    bare = tuple(pair for pair in ours if pair[0] in _BARE)
    if original:
        omitted.append(f"headers={len(original)}")
    yield Form(None, None, (*bare, *_omitted(omitted)))


def without_payload(key: bytes | None, value: bytes, headers: Headers) -> Form:
    """A dead letter without its value and the headers that its sender gave it."""
    form = next(reduced_forms(key, value, headers))
    return form._replace(headers=tuple(pair for pair in form.headers if not pair[0].startswith(FORWARDED)))


def _bounded(
    key: bytes | None, essential: Headers, ours: Headers, omitted: list[str], id_bytes: int, detail_bytes: int
) -> Form:
    omitted = list(omitted)
    if key is not None and len(key) > id_bytes:
        omitted.append(f"key={len(key)}")
        key = None
    if cut := [name for name, text in essential if len(text) > id_bytes]:
        omitted.append(CUT + "+".join(cut))
    headers = [(name, text[:id_bytes]) for name, text in essential]
    headers += [(name, _cut(text, detail_bytes) if name == "relay-detail" else text) for name, text in ours]
    return Form(key, None, (*headers, *_omitted(omitted)))


def _essential(original: Headers) -> Headers:
    """The ids of the message, the last of repeated ones; a hop has its receiver in a header of its own."""
    named = dict(original)
    if "relay-receiver" in named:
        named["ce_receiver"] = named["relay-receiver"]
    return tuple((name, named[name]) for name in _ESSENTIAL if name in named)


def _ids_in(value: bytes, headers: Headers) -> Headers:
    """The ids in an envelope, which only the value has."""
    if any(name.startswith("ce_") for name, _ in headers):
        return ()
    receiver, source_id, message_id = identity_of(value, headers)
    found = (("ce_id", message_id), ("ce_source", source_id), ("ce_receiver", receiver))
    return tuple((name, text.encode()) for name, text in found if text is not None)


def _omitted(omitted: list[str]) -> Headers:
    return ((OMITTED, ", ".join(omitted).encode()),) if omitted else ()


def _cut(text: bytes, size: int) -> bytes:
    return (
        text[:size].decode(errors="ignore").encode()
    )  # the bytes were valid, so only a torn last character is ignored
