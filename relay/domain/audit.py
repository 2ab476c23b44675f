"""Audit lines: who changed what, of which resource, and with which outcome. Pure.

They are on the topic `audit`, each written once. No line contains a secret, and each has a bounded size.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from relay.domain.errors import InvalidRecord
from relay.domain.json_pointer import NOT_JSON

Outcome = Literal["done", "refused", "unknown"]
Fact = str | int | float | bool | list[str]

MOST_TEXT: Final = 300
"""Characters of a text; a longer one is cut and ends with an ellipsis."""
MOST_ITEMS: Final = 20


class AuditLine(msgspec.Struct, frozen=True, rename={"remote": "from"}):
    """`at`: RFC 3339. `who`: `key:<id>` with its `who_name`, `RELAY_API_KEY`, or `anybody` while there are no keys;
    `relay` for a change that the relay made on its own.
    `what`: a verb, such as `receiver.paused`. `whom`: a name, an id, or ids as in the path. `from`: the client's
    address. `outcome`: `done`; `refused`: the key lacks the scope; `unknown`: the relay failed, and the change may or
    may not have been made. `status`: of the response, null if there was none. `facts`: further details."""

    id: str
    at: str
    who: str
    who_name: str | None
    what: str
    whom: str
    remote: str | None
    outcome: Outcome
    status: int | None
    facts: dict[str, Fact] = {}


_decode = msgspec.json.Decoder(AuditLine).decode


def bounded(line: AuditLine) -> AuditLine:
    """`line` with each of its texts cut to its limit."""
    return msgspec.structs.replace(
        line,
        who_name=None if line.who_name is None else _cut(line.who_name),
        whom=_cut(line.whom),
        facts={name: _fact(value) for name, value in list(line.facts.items())[:MOST_ITEMS]},
    )


def encode_line(line: AuditLine) -> bytes:
    return msgspec.json.encode(line)


def decode_line(value: bytes | None) -> AuditLine:
    """The reverse of `encode_line`. Raises InvalidRecord."""
    try:
        return _decode(value or b"")
    except NOT_JSON as error:
        raise InvalidRecord("invalid", "not a valid audit line") from error


def _fact(value: Fact) -> Fact:
    if isinstance(value, str):
        return _cut(value)
    return _items(value) if isinstance(value, list) else value


def _items(texts: Sequence[str]) -> list[str]:
    shown = [_cut(text) for text in texts[:MOST_ITEMS]]
    return shown if len(texts) <= MOST_ITEMS else [*shown, f"and {len(texts) - MOST_ITEMS} more"]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"
