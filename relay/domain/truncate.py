"""Truncates dead letters that are too large for the log, dropping the least important parts first."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from relay.domain.coordinate import Headers
from relay.domain.dead_letter import CUT, OMITTED, OURS, identity_of

_ID_BYTES: Final = 256
"""Of a key, or of an id of the message: no valid one is longer."""
_BOUNDED: Final = ((_ID_BYTES, 1_024), (_ID_BYTES, 128), (32, 0))
"""(Bytes of a key or id, bytes of the detail) of successive forms."""
_ESSENTIAL: Final = ("ce_id", "ce_source", "ce_receiver")
_BARE: Final = ("relay-reason", "relay-origin")


class Form(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


def smaller_forms(key: bytes | None, value: bytes | None, headers: Headers) -> Iterator[Form]:
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
    for id_bytes, detail_bytes in _BOUNDED:
        yield _bounded(key, essential, ours, omitted, left_out, id_bytes, detail_bytes)
    bare = tuple(pair for pair in ours if pair[0] in _BARE)
    if original:
        omitted.append(f"headers={len(original)}")
    yield Form(None, None, (*bare, *_omitted(omitted)))


def _bounded(
    key: bytes | None,
    essential: Headers,
    ours: Headers,
    omitted: list[str],
    left_out: int,
    id_bytes: int,
    detail_bytes: int,
) -> Form:
    omitted = list(omitted)
    if left_out:
        omitted.append(f"headers={left_out}")
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
    return text[:size].decode(errors="ignore").encode()
