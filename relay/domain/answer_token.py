"""Signed tokens in answer URLs and payload URLs. A token carries a delivery, its generation or life, and an expiry."""

import hmac
from collections.abc import Sequence
from typing import Final

from relay.domain.errors import RelayError
from relay.domain.identity import DeliveryId, base64url, token_bytes

# so that no signature made for another purpose with this key is valid here
_ANSWER: Final = b"relay answer token 1\0"
_PAYLOAD: Final = b"relay payload token 1\0"
_MAC_BYTES: Final = 16  # half a SHA-256: 2**128 guesses, and a shorter URL
_MAX_LENGTH: Final = 2_048  # the longest ids make about 850


class TokenInvalid(RelayError):
    """The token was not issued with any of these secrets, or was changed."""


class TokenExpired(RelayError):
    """The token is genuine, but its expiry has passed."""


def issue(secret: bytes, delivery: DeliveryId, generation: int, expires: int) -> str:
    """A token for URLs (`A-Za-z0-9_-`). `expires`: Unix seconds; the token is rejected from then on."""
    return _issue(_ANSWER, secret, str(generation), delivery, expires)


def issue_for_payload(secret: bytes, delivery: DeliveryId, life: str, expires: int) -> str:
    """A token that reads the payload of `delivery`, likewise. `life`: of the receiver's name, as in its hop."""
    return _issue(_PAYLOAD, secret, life, delivery, expires)


def read(secrets: Sequence[bytes], token: str, now: float) -> tuple[DeliveryId, int]:
    """(delivery, generation) of a token that was issued with any of `secrets` (several during a rotation).

    Raises TokenInvalid or TokenExpired. Compares in constant time.
    """
    delivery, generation = _read(_ANSWER, secrets, token, now)
    return delivery, int(generation)


def read_for_payload(secrets: Sequence[bytes], token: str, now: float) -> tuple[DeliveryId, str]:
    """(delivery, life) of a token of `issue_for_payload`, likewise."""
    return _read(_PAYLOAD, secrets, token, now)


def _issue(context: bytes, secret: bytes, which: str, delivery: DeliveryId, expires: int) -> str:
    text = "\0".join((which, str(expires), *delivery)).encode()  # names and ids have no NUL
    return base64url(_mac(context, secret, text) + text)


def _read(context: bytes, secrets: Sequence[bytes], token: str, now: float) -> tuple[DeliveryId, str]:
    raw = token_bytes(token, _MAX_LENGTH)
    if raw is None:
        raise TokenInvalid("this URL is damaged")
    mac, text = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not any(hmac.compare_digest(mac, _mac(context, secret, text)) for secret in secrets):
        raise TokenInvalid("this URL was not issued by this relay")
    which, expires, receiver, source_id, message_id = text.decode().split("\0")
    if now >= int(expires):
        raise TokenExpired("the time of this URL is over")
    return DeliveryId(receiver, source_id, message_id), which


def _mac(context: bytes, secret: bytes, text: bytes) -> bytes:
    return hmac.digest(secret, context + text, "sha256")[:_MAC_BYTES]
