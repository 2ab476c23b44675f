"""A receiver's answers to verification handshakes. Pure: its nonce is passed in."""

import base64
import json
from collections.abc import Mapping
from typing import Final

from relay.domain.verification import answer_signature

EVENT_TYPE: Final = "relay.verification"


def is_verification(headers: Mapping[str, str]) -> bool:
    """Whether a POST is a verification handshake."""
    return headers.get("ce-type") == EVENT_TYPE


def signed_answer(body: bytes, secret: str, own_nonce: str) -> bytes | None:
    """The answer to such a POST, whose own signature is valid; None for an invalid body."""
    try:
        nonce = json.loads(body)["nonce"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(nonce, str):
        return None
    signature = base64.b64encode(answer_signature(secret, nonce, own_nonce)).decode()
    return json.dumps({"nonce": own_nonce, "signature": signature}).encode()


def consent(headers: Mapping[str, str]) -> dict[str, str]:
    """Response headers that consent to an OPTIONS request. `headers`: the request's, with lower-case names."""
    asked = headers.get("webhook-request-origin")
    if asked is None:
        return {"allow": "GET, POST, OPTIONS"}
    rate = headers.get("webhook-request-rate", "*")
    return {"allow": "GET, POST, OPTIONS", "webhook-allowed-origin": asked, "webhook-allowed-rate": rate}
