"""A payload as a page shows it: JSON in order, text, or bytes in hex; and how to send it again from a shell. Pure."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from relay.domain.headers import header_value
from relay.domain.requests import DEFAULT_CONTENT_TYPE
from relay.telemetry.redaction import escape_control

How = Literal["pretty", "raw", "hex"]

MOST_SHOWN: Final = 64 * 1024
"""Bytes of a payload that a page shows; all of it can be saved."""
_DEEPEST: Final = 32
"""Levels of JSON up to which it is indented: each adds its indent to every line below it."""
_MORE: Final = "\n[the rest is not shown]"
_MOST_HEX: Final = 4 * 1024
_LINE: Final = 16
_STEERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that a shell, or the terminal that they are pasted into, may interpret."""
_KEPT: Final = re.compile("[^\n\t]+")
_MOST_IN_A_CALL: Final = 8 * 1024


class Shown(NamedTuple):
    """`how` it is shown, of what it `can` be shown as. `cut`: there is more."""

    text: str
    how: How
    can: Sequence[How]
    cut: bool


def shown(payload: bytes, wanted: str | None = None) -> Shown:
    """The payload for display. `wanted`: the view; None, or one that is not possible, gives the best available."""
    text = text_of(payload)
    views: dict[How, str | None] = {"pretty": None if text is None else _pretty(text), "raw": text}
    can: list[How] = [*(how for how, whole in views.items() if whole is not None), "hex"]
    how = next((each for each in can if each == wanted), can[0])
    if how == "hex":
        return Shown(hex_dump(payload[:_MOST_HEX]), how, can, len(payload) > _MOST_HEX)
    whole = views[how] or ""
    return Shown(readable(whole[:MOST_SHOWN]), how, can, len(whole) > MOST_SHOWN)


def readable(text: str) -> str:
    """The text with its lines and tabs; all other invisible characters are written out."""
    return _KEPT.sub(lambda found: escape_control(found[0]), text)


def body_text(body: str) -> str:
    """The beginning of a response's body, in order where it is JSON."""
    whole = _pretty(body) or body
    return readable(whole[:MOST_SHOWN]) + (_MORE if len(whole) > MOST_SHOWN else "")


def hex_dump(data: bytes) -> str:
    """Sixteen bytes a line: offset, hex, and the printable characters."""
    lines = []
    for at in range(0, len(data), _LINE):
        part = data[at : at + _LINE]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{at:06x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {letters}")
    return "\n".join(lines)


def curl(
    origin: str, source_id: str, message_id: str, event_type: str | None, content_type: str | None,
    receivers: Sequence[str], payload: bytes | None,
) -> str:  # fmt: skip
    """Commands that send it once more, as a message of its own: one with the same id would be taken for this one.

    A payload that cannot stand in a command is fetched first.
    """
    path = f"{origin}/v1/sources/{quote(source_id, safe='')}/messages"
    query = "".join(f"{'?' if n == 0 else '&'}receiver={quote(name)}" for n, name in enumerate(receivers))
    text = None if payload is None or len(payload) > _MOST_IN_A_CALL else text_of(payload)
    key = '-H "Authorization: Bearer $RELAY_API_KEY"'
    lines = []
    if text is None or _STEERS.search(text) or text.startswith("@"):
        whole = f"{path}/{quote(message_id, safe='')}/payload"
        lines.append(f"curl -fsS {key} {_word(whole)} -o payload")
        text = "@payload"
    headers = [f"ce-id: {quote(f'{message_id}-again', safe='')}"]
    headers.append(f"content-type: {header_value(content_type or DEFAULT_CONTENT_TYPE)}")
    if event_type is not None:
        headers.append(f"ce-type: {quote(event_type, safe=_SAFE_IN_HEADERS)}")
    told = " ".join(f"-H {_word(header)}" for header in headers)
    lines.append(f"curl -X POST {_word(path + query)} {key} \\\n     {told} \\\n     --data-binary {_word(text)}")
    return "\n".join(lines)


_SAFE_IN_HEADERS: Final = " !#$&'()*+,/:;=?@[]"


def _word(text: str) -> str:
    return shlex.quote(_STEERS.sub("", text))


def text_of(data: bytes) -> str | None:
    """The text of the bytes; None if they are not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def _pretty(text: str) -> str | None:
    """At least MOST_SHOWN characters of the indented JSON, if it has as many. None if it is not JSON, or too long or
    deep to be formatted. Numbers stay as they were written."""
    if len(text) > MOST_SHOWN:
        return None
    try:
        return _beginning(_indented(json.loads(text, parse_float=_AsWritten, parse_int=_AsWritten)))
    except (ValueError, RecursionError):
        return None


class _AsWritten(str):
    """A number of the JSON, as it was written: a float would lose digits."""

    __slots__ = ()


def _beginning(pieces: Iterator[str]) -> str:
    """The beginning in pieces: those that are shown, and one more, which shows that there are more."""
    taken, length = list[str](), 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece)
        if length > MOST_SHOWN:
            break
    return "".join(taken)


def _indented(value: object, depth: int = 0) -> Iterator[str]:
    """Raises ValueError where it is too deep."""
    if isinstance(value, _AsWritten):
        yield str(value)
    elif isinstance(value, dict | list) and value:
        if depth == _DEEPEST:
            raise ValueError("too deep")
        is_object = isinstance(value, dict)
        indent, line = "\n" + depth * "  ", "{" if is_object else "["
        for each in value:
            yield f"{line}{indent}  "
            if is_object:
                yield f"{_json(each)}: "
            yield from _indented(value[each] if is_object else each, depth + 1)
            line = ","
        yield indent + ("}" if is_object else "]")
    else:
        yield _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
