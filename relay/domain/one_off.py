"""The endpoint that a message brings along for itself, as records have it. Pure.

`recipients.py` has the receivers to which such messages are delivered.
"""

from typing import Final

import msgspec
from msgspec import Struct

from relay.domain.json_pointer import NOT_JSON
from relay.domain.urls import joined_url

ENDPOINT_HEADER: Final = "relay-endpoint"
"""Header of a record: the endpoint of its message, as JSON."""


class OneOff(Struct, frozen=True, gc=False, omit_defaults=True):
    """The endpoint that a message brings along. `secret`: encrypted, for the message that has it; None: its request is
    not signed."""

    url: str
    secret: str | None = None


_decode = msgspec.json.Decoder(OneOff).decode
encode_one_off = msgspec.json.Encoder().encode


def decode_one_off(value: bytes) -> OneOff:
    """The reverse of `encode_one_off`. Raises ValueError."""
    try:
        found = _decode(value)
    except NOT_JSON as error:
        raise ValueError(f"is no endpoint: {error}") from None
    if joined_url(found.url, "") != found.url:
        raise ValueError("has a URL to which no request can be sent")
    return found
